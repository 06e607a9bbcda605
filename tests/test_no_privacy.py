"""Every method without privacy: nothing is clipped, nothing is noised, and epsilon is infinite, for everybody."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers import ALL, FOREMOST, QUICK, QUICK_KEYS, command, refused
from torch import nn

from sordino import run
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import carry_on, register
from sordino.federation.rounds import RoundReport
from sordino.learning.network import Batch, Learner
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.methods import find, names
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import plan_without_noise
from sordino.privacy.gate import Gate
from sordino.privacy.gradients import PrivateRecords, Units
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Average, Matrix, Number, Public, Release, Unprotected, Update, without_privacy
from sordino.privacy.sealed import Sealed
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.report.result import RunResult
from sordino.report.wording import UNPROTECTED
from sordino.store.run_summary import Summary
from sordino.store.spending import over_runs
from sordino.store.store import Store
from sordino.study.sweep import contender
from sordino.tasks import Classification
from sordino.testing import CHECKS
from sordino.testing.case import Case, OneRound

REASON = 'privacy = "none": everything leaves as it is, neither clipped nor noised'


def case_of(name: str, variant: str, folder: Path) -> Case:
    return Case(find(name)(variant=variant, privacy="none"), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_every_method_runs_and_its_epsilon_is_infinite(name: str, variant: str, tmp_path: Path) -> None:
    case = case_of(name, variant, tmp_path)
    prepared = case.prepared()
    summary, models = case.finished(prepared, tmp_path)
    assert all(torch.isfinite(rows).all() for rows in models.values())
    assert summary["privacy"] == "none"
    store = Store(tmp_path)
    rows = store.ledger(store.all()[0].run)
    if not rows:  # local training: nothing leaves
        assert summary["epsilon"] == dict.fromkeys(VIEWS, 0.0)
        return
    assert all((row.costs() == math.inf).all() for row in rows if not row.exposed), "a row that is not bare"
    assert summary["epsilon"] == dict.fromkeys(VIEWS)
    assert summary["attack_accuracy"] == dict.fromkeys(VIEWS, 1.0)
    noised = find(name)(variant=variant)  # type: ignore[arg-type]
    assert (REASON in summary["not_covered"]) == noised.is_private(), "the reason, once"


@pytest.mark.parametrize(("name", "variant"), [case for case in ALL if find(case[0]).unit == "client"])
def test_what_leaves_a_client_leaves_as_it_is(name: str, variant: str, tmp_path: Path) -> None:
    """Of any length, and twice the same: no bound and no noise; only what a mask leaves out is missing."""
    once = OneRound(case_of(name, variant, tmp_path).prepared(), tmp_path)
    for asked, release_name, release in once.releases():
        assert not release.private
        assert release.unit is None
        if release.state is None:
            rows = torch.full(asked.answer.values[release_name].shape, 1e6)
            passed = [
                once.gate.passes({release_name: release}, {release_name: rows}, number, asked.public)
                for number in (1000, 1001)
            ]
            first, second = (one.values[release_name] for one in passed)
            assert torch.equal(first, second)
            assert ((first == 1e6) | (first == 0)).all()
            assert (first == 1e6).any()


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FOREMOST)
def test_battery(name: str, check: Callable[[Case], None], tmp_path: Path) -> None:
    check(case_of(name, "sound", tmp_path))


def models_of(store: Path, **keys: Any) -> dict[str, torch.Tensor]:
    """Eight clients of 160 training records each: a power of two, so that weights are exact."""
    from safetensors.torch import load_file

    equal = {"records": 1600, "clients": 8, "partition": "iid", "model": "logistic", "rounds": 3, "workers": 1}
    opened = Store(store)
    prepared = prepare(Experiment.make(equal | {"store": store} | keys))
    assert len(set(prepared.data.train.sizes.tolist())) == 1
    name = register(prepared, opened)
    carry_on(prepared, opened, name)
    return load_file(opened.path(name) / "models.safetensors")


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_dp_fedavg_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    keys = {"engine": engine, "set": {"epochs": 2, "batch": 32, "optimizer": "adam"}}
    plain = models_of(tmp_path, method="fedavg", **keys)
    ours = models_of(tmp_path, method="dp-fedavg", privacy="none", **keys)
    assert plain.keys() == ours.keys()
    assert all(torch.equal(plain[key], ours[key]) for key in plain)
    noised = models_of(tmp_path, method="dp-fedavg", **keys)
    assert not torch.allclose(plain["global"], noised["global"], atol=0.01), "privacy makes a difference here"


def test_record_level_training_is_fedavg_where_a_batch_holds_all_records(tmp_path: Path) -> None:
    keys = {"set": {"epochs": 2, "batch": 160, "rate": 0.5}}
    plain = models_of(tmp_path, method="fedavg", **keys)
    ours = models_of(tmp_path, method="dp-fedavg-record", privacy="none", **keys)
    assert torch.allclose(plain["global"], ours["global"], atol=1e-5)


@pytest.mark.parametrize("name", ["update", "number", "average", "matrix"])
def test_releases_without_privacy_by_hand(name: str) -> None:
    public = Public({"clip": 0.5, "shared": torch.tensor([1.0, 0.0])}, clients=[0], layers=(2,))
    rows = torch.tensor([[3.0, 4.0]])
    right: dict[str, tuple[Release, Any, list[float]]] = {
        "update": (Update(clip="clip", at="shared"), rows, [3.0, 0.0]),
        "number": (Number(0.0, 1.0, share=0.1, entries=2), rows, [3.0, 4.0]),
        "average": (Average(0.0, 1.0), Sealed(torch.tensor([2.0, 5.0, math.nan]), "validation", "losses"), [3.5]),
        # Records are held to a norm of one: (3, 4) / 5 times itself.
        "matrix": (Matrix(share=0.2), Sealed(rows, "training", "projected records"), [0.36, 0.48, 0.48, 0.64]),
    }
    release, value, expected = right[name]
    (bare,) = without_privacy({name: release}).values()
    passed = Gate(Allowance(), Seeded(0, "identity")).passes({name: bare}, {name: value}, 0, public)
    assert passed.values[name].tolist() == [pytest.approx(expected, rel=1e-6)]
    assert bare.centre() == 0
    assert not bare.deviation(Allowance(), public).any()
    charge = bare.charge(Allowance(), public)
    assert (charge.sensitivity / charge.noise.clip(1e-300) > 1e200).all()
    assert charge.reason == REASON


def test_gradients_without_privacy_are_those_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(40, 6) * 3, torch.randint(0, 3, (40,))
    keeper, flat = Bookkeeper(Learner(module, Classification.numbered(10))), flatten(module)
    plan = plan_without_noise([40], torch.ones(1).numpy(), batch=40, epochs=1, turns=1)
    gate = Gate(Allowance(records=plan), Seeded(0, "identity"))
    exit = gate.gradients(0, 0, torch.tensor([1e-3]))
    data = PrivateRecords(Units(x, y), torch.zeros(40, dtype=torch.bool), keeper, exit)
    plain = keeper.learner.gradient(flat, Batch(x, y, y, None))
    assert torch.allclose(data.gradient(flat), plain, atol=1e-6)
    assert plain.norm() > 0.1, "the threshold would matter"
    assert (data.clip, data.deviation) == (pytest.approx(1e-3), 0.0)


@pytest.mark.parametrize("rule", ["fixed", "quantile", "median", "layer-wise", "ppo"])
def test_thresholds_still_run_and_some_move(rule: str, tmp_path: Path) -> None:
    seen: list[RoundReport] = []
    settings: dict[str, Any] = {"epochs": 1, "clipping": rule}
    if rule == "ppo":
        settings["clipping.reads"] = "metrics"
    keys = {**QUICK_KEYS, "rounds": 4, "privacy": "none", "method": "dp-fedavg", "model": "logistic"}
    found = run(**(keys | {"set": settings, "store": tmp_path}), watch=seen.append)
    assert found["epsilon"] == dict.fromkeys(VIEWS)
    clips = [None if report.clip is None else round(report.clip, 5) for report in seen]
    assert all(clip is not None and math.isfinite(clip) for clip in clips)
    assert (len(set(clips)) > 1) == (rule in ("quantile", "median")), "an agent has nothing to learn from"


@pytest.mark.parametrize("name", ["acdp-pfsd", "adadp-cfl", "dp-fedavg-record"])
@pytest.mark.parametrize("variant", ["sound", "paper"])
def test_no_records_are_set_aside_for_thresholds_that_have_no_effect(name: str, variant: str, tmp_path: Path) -> None:
    """Not for an agent's validation, and not as public ones: all 1,797 digits are the clients'."""
    keys = {"method": name, "variant": variant, "clients": 8, "partition": "iid", "store": tmp_path}
    settings = {"clipping": "percentile"} if name == "dp-fedavg-record" else {}
    without, noised = (
        prepare(Experiment.make({**keys, "privacy": privacy, "set": settings})) for privacy in ("none", "dp")
    )
    records = [sum(split.sizes.sum() for split in (one.data.train, one.data.test)) for one in (without, noised)]
    assert type(without.method.clipping).__name__ == "Fixed"  # type: ignore[attr-defined]
    assert without.public is None
    assert without.method.record_needs().held_out == 0
    assert records[0] == 1797
    if (name, variant) == ("acdp-pfsd", "sound"):
        assert records[1] < 1797, "the agent reads public records"
    if name == "dp-fedavg-record":
        assert noised.method.record_needs().held_out == 0.2


def test_notes_speak_of_noise_where_there_is_some(tmp_path: Path) -> None:
    def notes(name: str, **keys: Any) -> str:
        made = {"method": name, "clients": 6, "partition": "iid", "store": tmp_path}
        return " ".join(prepare(Experiment.make(made | keys)).notes)

    twice = {"set": {"epochs": 3}}
    assert "fair rival is dp-fedavg[epochs=6]" in notes("feddpa", **twice)
    assert "fair rival is fedavg[epochs=6]" in notes("feddpa", privacy="none", **twice)
    most = {"set": {"beta0": 0.99, "growth": 0.0}}
    assert "Eq. 11" in notes("fedglp-adp", **most)
    assert "Eq. 11" not in notes("fedglp-adp", privacy="none", **most)
    assert "No curve is given" in notes("pac-dp")
    for name in FOREMOST:
        told = notes(name, privacy="none")
        assert not any(word in told for word in ("nois", "clips", "budget", "agent")), told


@pytest.mark.parametrize("rule", ["ddpg", "fixed", "percentile", "quantile", "median", "dp-agr"])
def test_record_level_thresholds_still_run(rule: str, tmp_path: Path) -> None:
    keys = {**QUICK_KEYS, "privacy": "none", "method": "adadp-cfl", "model": "logistic", "store": tmp_path}
    found = run(**(keys | {"set": {"epochs": 1, "batch": 64, "clipping": rule}}))
    assert found["epsilon"] == dict.fromkeys(VIEWS)
    assert found["epsilon_clients"] == dict.fromkeys(("min", "median", "max"))
    assert found["accuracy"]["personal"] is not None


@pytest.mark.parametrize("curve_sets", ["thresholds", "weights"])
def test_a_curve_is_not_asked_for_budgets_that_nobody_has(curve_sets: str, tmp_path: Path) -> None:
    keys = {**QUICK_KEYS, "privacy": "none", "method": "pac-dp", "model": "logistic", "store": tmp_path}
    settings = {"epochs": 1, "curve": "mnist", "curve_sets": curve_sets}
    assert run(**(keys | {"set": settings}))["epsilon"] == dict.fromkeys(VIEWS)


@pytest.mark.parametrize("option", ["--privacy=none", "--set=privacy=none"])
def test_the_command_line_says_it_in_one_sentence(option: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('method = "dp-fedavg"\nepsilon = 8\n')  # a budget that the option makes useless
    shown = command("run", file, option, *QUICK, "--store", tmp_path)
    assert shown.code == 0, shown.err
    assert "(sound, without privacy)" in shown.out
    assert " ".join(shown.out.split()).count(REASON) == 1
    found = command("run", file, option, *QUICK, "--store", tmp_path, "--json").document
    assert found["epsilon"] == dict.fromkeys(VIEWS)
    assert found["noise_multiplier"] is None


def test_a_file_says_it_too(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('privacy = "none"\n')
    assert Experiment.read(file).build_method().privacy == "none"
    assert Experiment.read(file, {"privacy": "dp", "epsilon": 2}).build_method().privacy == "dp"
    assert "leave out either it or epsilon" in refused("run", file, "--epsilon=2")
    assert "leave out either it or noise_multiplier" in refused("run", "--privacy=none", "--noise-multiplier=2")
    assert "no noise to plan" in refused("plan", file)
    assert "it must be 'dp' or 'none'" in refused("run", "--privacy=no")


def test_it_stands_beside_private_rows_in_a_comparison(tmp_path: Path) -> None:
    base = Experiment.make({"epsilon": 8.0}, methods=["dp-fedavg"])
    beside = base.for_method(*contender("dp-fedavg[privacy=none,clip=1]"))
    assert (beside.privacy, beside.epsilon, beside.set) == ("none", None, {"clip": 1})
    assert base.for_method("dp-fedavg", {}).epsilon == 8


def test_totals_over_runs_become_infinite(tmp_path: Path) -> None:
    keys = {**QUICK_KEYS, "model": "logistic", "store": tmp_path}
    run(method="dp-fedavg", **keys)
    done = run(method="dp-fedavg", privacy="none", **keys)
    store = Store(tmp_path)
    people = store.get(done["run"]).people
    for unit in Unit:
        assert over_runs(store, people, unit, 1e-5)["epsilon"] == dict.fromkeys(VIEWS)
    with pytest.raises(UserError, match="infinite epsilon"):
        run(method="dp-fedavg", privacy="none", budget_over_runs=100, seed=1, **keys)


def test_the_same_method_with_privacy_declares_what_it_did() -> None:
    for name in names():
        method = find(name)()
        private = [release for step in method.steps().values() for release in step.values() if release.private]
        bare = find(name)(privacy="none").steps()
        wrapped = [release for step in bare.values() for release in step.values() if isinstance(release, Unprotected)]
        assert [release.of for release in wrapped] == private


def test_a_rule_that_is_no_hyper_parameter_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of one's own may keep a rule as an attribute of its class: there is no field to put another one into."""
    from sordino.experiment import hyperparameters
    from sordino.methods.local import Local
    from sordino.parts.record_thresholds import Quantile

    class Own(Local):
        """Its rule is its own affair."""

        clipping = Quantile()

    monkeypatch.setattr(hyperparameters, "find", lambda name: Own)
    assert hyperparameters.make_method("own", "sound", "none", {}).clipping == Quantile()  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [("--method=fedavg",), ("--method=dp-fedavg-record", "--privacy=none")])
