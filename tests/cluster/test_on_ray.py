"""Runs and studies on a Ray cluster of three nodes on this machine, one of which is killed in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import command

from sordino.cluster.connection import SETTINGS, Cluster, PerRun
from sordino.cluster.study import OnCluster
from sordino.cluster.team import host_on
from sordino.errors import Stopped
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import resume, start
from sordino.federation.rounds import RoundReport, RoundWatch
from sordino.store.importing import links_of
from sordino.store.store import Store
from sordino.study.compare import compare
from sordino.util.display import Silent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NODES = 3
KEYS: dict[str, Any] = {
    **{"clients": 24, "rounds": 4, "partition": "dirichlet:0.5", "participation": 0.5, "epsilon": 4},
    "set": {"epochs": 1, "batch": 64},
}
TIMES = ("seconds", "store", "picture")
"""Parts of the names of what differs between two documents of the same runs: times and places."""
METHODS = ["local", "dp-fedavg", "feddpa"]


class Nodes:
    """A cluster of small nodes; any of them can be killed."""

    def __init__(self) -> None:
        os.environ.update(SETTINGS)
        import ray
        from ray.cluster_utils import Cluster as Local

        self.ray = ray
        small: dict[str, Any] = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
        self._local = Local(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        self._nodes = [self._local.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(NODES)]
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address=self._local.address, runtime_env={"env_vars": {"PYTHONPATH": paths}}, **given)
        self.cluster = Cluster("auto", ray)

    def kill(self) -> None:
        """Kill one node, whatever it is doing."""
        self._local.remove_node(self._nodes.pop(), allow_graceful=False)

    def fill(self) -> None:
        """Bring the number of nodes back to what it was."""
        while len(self._nodes) < NODES:
            self._nodes.append(self._local.add_node(num_cpus=1, object_store_memory=100 * 2**20))

    def close(self) -> None:
        """Let no process of the cluster stay."""
        self.ray.shutdown()
        self._local.shutdown()


@pytest.fixture(scope="module")
def all_nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray")
    made = Nodes()
    yield made
    made.close()
    assert not ray_processes(os.getpid())


@pytest.fixture
def nodes(all_nodes: Nodes) -> Nodes:
    all_nodes.fill()
    return all_nodes


def ray_processes(parent: int) -> list[str]:
    """Command lines of Ray's servers among the processes that a process has started."""
    found = subprocess.run(["ps", "--ppid", str(parent), "-o", "args="], stdout=subprocess.PIPE, text=True, check=False)
    return [line for line in found.stdout.splitlines() if "raylet" in line or "gcs_server" in line]


def experiment(store: Path, **keys: Any) -> Experiment:
    return Experiment.make(KEYS | {"method": "feddpa"} | keys, {"store": store})


def contents(store: Path) -> list[Any]:
    """All that a store says of its runs but how long they took, and their models to the byte."""
    opened, found = Store(store), []
    for row in reversed(opened.all()):
        assert row.summary is not None
        assert row.models is not None
        summary = {key: value for key, value in row.summary.items() if key != "seconds"}
        curve = [{k: v for k, v in one.items() if k != "seconds"} for one in opened.curve(row.run)]
        ledger = [row.link(b"") for row in opened.ledger(row.run)]
        found.append([row.run, row.identity, row.people, summary, curve, ledger, row.models.digest])
    opened.close()
    return found


def once(action: Callable[[], None], at: int = 0) -> Callable[[Any], None]:
    """Function that does something the first time that a report of round `at` or a later one comes."""
    done: list[bool] = []

    def watch(report: Any) -> None:
        if report.round >= at and not done:
            done.append(True)
            action()

    return watch


