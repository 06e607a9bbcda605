"""Methods side by side: at equal epsilon, over seeds, with an honest verdict."""

from __future__ import annotations

import io
import re
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers import QUICK, QUICK_KEYS, command, refused

from sordino.errors import UserError, WorkerError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.store.merging import merge
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.study.compare import compare, compare_part, side_by_side
from sordino.study.run_cells import _hear, results_of
from sordino.study.sweep import Cell, Shard
from sordino.util.display import Silent


def experiment(store: Path, **keys: Any) -> Experiment:
    return Experiment.make(QUICK_KEYS, {"store": store, "epsilon": 4}, keys, methods=["dp-fedavg", "feddpa"])


def test_methods_are_compared_at_equal_epsilon(tmp_path: Path) -> None:
    found = compare(experiment(tmp_path), ["local", "dp-fedavg", "feddpa"], seeds=2)
    assert [row.method for row in found.rows] == ["local", "dp-fedavg", "feddpa"]
    assert [row.epsilon["outsider"] for row in found.rows] == pytest.approx([0, 4, 4], rel=1e-6)
    store = Store(tmp_path)
    assert len(store.all()) == 6
    for row in found.rows:
        results = [store.get(run).summary for run in row.runs]
        assert [result["seed"] for result in results if result] == [0, 1]
        personal = [result["accuracy"]["personal"] for result in results if result]
        assert row.accuracy["personal"].mean == pytest.approx(statistics.mean(personal))
        assert row.accuracy["personal"].spread == pytest.approx(statistics.stdev(personal))
        assert [len(curve) for curve in row.curves] == [2, 2]
    assert found.rows[0].accuracy["global"] is None


def test_the_figures_of_a_row_hold_for_each_of_its_seeds(tmp_path: Path) -> None:
    """What given noise costs, and delta where none is given, follow from the clients' sizes, which seeds deal."""
    keys: dict[str, Any] = {"partition": "dirichlet:0.3", "noise_multiplier": 1.0, "epsilon": None, "clients": 4}
    found = compare(experiment(tmp_path, **keys), ["dp-fedavg-record"], seeds=2)
    opened = Store(tmp_path)
    results = [cast(Summary, opened.get(run).result) for run in found.rows[0].runs]
    spent = [cast(float, result.epsilon["server"]) for result in results]
    assert spent[0] != spent[1]
    results[1] = replace(results[1], delta=3e-5, not_covered=["one", "two"])
    results[0] = replace(results[0], not_covered=["two"])
    (row,) = side_by_side({"dp-fedavg-record": results}, opened, "outsider").rows
    assert row.epsilon["server"] == max(spent)
    assert row.delta == 3e-5
    assert row.not_covered == ["two", "one"]


def test_quantile_clipping_costs_no_more(tmp_path: Path) -> None:
    """The noised bits of adaptive clipping share the budget: the epsilon stays equal."""
    chosen = experiment(tmp_path, set={"clipping": "quantile"})
    found = compare(chosen, ["dp-fedavg", "feddpa"], seeds=1)
    assert [row.epsilon["outsider"] for row in found.rows] == pytest.approx([4, 4], rel=1e-6)


def test_a_second_comparison_takes_the_runs_of_the_store(tmp_path: Path) -> None:
    first = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=1)
    second = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=2)
    assert [row.runs[0] for row in second.rows] == [row.runs[0] for row in first.rows]
    assert len(Store(tmp_path).all()) == 4


def test_a_stopped_run_is_resumed(tmp_path: Path) -> None:
    class Raising(Silent):
        def run(self, *about: Any) -> Any:
            return lambda report: 1 / 0

    with pytest.raises(ZeroDivisionError):
        compare(experiment(tmp_path), ["local"], seeds=1, display=Raising())
    found = compare(experiment(tmp_path), ["local"], seeds=1)
    (row,) = Store(tmp_path).all()
    assert found.rows[0].runs == [row.run]
    assert row.state == "done"


