"""The command line, as a person or a script meets it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers import COMMAND, QUICK, QUICK_KEYS, command, process, refused

from sordino.experiment.config import Experiment
from sordino.privacy.unit import Unit
from sordino.store.store import Store

RESULT_KEYS = {
    *("run", "method", "variant", "rounds", "accuracy", "epsilon", "delta", "unit", "not_covered", "seconds"),
}
VIEWS = {"outsider", "peer", "server"}
DELTA_50 = 50**-1.1
OPTIONS = {
    "data": "digits",
    "data-dir": "there",
    "label": "diagnosis",
    "partition": "shards:2",
    "clients": 12,
    "model": "mlp",
    "method": "dp-fedavg",
    "variant": "paper",
    "rounds": 7,
    "participation": 0.5,
    "epsilon": 3.5,
    "delta": 1e-4,
    "protect-from": "server",
    "seed": 5,
    "workers": 2,
    "store": "here",
}


def chosen(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Experiment:
    """The experiment that `sordino run ARGUMENTS...` would prepare."""
    seen = []

    def stop(experiment: Experiment) -> None:
        seen.append(experiment)
        raise typer.Exit(0)

    monkeypatch.setattr("sordino.experiment.prepare.prepare", stop)
    assert command("run", *arguments).code == 0
    return seen[0]


def test_every_option_of_run_is_a_key_of_the_experiment_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [f"--{key}={value}" for key, value in OPTIONS.items()]
    by_options = chosen(monkeypatch, *options, "--allow-vacuous-delta", "--set", "clip=0.25", "--set", "model.hidden=9")
    file = tmp_path / "experiment.toml"
    keys = [f"{key} = {json.dumps(value)}" for key, value in OPTIONS.items()]
    file.write_text("\n".join([*keys, "allow-vacuous-delta = true", "[set]", "clip = 0.25", "model.hidden = 9", ""]))
    assert chosen(monkeypatch, file) == by_options
    for key, value in OPTIONS.items():
        found = getattr(by_options, key.replace("-", "_"))
        assert (str(found) if isinstance(found, Path) else found) == value
    assert by_options.build_method().clip == 0.25  # type: ignore[attr-defined]
    assert by_options.model_options() == {"hidden": 9}
    assert by_options.allow_vacuous_delta


def test_an_option_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('method = "feddpa"\nrounds = 3\nepsilon = 2\n[set]\ntau = 0.1\nepochs = 2\n')
    experiment = chosen(monkeypatch, file, "--rounds", 4, "--noise-multiplier", 1.5, "--set", "tau=0.2")
    assert (experiment.rounds, experiment.epsilon, experiment.noise_multiplier) == (4, None, 1.5)
    assert experiment.set == {"tau": 0.2, "epochs": 2}


def test_run_prints_its_result_as_the_last_line(tmp_path: Path) -> None:
    found = command("run", "--method=dp-fedavg", "--epsilon=3", *QUICK, "--store", tmp_path, "--json").document
    assert set(found) >= RESULT_KEYS
    assert (found["method"], found["variant"], found["rounds"]) == ("dp-fedavg", "sound", 2)
    assert set(found["accuracy"]) == {"personal", "personal_worst", "start", "global"}
    assert all(0 <= value <= 1 for value in found["accuracy"].values())
    assert found["accuracy"]["personal_worst"] <= found["accuracy"]["personal"]
    assert set(found["epsilon"]) == VIEWS
    assert found["epsilon"]["outsider"] == pytest.approx(3, rel=1e-6)
    assert 3 < found["epsilon"]["peer"] < found["epsilon"]["server"]
    assert found["delta"] == 1e-5
    assert found["unit"] == "client"
    assert found["not_covered"] == []
    assert (tmp_path / "runs" / found["run"] / "models.safetensors").is_file()


def test_an_infinite_epsilon_is_null_with_its_reasons(tmp_path: Path) -> None:
    found = command("run", "--method=fedavg", *QUICK, "--store", tmp_path, "--json").document
    assert found["epsilon"] == {"outsider": None, "peer": None, "server": None}
    assert [reason.partition(":")[0] for reason in found["not_covered"]] == ["update", "records"]


def test_local_training_costs_nothing(tmp_path: Path) -> None:
    found = command("run", "--method=local", *QUICK, "--store", tmp_path, "--json").document
    assert found["epsilon"] == {"outsider": 0, "peer": 0, "server": 0}
    assert found["accuracy"]["global"] is None


def test_protecting_from_the_server_gives_the_server_the_budget(tmp_path: Path) -> None:
    arguments = ("--method=dp-fedavg", "--epsilon=3", "--protect-from=server", *QUICK, "--store", tmp_path)
    found = command("run", *arguments, "--json").document
    assert found["epsilon"]["server"] == pytest.approx(3, rel=1e-6)
    assert found["epsilon"]["outsider"] < 3


def test_run_tells_people_what_they_need(tmp_path: Path) -> None:
    outcome = command("run", "--method=fedavg", *QUICK, "--store", tmp_path)
    assert outcome.code == 0
    head = "fedavg-digits-1: fedavg[batch=64,epochs=1] (sound), 2 rounds, 8 clients, 650 parameters"
    assert head in outcome.out.replace(" \n", " ")
    assert "Not covered: update: FedAvg sends each client's update as it is." in outcome.out
    assert "round 2/2  epsilon ∞  personal" in outcome.err


def test_feddpas_published_accounting_is_exposed(tmp_path: Path) -> None:
    """Published target 2. The truth: mu = sqrt(15)/0.441, at which the Gaussian curve gives 48.9 for delta 0.1."""
    settings = ("--noise-multiplier=0.441", "--rounds=15", "--clients=10", "--delta=0.1", "--set=epochs=1")
    arguments = ("--method=feddpa", "--variant=paper", *settings, "--set=batch=64", "--workers=1")
    found = command("run", *arguments, "--store", tmp_path, "--json").document
    assert found["variant"] == "paper"
    assert found["epsilon"]["outsider"] == pytest.approx(48.89, abs=0.01)
    assert any("1/10" in note for note in found["notes"])
    assert any("record-level accounting" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("multiplier", "outsider", "rdp"),
    [
        (0.8, 104.84, 112.56),
        (1.0, 71.21, 77.00),
        (1.3, 45.72, 50.08),
        (1.5, 36.10, 39.78),
        (2.1, 21.05, 23.55),
    ],
)
def test_plan_figures(multiplier: float, outsider: float, rdp: float) -> None:
    arguments = ("--noise-multiplier", multiplier, "--rounds", 100, "--clients", 50, "--delta", DELTA_50)
    found = command("plan", *arguments, "--json").document
    assert set(found) >= {"epsilon", "attack_accuracy", "feasible_parameters", "warnings"}
    assert found["epsilon"]["outsider"] == pytest.approx(outsider, abs=0.005)
    assert found["rdp_epsilon"] == pytest.approx(rdp, abs=0.005)
    assert found["noise_multiplier"] == multiplier
    assert set(found["epsilon"]) == set(found["attack_accuracy"]) == VIEWS
    # (clients x mu)^2 with mu = sqrt(100) / multiplier.
    assert found["feasible_parameters"] == round((50 * 10 / multiplier) ** 2)
    if multiplier == 1:
        assert found["epsilon"]["server"] == pytest.approx(2655, abs=0.5)


@pytest.mark.parametrize("observer", ["outsider", "server"])
def test_plan_calibrates_for_the_observer(observer: str) -> None:
    arguments = ("--clients=50", "--rounds=100", "--epsilon=4", "--protect-from", observer)
    found = command("plan", *arguments, "--json").document
    assert found["epsilon"][observer] == pytest.approx(4, rel=1e-6)


def test_plan_refuses_a_vacuous_delta() -> None:
    arguments = ("plan", "--noise-multiplier=1", "--rounds=100", "--clients=10", "--delta=0.1")
    sentence = refused(*arguments, "--json")
    assert "vacuous" in sentence
    assert "--allow-vacuous-delta" in sentence
    found = command(*arguments, "--allow-vacuous-delta", "--json").document
    assert any("promises nothing" in warning for warning in found["warnings"])


def test_plan_counts_the_parameters_of_the_model_asked_for(tmp_path: Path) -> None:
    """64 pixels, 7 hidden units, 10 classes: 64*7 + 7 + 7*10 + 10 = 535 parameters."""
    file = tmp_path / "experiment.toml"
    file.write_text('data = "digits"\nmodel = "mlp"\nclients = 10\n[set.model]\nhidden = [7]\n')
    found = command("plan", file, "--json").document
    assert "535 parameters" in found["advice"][0]


def test_plan_speaks_to_people() -> None:
    outcome = command("plan", "--clients=10", "--rounds=10", "--epsilon=1", "--parameters=1000000")
    assert outcome.code == 0
    assert "More clients" in outcome.out
    assert "local" in outcome.out


def test_methods_tell_what_leaves_and_for_whom_epsilon_holds() -> None:
    found = {item["name"]: item for item in command("methods", "--json").document}
    assert set(found) >= {"local", "fedavg", "dp-fedavg", "feddpa"}
    for item in found.values():
        assert set(item) >= {"name", "paper", "unit", "releases", "variants"}
    assert found["local"]["releases"] == {}
    assert set(found["fedavg"]["releases"]) == {"update", "records"}
    assert found["fedavg"]["variants"]["sound"]["views"] == []
    assert set(found["feddpa"]["releases"]) == {"update"}
    assert set(found["feddpa"]["variants"]["sound"]["views"]) == VIEWS
    shown = command("methods")
    assert shown.code == 0
    assert "feddpa" in shown.out
    for name in ("fedavg", "cfl"):
        assert "protects nothing: epsilon is infinite for every observer" in command("methods", name).out
    assert "protects one client; epsilon holds for: outsider, peer, server" in command("methods", "dp-fedavg").out


def test_runs_lists_the_newest_first(tmp_path: Path) -> None:
    assert command("runs", "--store", tmp_path, "--json").document == []
    names = [
        command("run", "--method", method, *QUICK, "--store", tmp_path, "--json").document["run"]
        for method in ("local", "fedavg")
    ]
    found = command("runs", "--store", tmp_path, "--json").document
    keys = ("run", "method", "state", "rounds_done", "rounds", "data", "seed", "budget", "epsilon")
    assert [[row[key] for key in keys] for row in found] == [
        [names[1], "fedavg", "done", 2, 2, "digits", 0, None, None],
        [names[0], "local", "done", 2, 2, "digits", 0, None, 0],
    ]
    assert all(0 < row["accuracy"] <= 1 and row["date"].startswith("20") for row in found)
    shown = command("runs", "--store", tmp_path).out
    assert names[0] in shown
    assert "∞" in shown
    only = command("runs", "--store", tmp_path, "--method=local", "--last=5", "--state=done", "--json").document
    assert [row["run"] for row in only] == [names[0]]
    assert command("runs", "--store", tmp_path, "--data=mnist", "--json").document == []


def test_a_removed_run_is_gone_but_what_it_spent_is_not(tmp_path: Path) -> None:
    first = command("run", "--method=dp-fedavg", *QUICK, "--store", tmp_path, "--json").document["run"]
    assert "say --yes" in refused("rm", first, "--store", tmp_path)
    assert command("rm", first, "--yes", "--store", tmp_path, "--json").document == {"removed": [first]}
    assert not (tmp_path / "runs" / first).exists()
    assert command("runs", "--store", tmp_path, "--json").document == []
    assert command("runs", "--store", tmp_path, "--state=removed", "--json").document[0]["run"] == first
    for again in (("resume",), ("report",), ("rm", "--yes")):
        told = refused(*again, first, "--store", tmp_path)
        assert f"The run {first!r} was removed: only what it spent is still known." in told
    (tmp_path / "runs" / first).mkdir()  # as if removing it had been stopped half way
    (tmp_path / "runs" / first / "models.safetensors").write_text("somebody's models")
    assert command("rm", first, first, "--yes", "--store", tmp_path, "--json").document == {"removed": [first]}
    assert not (tmp_path / "runs" / first).exists()
    again = command("run", "--method=dp-fedavg", *QUICK, "--store", tmp_path, "--json").document
    assert again["run"] != first
    assert again["over_runs"]["runs"] == 2
    assert "above the 9 of budget_over_runs" in refused(
        "run", "--method=dp-fedavg", *QUICK, "--budget-over-runs=9", "--store", tmp_path, "--json"
    )


def test_a_stopped_run_that_is_removed_has_spent_what_its_ledger_says(tmp_path: Path) -> None:
    import sordino
    from sordino.store.spending import over_runs, remove

    with pytest.raises(ZeroDivisionError):
        sordino.run(method="dp-fedavg", store=tmp_path, watch=lambda report: 1 / 0, **QUICK_KEYS)
    store = Store(tmp_path)
    (row,) = store.all()
    before = over_runs(store, row.people, Unit.CLIENT, 1e-5)
    assert 0 < before["epsilon"]["outsider"] < 8
    remove(row.run, store)
    assert over_runs(store, row.people, Unit.CLIENT, 1e-5) == before
    for told in ("show", "statement", "export", "report", "ledger"):
        assert "only what it spent is still known" in refused(told, row.run, "--store", tmp_path)


def test_a_list_tells_what_a_stopped_run_has_charged_at_the_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four rounds are stored, which cost a Gaussian of mu over the square root of two; the run counts as
    planned, and JSON has what was charged so far."""
    import sordino
    from sordino.privacy.accounting.gaussian import epsilon_of, mu_of

    def stopping(report: Any) -> None:
        if report.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sordino.federation.server.SAVE_SECONDS", -1.0)  # a checkpoint after every round
    for method in ("dp-fedavg", "fedavg"):  # what is infinite, or was never written down, has no figure
        with pytest.raises(KeyboardInterrupt):
            sordino.run(method=method, store=tmp_path, delta=1e-5, watch=stopping, **QUICK_KEYS | {"rounds": 4})
    bare, noised = command("runs", "--store", tmp_path, "--json").document
    assert (noised["state"], noised["rounds_done"], noised["epsilon"]) == ("stopped", 2, pytest.approx(8))
    assert noised["charged_at_least"] == pytest.approx(epsilon_of(mu_of(8, 1e-5) / math.sqrt(2), 1e-5))
    assert bare["charged_at_least"] is None
    assert bare["epsilon"] is None
    assert "8.00 as planned" in command("runs", "--store", tmp_path).out