def test_where_nothing_is_protected_no_text_says_what_is(options: tuple[str, ...], tmp_path: Path) -> None:
    """Not a run's, nor that of whoever looks at it later."""
    told = [command("run", *options, *QUICK, "--store", tmp_path).out]
    (row,) = Store(tmp_path).all()
    told.append(command("show", row.run, "--store", tmp_path).out)
    told.append(RunResult(cast(Summary, row.result))._repr_markdown_())
    for page in ("report", "statement"):
        written = tmp_path / f"{page}.html"
        assert command(page, row.run, "-o", written, "--store", tmp_path).code == 0
        told.append(written.read_text())
    for text in (" ".join(text.split()) for text in told):
        assert UNPROTECTED in text
        for promise in ("protects one", "protecting one", "figures protect", "planned", "noise holds", "over clients:"):
            assert promise not in text, promise
    assert "the noise added" not in told[-1]
    assert "Nothing of it is covered by noise." in told[-1]
    assert ("as it is, neither clipped nor noised; in a private run:" in told[-1]) == ("--privacy=none" in options)


def test_a_comparison_names_those_that_protect_nothing(tmp_path: Path) -> None:
    given = ("compare", "--methods=local,fedavg,dp-fedavg", "--seeds=1", *QUICK, "--store", tmp_path)
    told = " ".join(command(*given).out.split())
    assert f"{UNPROTECTED}: fedavg" in told
    assert "protecting one client: dp-fedavg " in told
    page = tmp_path / "page.html"
    assert command("report", tmp_path / "compare.json", "-o", page, "--store", tmp_path).code == 0
    for name, protects in {"fedavg": "nothing", "dp-fedavg": "one client"}.items():
        line = re.split(rf"<tr><td>{name}(?:\[[^<]*)?</td>", page.read_text())[1].split("</tr>")[0]
        assert f"<td>{protects}</td>" in line


def test_a_run_of_records_without_noise_is_not_said_to_protect_them(tmp_path: Path) -> None:
    keys = {**QUICK_KEYS, "model": "logistic", "store": tmp_path}
    run(method="dp-fedavg-record", privacy="none", **keys)
    people = run(method="dp-fedavg", **keys)["run"]
    store = Store(tmp_path)
    total = over_runs(store, store.get(people).people, Unit.CLIENT, 1e-5)
    assert (total["runs"], total["unprotected"]) == (2, 0)