@pytest.mark.parametrize("keys", [{}, {"method": "ditto-record"}, {"personal": "blend", "method": "ifca"}])
def test_a_run_on_three_nodes_has_the_bits_of_one_process(nodes: Nodes, tmp_path: Path, keys: dict[str, Any]) -> None:
    start(prepare(experiment(tmp_path / "here", workers=1, **keys)))
    host = host_on(nodes.cluster)
    start(prepare(experiment(tmp_path / "there", workers=1, **keys)), host=host)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_killed_node_changes_no_bit_of_a_run(nodes: Nodes, tmp_path: Path) -> None:
    start(prepare(experiment(tmp_path / "here", workers=1)))
    watch = RoundWatch(once(nodes.kill, at=1))
    start(prepare(experiment(tmp_path / "there", workers=1)), watch=watch, host=host_on(nodes.cluster))
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_run_goes_on_from_here_to_there_and_back(nodes: Nodes, tmp_path: Path) -> None:
    def stop(report: RoundReport) -> None:
        raise KeyboardInterrupt

    start(prepare(experiment(tmp_path / "here", workers=1)))
    store = Store(tmp_path / "there")
    with pytest.raises(Stopped):
        start(prepare(experiment(tmp_path / "there", workers=1)), store, RoundWatch(stop), host=host_on(nodes.cluster))
    (row,) = store.all()
    with pytest.raises(Stopped):
        resume(row.run, store, RoundWatch(stop))
    resume(row.run, store, host=host_on(nodes.cluster))
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


class Interrupting(Silent):
    """Display that does something when a run tells of its first round."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._watch = once(action)
        self.totals: list[int] = []

    def run(self, name: Any, rounds: int, configuration: Any = None) -> Any:
        telling = super().run(name, rounds, configuration)
        watch = self._watch

        class Told:
            blending, end = staticmethod(telling.blending), staticmethod(telling.end)

            def __call__(self, report: Any) -> None:
                watch(report)

        return Told()

    def total(self, done: int, runs: int) -> None:
        self.totals.append(done)


def study(store: Path, crew: Any = None, display: Any = None) -> Any:
    keys = {"clients": 8, "rounds": 12, "partition": "iid", "participation": 1.0}
    return compare(experiment(store, workers=1, **keys), METHODS, 2, display, crew=crew).document()


def test_a_study_with_a_killed_node_has_the_bits_of_one_process(nodes: Nodes, tmp_path: Path) -> None:
    expected = study(tmp_path / "here")
    display = Interrupting(nodes.kill)
    found = study(tmp_path / "there", OnCluster(nodes.cluster, PerRun()), display)
    assert cleaned(found) == cleaned(expected)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert display.totals[-1] == 6
    assert display.totals == sorted(display.totals)


def test_a_study_that_is_stopped_goes_on_where_it_was(nodes: Nodes, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Stopped, match="The same command goes on"):
        study(tmp_path / "there", OnCluster(nodes.cluster, PerRun()), Interrupting(interrupt))
    rows = Store(tmp_path / "there").all()
    assert rows
    assert {row.state for row in rows} <= {"stopped", "done"}
    opened = Store(tmp_path / "there")
    assert any(links_of(row, opened) for row in rows)  # what they were charged has come back
    assert not any(row.sent for row in rows if links_of(row, opened))
    found = study(tmp_path / "there", OnCluster(nodes.cluster, PerRun()))
    expected = study(tmp_path / "here")
    assert cleaned(found) == cleaned(expected)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_commands_on_a_cluster_print_what_they_print_without(tmp_path: Path) -> None:
    """In a process of their own, which starts a cluster, and ends it."""
    quick = ("--clients", "8", "--rounds", "2", "--partition", "iid", "--set", "epochs=1", "--json")
    for arguments in (
        ("run", "--method", "feddpa", "--workers", "2"),
        ("compare", "--methods", "local,dp-fedavg", "--seeds", "1"),
        ("audit", "--method", "dp-fedavg", "--tiers", "0,1", "--trials", "1000"),
    ):
        here = command(*arguments, *quick, "--store", tmp_path / arguments[0]).document
        words = [*arguments, *quick, "--cluster", "local:2", "--store", str(tmp_path / f"{arguments[0]}-there")]
        process = subprocess.run([sys.executable, "-m", "sordino", *words], stdout=subprocess.PIPE, check=True)
        assert cleaned(json_of(process.stdout)) == cleaned(here), arguments[0]


def json_of(output: bytes) -> Any:
    import json

    return json.loads(output.splitlines()[-1])


def cleaned(document: Any) -> Any:
    """A document without times and places."""
    if isinstance(document, dict):
        return {key: cleaned(one) for key, one in document.items() if not any(word in key for word in TIMES)}
    return [cleaned(one) for one in document] if isinstance(document, list) else document