def test_other_settings_are_other_runs(tmp_path: Path) -> None:
    compare(experiment(tmp_path), ["dp-fedavg"], seeds=1)
    compare(experiment(tmp_path, epsilon=5), ["dp-fedavg"], seeds=1)
    assert len(Store(tmp_path).all()) == 2


def test_two_names_of_the_same_runs_are_shown_once(tmp_path: Path) -> None:
    """Where they differ at one point of a sweep, both are shown at all."""
    told: list[str] = []

    class Telling(Silent):
        def say(self, sentence: str) -> None:
            told.append(sentence)

    names = ["dp-fedavg[personal=own]", "local", "dp-fedavg", "dp-fedavg[clip=1]", "dp-fedavg[clip=1.0,epochs=1]"]
    found = compare(experiment(tmp_path), names, seeds=2, display=Telling())
    assert [row.method for row in found.rows] == [names[0], names[1], names[3]]
    assert [row.seeds for row in found.rows] == [2, 2, 2]
    assert told == [
        "dp-fedavg makes the same runs as dp-fedavg[personal=own]: the table shows them once.",
        "dp-fedavg[clip=1.0,epochs=1] makes the same runs as dp-fedavg[clip=1]: the table shows them once.",
    ]
    swept = compare(experiment(tmp_path), [names[2], names[3]], seeds=1, sweep={"clip": [0.3, 1]})
    assert [row.method for row in swept.rows] == [names[2], names[3]] * 2


def test_settings_reach_the_methods_that_know_them(tmp_path: Path) -> None:
    chosen = experiment(tmp_path, set={"tau": 0.1, "clip": 0.3, "dp-fedavg.clip": 0.7})
    compare(chosen, ["local", "dp-fedavg", "feddpa"], seeds=1)
    runs = {row.method: Experiment.make(row.configuration).build_method() for row in Store(tmp_path).all()}
    assert runs["local"].epochs == 1
    assert runs["dp-fedavg"].clip == 0.7  # type: ignore[attr-defined]
    assert (runs["feddpa"].clip, runs["feddpa"].tau) == (0.3, 0.1)  # type: ignore[attr-defined]


def test_equal_seeds_deal_equal_data(tmp_path: Path) -> None:
    chosen = experiment(tmp_path, partition="dirichlet:0.5")
    fingerprints = {
        prepare(chosen.model_copy(update={"method": name})).data.fingerprint for name in ("local", "dp-fedavg")
    }
    assert len(fingerprints) == 1


def test_the_command_prints_a_table_and_draws_curves(tmp_path: Path) -> None:
    arguments = ("compare", "--methods=local,dp-fedavg", "--seeds=1", *QUICK, "--epsilon=4", "--store", tmp_path)
    found = command(*arguments, "--json").document
    assert [row["method"] for row in found["rows"]] == ["local", "dp-fedavg"]
    for row in found["rows"]:
        assert set(row) >= {"accuracy", "epsilon", "seconds", "runs", "delta"}
        assert set(row["accuracy"]) == {"personal", "personal_worst", "start", "global"}
    assert Path(found["picture"]) == tmp_path / "compare.png"
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    shown = command(*arguments, "--picture", tmp_path / "other.png")
    assert shown.code == 0
    assert (tmp_path / "other.png").is_file()
    assert "dp-fedavg" in shown.out
    assert len(Store(tmp_path).all()) == 2
    for sentence in found["verdict"]:
        assert sentence in " ".join(shown.out.split())