def test_a_finished_run_whose_models_are_gone(tmp_path: Path) -> None:
    first = command("run", "--method=dp-fedavg", *QUICK, "--store", tmp_path, "--json").document["run"]
    (tmp_path / "runs" / first / "models.safetensors").unlink()
    assert "its file of models" in refused("resume", first, "--store", tmp_path)


def test_resuming_a_finished_run_prints_its_result_again(tmp_path: Path) -> None:
    first = command("run", "--method=dp-fedavg", *QUICK, "--store", tmp_path, "--json").document
    assert command("resume", first["run"], "--store", tmp_path, "--json").document == first


def test_data_lists_what_is_known(tmp_path: Path) -> None:
    found = {item["name"]: item for item in command("data", "--data-dir", tmp_path, "--json").document}
    assert found["digits"]["present"]
    assert not found["mnist"]["present"]
    assert any(str(tmp_path) in folder for folder in found["mnist"]["looked_in"])
    shown = command("data", "--data-dir", tmp_path)
    assert shown.code == 0
    assert "built in" in shown.out
    assert str(tmp_path) in shown.out.replace("\n", "")


def test_data_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert "name one for data sets with --data-dir" in refused("data")
    assert "name one for data sets with --data-dir" in refused("run", "--data=mnist")


def test_data_show_summarises_a_partition(tmp_path: Path) -> None:
    """1797 digits over 9 clients: at least 199 each, a fifth of them (40) for testing."""
    picture = tmp_path / "labels.png"
    arguments = ("digits", "--clients=9", "--partition=iid", "--picture", picture)
    found = command("data", "show", *arguments, "--json").document
    assert (found["clients"], found["classes"], found["total"]) == (9, 10, 1797)
    assert (found["sizes"]["smallest"], found["test"]) == (159, 9 * 40)
    assert sum(found["labels"].values()) == found["train"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = command("data", "show", "digits", "--clients=9", "--partition=iid").out
    assert "1,797 records, 9 clients" in shown
    assert f"Training records of each class: 0: {found['labels']['0'] / found['train']:.1%}, 1: " in shown


def own_data(folder: Path, **labels: list[int]) -> Path:
    """One CSV file per client, the label shifting the first of two features."""
    folder.mkdir()
    for client, values in labels.items():
        lines = [f"{3 * label + 0.1 * i},{i},{label}" for i, label in enumerate(values)]
        (folder / f"{client}.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    return folder


def test_a_client_with_a_single_class_is_fine(tmp_path: Path) -> None:
    folder = own_data(tmp_path / "clinics", one=[0, 1] * 10, two=[1] * 10, three=[0, 1, 1] * 5)
    for method in ("local", "feddpa"):
        arguments = ("--data", folder, "--method", method, "--rounds=2", "--workers=1", "--store", tmp_path / "s")
        found = command("run", *arguments, "--json").document
        assert found["clients"] == 3
        assert 0 <= found["accuracy"]["personal_worst"] <= found["accuracy"]["personal"] <= 1


def test_bad_own_data(tmp_path: Path) -> None:
    store = ("--store", tmp_path / "s")
    folder = own_data(tmp_path / "clinics", one=[0, 1] * 10, two=[])
    assert "'two' of 'clinics' has no training data" in refused("run", "--data", folder, *store)
    sentence = refused("run", "--data", folder, "--label", "lable", *store)
    assert "no column 'lable'" in sentence
    assert "its columns are: a, b, label. Did you mean --label label?" in sentence
    for name, content in (("two.csv", b"\x00\xff\xfe"), ("three.npz", b"PK\x03\x04 cut off")):
        (folder / name).write_bytes(content)
        assert f"{folder / name} is damaged" in refused("run", "--data", folder, *store)
        (folder / name).unlink()


def test_a_corrupt_data_set(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "mnist" / f"{name}-ubyte").write_bytes(b"not an idx file")
    sentence = refused("run", "--data=mnist", "--data-dir", tmp_path, "--store", tmp_path / "s")
    assert str(tmp_path / "mnist") in sentence
    assert "damaged" in sentence


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("roundz = 3", "no key 'roundz'; did you mean 'rounds'?"),
        ("rounds = = 3", "is not valid TOML"),
        ("rounds = 'many'", "rounds cannot be 'many'"),
        ("set = 3", '"set" must be a table'),
        ("epsilon = 1\nnoise-multiplier = 1", "not both"),
        ("[set.feddpa]\ntua = 0.3", "'tua'; did you mean 'tau'?"),
    ],
)
def test_a_mistake_in_an_experiment_file(content: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(f"{content}\n")
    assert expected in refused("run", file, "--store", tmp_path / "s")


def test_a_missing_experiment_file(tmp_path: Path) -> None:
    assert refused("run", tmp_path / "no.toml") == f"There is no experiment file {tmp_path / 'no.toml'}."
    assert "cannot be read" in refused("run", tmp_path)


def test_other_commands_refuse_as_clearly(tmp_path: Path) -> None:
    store = ("--store", tmp_path)
    assert "did you mean 'feddpa'?" in refused("compare", "--methods=local,fedpda", *QUICK, *store)
    assert "at least one seed" in refused("compare", "--seeds=0", *QUICK, *store)
    assert "at least one method" in refused("compare", "--methods=,", *QUICK, *store)
    assert "did you mean 'digits'?" in refused("data", "show", "digist")
    assert "epsilon cannot be 0.0" in refused("plan", "--epsilon=0")
    assert not list(tmp_path.glob("runs/*"))


def test_help_needs_no_torch() -> None:
    """Importing torch takes seconds; `sordino --help` shall answer at once."""
    script = "import sys, sordino.cli; print(sorted({'torch', 'numpy', 'scipy', 'sklearn'} & set(sys.modules)))"
    assert process(script).out.strip() == "[]"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device without space")
@pytest.mark.parametrize("streams", [("stdout",), ("stdout", "stderr")])
def test_output_without_space_is_told_in_a_sentence(streams: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", COMMAND, "explain", "epsilon"],
            stdout=full,
            stderr=full if "stderr" in streams else subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    if "stderr" not in streams:
        assert ended.stderr == "Error: the output cannot be written: No space left on device.\n"


@pytest.mark.slow
def test_the_shell_sees_exit_codes_and_a_sentence(tmp_path: Path) -> None:
    good = process(COMMAND, "run", "--method=fedavg", *QUICK, "--store", tmp_path, "--json")
    assert (good.code, good.err) == (0, "")
    assert set(good.document) >= RESULT_KEYS
    bad = process(COMMAND, "run", "--method=fedpda", "--store", tmp_path)
    assert (bad.code, bad.out) == (2, "")
    assert bad.err == "Error: There is no method 'fedpda'; did you mean 'feddpa'?\n"


def test_ctrl_c_names_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("sordino.federation.server.Server.ask", interrupt)
        outcome = command("run", "--method=dp-fedavg", *QUICK, "--store", tmp_path, "--json")
    assert outcome.code == 130
    assert outcome.err == f"Stopped. `sordino resume dp-fedavg-digits-1 --store {tmp_path}` takes the run up.\n"
    monkeypatch.setattr("sordino.experiment.prepare.prepare", interrupt)
    outcome = command("run", *QUICK, "--store", tmp_path, "--json")
    assert (outcome.code, outcome.err) == (130, "Stopped: no run was under way.\n")


def test_notes_are_told_before_the_run(tmp_path: Path) -> None:
    """A person reads them before the first round, and not once more after the last; a script finds them in the JSON."""
    quick = [one for one in QUICK if not one.startswith("--set=batch")]
    given = (*quick, "--method=adadp-cfl", "--epsilon=1", "--set=batch=1000", f"--store={tmp_path}")
    outcome = command("run", *given)
    assert outcome.code == 0, outcome
    assert outcome.out.index("C stays fixed") < outcome.out.index("accuracy")
    assert outcome.out.count("C stays fixed") == 1
    assert any("C stays fixed" in note for note in command("run", *given, "--json").document["notes"])


def test_a_curve_is_fitted_with_partition_delta_workers_and_progress(tmp_path: Path) -> None:
    grid = ("--epsilons=2,4,8", "--clips=0.5", "--clients=4", "--rounds=1", "--set=epochs=1", "--set=batch=1000")
    more = ("--partition=dirichlet:5", "--delta=1e-6", "--workers=1", f"--store={tmp_path / 'store'}")
    outcome = command("curve", "fit", tmp_path / "curve.json", *grid, *more)
    assert outcome.code == 0, outcome
    assert "3 simulations: round 3/3" in outcome.err
    assert "best threshold 0.5, accuracy" in outcome.err
    assert "curve on epsilon 2 to 8, on 3 points, in " in outcome.out
    assert "quadratic curve, R^2 = 0.9806" in command("curve", "show", "mnist").out
    kept = [row.configuration for row in Store(tmp_path / "store").all()]
    assert {(row["partition"], row["delta"], row["workers"]) for row in kept} == {("dirichlet:5", 1e-6, 1)}


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As in `sordino explain epsilon | head`: rich turns the closed pipe into a SystemExit."""
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "sordino", "explain", "epsilon"], stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")
