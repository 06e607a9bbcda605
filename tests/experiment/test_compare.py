"""Methods side by side: at equal epsilon, over seeds, with an honest verdict."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from helpers import QUICK, QUICK_KEYS, command

from sordino.errors import UserError
from sordino.experiment.compare import _verdicts, compare
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.store import Store
from sordino.server import RoundReport


def experiment(store: Path, **keys: Any) -> Experiment:
    return Experiment.make(QUICK_KEYS, {"store": store, "epsilon": 4}, keys)


def test_methods_are_compared_at_equal_epsilon(tmp_path: Path) -> None:
    found = compare(experiment(tmp_path), ["local", "dp-fedavg", "feddpa"], seeds=2)
    assert [row["method"] for row in found.rows] == ["local", "dp-fedavg", "feddpa"]
    assert [row["epsilon"]["outsider"] for row in found.rows] == pytest.approx([0, 4, 4], rel=1e-6)
    store = Store(tmp_path)
    assert len(store.all()) == 6
    for row in found.rows:
        results = [store.get(run).summary for run in row["runs"]]
        assert [result["seed"] for result in results if result] == [0, 1]
        personal = [result["accuracy"]["personal"] for result in results if result]
        assert row["accuracy"]["personal"]["mean"] == pytest.approx(statistics.mean(personal))
        assert row["accuracy"]["personal"]["spread"] == pytest.approx(statistics.stdev(personal))
        assert [len(curve) for curve in row["curves"]] == [2, 2]
    assert found.rows[0]["accuracy"]["global"] is None


def test_quantile_clipping_costs_no_more(tmp_path: Path) -> None:
    """The noised bits of adaptive clipping share the budget: the epsilon stays equal."""
    chosen = experiment(tmp_path, set={"clipping": "quantile"})
    found = compare(chosen, ["dp-fedavg", "feddpa"], seeds=1)
    assert [row["epsilon"]["outsider"] for row in found.rows] == pytest.approx([4, 4], rel=1e-6)


def test_a_second_comparison_takes_the_runs_of_the_store(tmp_path: Path) -> None:
    first = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=1)
    second = compare(experiment(tmp_path), ["local", "dp-fedavg"], seeds=2)
    assert [row["runs"][0] for row in second.rows] == [row["runs"][0] for row in first.rows]
    assert len(Store(tmp_path).all()) == 4


def test_a_stopped_run_is_resumed(tmp_path: Path) -> None:
    def watch(report: RoundReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compare(experiment(tmp_path), ["local"], seeds=1, watch=lambda name, seed: watch)
    found = compare(experiment(tmp_path), ["local"], seeds=1)
    (row,) = Store(tmp_path).all()
    assert found.rows[0]["runs"] == [row.run]
    assert row.state == "done"


def test_other_settings_are_other_runs(tmp_path: Path) -> None:
    compare(experiment(tmp_path), ["dp-fedavg"], seeds=1)
    compare(experiment(tmp_path, epsilon=5), ["dp-fedavg"], seeds=1)
    assert len(Store(tmp_path).all()) == 2


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


def row(method: str, accuracy: float, spread: float, epsilon: float | None, unit: str = "client") -> dict[str, Any]:
    return {
        "method": method,
        "unit": unit,
        "seeds": 3,
        "accuracy": {"personal": {"mean": accuracy, "spread": spread}},
        "epsilon": {"outsider": epsilon, "peer": epsilon, "server": None if epsilon is None else 10 * epsilon},
        "delta": 1e-5,
    }


def test_a_clear_winner() -> None:
    assert _verdicts([row("local", 0.80, 0.01, 0.0), row("feddpa", 0.90, 0.02, 8.0)], "outsider") == [
        "feddpa has the best personal accuracy, 90.0%, 10.0% above local: more than the spread over seeds."
    ]


def test_no_clear_winner() -> None:
    assert _verdicts([row("local", 0.80, 0.01, 0.0), row("feddpa", 0.81, 0.02, 8.0)], "outsider") == [
        "feddpa has the best personal accuracy, 81.0%, 1.0% above local: within the spread over seeds: no clear winner."
    ]


def test_a_federation_that_does_not_pay_is_told_so() -> None:
    rows = [row("local", 0.80, 0.01, 0.0), row("dp-fedavg", 0.5, 0.01, 8.0), row("feddpa", 0.7, 0.01, 8.0)]
    assert _verdicts(rows, "outsider") == [
        "local has the best personal accuracy, 80.0%, 10.0% above feddpa: more than the spread over seeds.",
        "dp-fedavg does not pay here: local training gives 80.0% without spending any privacy.",
        "feddpa does not pay here: local training gives 80.0% without spending any privacy.",
    ]


def test_unequal_epsilons_are_told() -> None:
    first, _ = _verdicts([row("dp-fedavg", 0.5, 0.01, 8.0), row("feddpa", 0.7, 0.01, 9.0)], "outsider")
    assert first == "The private methods are NOT at equal epsilon: dp-fedavg 8.00, feddpa 9.00."


def test_a_method_without_privacy_does_not_contend() -> None:
    rows = [row("fedavg", 0.99, 0.0, None), row("local", 0.80, 0.01, 0.0), row("feddpa", 0.9, 0.01, 8.0)]
    assert _verdicts(rows, "outsider")[0].startswith("feddpa has the best personal accuracy")
    assert _verdicts(rows[:1], "outsider") == []


def test_what_protects_clients_is_not_ranked_with_what_protects_records() -> None:
    rows = [
        row("local", 0.80, 0.01, 0.0),
        row("feddpa", 0.90, 0.02, 8.0),
        row("pac-dp", 0.99, 0.01, 4.0, "record"),
        row("dp-fedavg-record", 0.70, 0.01, 4.0, "record"),
    ]
    assert _verdicts(rows, "outsider") == [
        "Client-level and record-level methods are not ranked together: their epsilons protect other things.",
        "Protecting one client: feddpa has the best personal accuracy, 90.0%, 10.0% above local: more than the spread "
        "over seeds.",
        "Protecting one record: pac-dp has the best personal accuracy, 99.0%, 19.0% above local: more than the spread "
        "over seeds.",
        "Protecting one record: dp-fedavg-record does not pay here: local training gives 80.0% without spending any "
        "privacy.",
    ]


def test_methods_may_come_with_their_own_hyper_parameters(tmp_path: Path) -> None:
    from sordino.experiment.compare import contender, split_methods

    parts = split_methods("local, feddpa[tau=2,lambda1=0] ,dp-fedavg")
    assert parts == ["local", "feddpa[tau=2,lambda1=0]", "dp-fedavg"]
    assert contender(parts[1]) == ("feddpa", {"tau": 2, "lambda1": 0})
    with pytest.raises(UserError, match="not understood"):
        contender("feddpa[tau=2")


def test_one_seed_is_no_proof() -> None:
    rows = [row("local", 0.80, 0.0, 0.0) | {"seeds": 1}, row("feddpa", 0.90, 0.0, 8.0) | {"seeds": 1}]
    assert "from one seed" in _verdicts(rows, "outsider")[0]


def test_records_set_aside_for_one_method_are_set_aside_for_all(tmp_path: Path) -> None:
    from sordino.api import compare
    from sordino.experiment.store import Store

    keys = {"clients": 6, "rounds": 1, "store": tmp_path, "set": {"epochs": 1, "batch": 200}}
    compare(methods=["dp-fedavg", "acdp-pfsd"], seeds=1, **keys)
    assert {row.configuration["public"] for row in Store(tmp_path).all()} == {"default"}