def test_methods_may_come_with_their_own_hyper_parameters(tmp_path: Path) -> None:
    from sordino.study.sweep import contender, split_methods

    parts = split_methods("local, feddpa[tau=2,lambda1=0] ,dp-fedavg")
    assert parts == ["local", "feddpa[tau=2,lambda1=0]", "dp-fedavg"]
    assert contender(parts[1]) == ("feddpa", {"tau": 2, "lambda1": 0})
    with pytest.raises(UserError, match="not understood"):
        contender("feddpa[tau=2")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("pac-dp[budgets=1:0.5,2:0.5,clip=2]", {"budgets": "1:0.5,2:0.5", "clip": 2}),
        ("pac-dp[clip=2,budgets=1, 8 ,2]", {"budgets": "1,8,2", "clip": 2}),
        ('pac-dp[budgets="1:0.5,2:0.5",clip=2]', {"budgets": "1:0.5,2:0.5", "clip": 2}),
        ("pac-dp[clip=2,model.hidden=[64,32]]", {"clip": 2, "model.hidden": [64, 32]}),
        ("pac-dp[]", {}),
    ],
)
def test_a_value_inside_brackets_may_have_commas(text: str, settings: dict[str, object]) -> None:
    from sordino.study.sweep import contender, split_methods

    assert split_methods(f"local,{text},dp-fedavg") == ["local", text, "dp-fedavg"]
    assert contender(text) == ("pac-dp", settings)


@pytest.mark.parametrize("text", ["pac-dp[budgets]", "pac-dp[1:0.5,2:0.5]", "pac-dp[budgets=1:0.5,2:0.5"])
def test_brackets_that_name_no_key_are_told_as_they_were_written(text: str) -> None:
    from sordino.study.sweep import contender

    with pytest.raises(UserError, match=re.escape(f"{text!r} is not understood; write hyper-parameters as in")):
        contender(text)


def test_values_with_commas_are_gone_through_in_quotes() -> None:
    from sordino.study.sweep import values_of

    assert values_of('budgets="1:0.5,2:0.5","4:1"') == ("budgets", ["1:0.5,2:0.5", "4:1"])


def test_a_value_is_gone_through_once_however_it_is_written() -> None:
    from sordino.study.sweep import values_of

    with pytest.raises(UserError, match="names a value twice"):
        values_of("clip=1,1.0")


@pytest.mark.slow
def test_records_set_aside_for_one_method_are_set_aside_for_all(tmp_path: Path) -> None:
    from sordino.api import compare
    from sordino.store.store import Store

    keys = {"clients": 6, "rounds": 1, "store": tmp_path, "set": {"epochs": 1, "batch": 200}}
    compare(methods=["dp-fedavg", "acdp-pfsd"], seeds=1, **keys)
    assert {row.configuration["public"] for row in Store(tmp_path).all()} == {"default"}


def test_a_sweep_runs_once_what_does_not_depend_on_it(tmp_path: Path) -> None:
    """Two budgets, two methods: three runs, because training alone has no budget."""
    found = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=1, sweep={"epsilon": [1, 4]})
    assert [(row.method, row.at["epsilon"]) for row in found.rows] == [
        *(("local", 1), ("dp-fedavg", 1), ("local", 4), ("dp-fedavg", 4)),
    ]
    assert [row.epsilon["outsider"] for row in found.rows] == pytest.approx([0, 1, 0, 4], rel=1e-6)
    assert found.rows[0].runs == found.rows[2].runs
    assert len(Store(tmp_path).all()) == 3
    assert found.sweep == ["epsilon"]
    assert all(sentence.startswith("epsilon ") for sentence in found.verdict)


def test_any_key_and_any_hyper_parameter_is_gone_through(tmp_path: Path) -> None:
    sweep = {"clients": [4, 8], "clip": [0.1, 1.0]}
    found = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=1, sweep=sweep)
    assert len(found.rows) == 8
    kept = Store(tmp_path).all()
    assert len(kept) == 6  # training alone has no threshold
    assert {(row.configuration["clients"], row.configuration["set"].get("clip")) for row in kept} == {
        *((4, None), (8, None), (4, 0.1), (4, 1.0), (8, 0.1), (8, 1.0)),
    }


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"seed": [1, 2]}, "'seed' cannot be swept over"),
        ({"epsilom": [1, 2]}, "did you mean 'epsilon'"),
        ({"tau": [1, 2]}, "no hyper-parameter of these methods called 'tau'"),
        ({"epsilon": [0, 1]}, "epsilon cannot be 0"),
    ],
)
def test_a_sweep_that_cannot_be(sweep: dict[str, list[Any]], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=1, sweep=sweep)
    assert not list(tmp_path.glob("runs/*"))


def test_tuning_chooses_on_seeds_that_are_not_reported(tmp_path: Path) -> None:
    """A rate at which nothing is learned and one at which something is; both tries are paid for: two runs at epsilon 4
    are one of mu sqrt(2)."""
    from sordino.privacy.accounting.gaussian import epsilon_of, mu_of

    grid = {"rate": [1e-6, 0.3]}
    found = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=1, grid=grid)
    assert [row.method for row in found.rows] == ["local[rate=0.3]", "dp-fedavg[rate=0.3]"]
    assert [one.tries for one in found.tuned] == [2, 2]
    twice = epsilon_of(2**0.5 * mu_of(4, 1e-5), 1e-5)
    assert found.tuned[1].epsilon["outsider"] == pytest.approx(twice, rel=1e-6)
    assert found.tuned[0].epsilon["outsider"] == 0
    seeds = [(row.configuration["seed"], row.configuration["set"]["rate"]) for row in Store(tmp_path).all()]
    assert sorted(seeds) == [(0, 0.3), (0, 0.3), (1, 1e-6), (1, 1e-6), (1, 0.3), (1, 0.3)]


@pytest.mark.slow
def test_runs_side_by_side_give_the_same_numbers(tmp_path: Path) -> None:
    methods = ["local", "dp-fedavg"]
    alone = compare(experiment(tmp_path / "a"), methods, seeds=1)
    at_once = compare(experiment(tmp_path / "b"), methods, seeds=1, jobs=2)
    assert [row.runs for row in at_once.rows] == [["local-digits-1"], ["dp-fedavg-digits-2"]]
    for one, other in zip(alone.rows, at_once.rows, strict=True):
        assert one.accuracy == other.accuracy
        assert one.epsilon == other.epsilon
        figures = [[{**point, "run": "", "seconds": 0} for point in curve] for curve in one.curves]
        assert figures == [[{**point, "run": "", "seconds": 0} for point in curve] for curve in other.curves]


def test_a_process_that_ends_within_a_line_is_told(tmp_path: Path) -> None:
    job = SimpleNamespace(out=io.BytesIO(b'{"begun": "dp-fed'), cell=object(), telling=object())
    with pytest.raises(WorkerError, match="Give the same command again"):
        _hear(cast(Any, job), {}, Store(tmp_path))


@pytest.mark.slow
def test_runs_are_dealt_to_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices are made up; each run says where it would have been made, and the store knows it as the same."""
    dealt: list[tuple[str, int | None]] = []

    def noted(cells: Any, display: Any, jobs: int | None, experiment: Any, crew: Any) -> list[Summary]:
        assert crew is None
        dealt.extend((cell.experiment.device, jobs) for cell in cells)
        here = [replace(cell, experiment=cell.experiment.model_copy(update={"device": "cpu"})) for cell in cells]
        return results_of(here, display, 1, experiment)

    monkeypatch.setattr("sordino.study.compare.results_of", noted)
    monkeypatch.setattr("sordino.study.compare.check_device", lambda device: None)
    keys: dict[str, Any] = {"seeds": 2, "devices": ["cuda:0", "cuda:1"], "jobs": None}
    there = compare(experiment(tmp_path), ["local", "dp-fedavg"], **keys)
    assert dealt == [("cuda:0", 2), ("cuda:1", 2)] * 2
    monkeypatch.undo()
    here = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=2)
    assert [row.runs for row in here.rows] == [row.runs for row in there.rows]


def test_a_device_that_is_not_here_is_refused(tmp_path: Path) -> None:
    given = ("compare", "--methods=local", *QUICK, "--store", tmp_path / "store")
    assert "'cuda:7' cannot be used here" in refused(*given, "--devices=cpu,cuda:7")
    assert not list((tmp_path / "store").glob("runs/*"))


def test_a_mistake_in_a_run_side_by_side_is_a_sentence(tmp_path: Path) -> None:
    chosen = experiment(tmp_path, model="lenet")
    with pytest.raises(UserError, match="'lenet' needs images"):
        compare(chosen, ["local", "dp-fedavg"], seeds=1, jobs=2)


def test_two_classes_are_compared_by_the_area_under_the_curve_too(tmp_path: Path) -> None:
    """Where the outcome is rare accuracy says little: the table, the list of runs and their JSON have the AUC."""
    folder, random = tmp_path / "clinics", np.random.default_rng(0)
    folder.mkdir()
    for name in ("north", "south", "west"):
        x = random.normal(size=(80, 3)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=(x[:, 0] + random.normal(size=80) > 0).astype(int))
    given = ("--data", folder, "--rounds=1", "--store", tmp_path / "store", "--workers=1")
    found = command("compare", "--methods=local", "--seeds=2", *given, "--json").document
    stored = {row.run: row.summary for row in Store(tmp_path / "store").all()}
    for row in found["rows"]:
        each = [stored[run]["metrics"]["auc"]["mean"] for run in row["runs"]]  # type: ignore[index]
        assert row["auc"]["mean"] == pytest.approx(statistics.mean(each))
        assert row["auc"]["spread"] == pytest.approx(statistics.stdev(each))
    told = command("compare", "--methods=local", "--seeds=2", *given).out
    assert f"{found['rows'][0]['auc']['mean']:.3f}±" in told
    listed = command("runs", "--store", tmp_path / "store", "--json").document
    assert {one["run"]: one["auc"] for one in listed} == {
        run: summary["metrics"]["auc"]["mean"]  # type: ignore[index]
        for run, summary in stored.items()
    }
    assert f"{listed[0]['auc']:.3f}" in command("runs", "--store", tmp_path / "store").out


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1/1", [1, 2, 3, 4, 5]), ("1/2", [1, 2]), ("2/2", [3, 4, 5]), ("3/3", [4, 5]), ("1/6", []), ("6/6", [5])],
)
def test_parts_of_a_study_are_alike_in_size_and_numbered_as_a_whole(text: str, expected: list[int]) -> None:
    cells = [Cell("local", {}, Experiment.make({"method": "local", "seed": seed})) for seed in range(5)]
    found = Shard.read(text).part(cells)
    assert [cell.number for cell in found] == expected
    assert [cell.experiment.seed + 1 for cell in found] == expected


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no part of a study"):
        Shard.read(text)


def test_parts_in_several_stores_make_the_comparison_of_one(tmp_path: Path) -> None:
    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_times(one) for key, one in value.items() if "seconds" not in key}
        return [without_times(one) for one in value] if isinstance(value, list) else value

    methods, parts = ["local", "dp-fedavg", "dp-fedavg[clip=1]"], [tmp_path / f"part-{place}" for place in (1, 2)]
    for place, store in enumerate(parts):
        part = compare_part(experiment(store), methods, 2, Shard(place + 1, 2))
        assert (part.cells, len(part.runs)) == (6, 3)
    merge(parts[::-1], tmp_path / "merged")
    merged = compare(experiment(tmp_path / "merged"), methods, 2)
    whole = compare(experiment(tmp_path / "whole"), methods, 2)
    assert without_times(merged.document()) == without_times(whole.document())
    for row in Store(tmp_path / "whole").all():
        assert row.models is not None
        other = Store(tmp_path / "merged").get(row.run).models
        assert other is not None
        assert other.digest == row.models.digest


def test_what_a_part_cannot_do_is_refused(tmp_path: Path) -> None:
    for more in (["--tune", "rate=0.1,1"], ["--latex"], ["--csv", tmp_path / "a.csv"]):
        assert "--shard makes runs, and no table" in refused("compare", "--shard=1/2", *more, "--store", tmp_path)
    limited = ("compare", "--shard=1/2", "--budget-over-runs=9", *QUICK, "--methods=dp-fedavg", "--store", tmp_path)
    assert "cannot watch over `budget_over_runs`" in refused(*limited)
    found = command("compare", "--shard=1/2", "--methods=local", "--seeds=2", *QUICK, "--store", tmp_path, "--json")
    assert found.document["runs"] == ["local-digits-1"]
