"""All of a cluster that needs no nodes: what options mean, what travels, and who computes what when workers die."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from helpers import QUICK_KEYS, command, refused

from sordino.cluster import node, packing, team
from sordino.cluster.connection import Cluster, PerRun, check, connected
from sordino.cluster.study import OnCluster, longest_first
from sordino.cluster.team import ClusterTeam, host_on
from sordino.errors import Stopped, UserError, WorkerError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import register, start
from sordino.federation import server
from sordino.federation.rounds import RoundWatch
from sordino.learning.network import Learner
from sordino.simulator.choice import why_not_on_cluster
from sordino.store.importing import links_of
from sordino.store.merging import alone, put
from sordino.store.store import Store
from sordino.study.sweep import Cell
from sordino.util.display import Silent

pytestmark = pytest.mark.usefixtures("one_thread")

KEYS: dict[str, Any] = QUICK_KEYS | {"method": "feddpa", "participation": 0.5, "rounds": 3, "engine": "one-by-one"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("cpus=2,gpus=0.5", PerRun(2, 0.5)), ("gpus=1", PerRun(1, 1)), ("cpus=0, gpus=1", PerRun(0, 1))],
)
def test_a_part_of_a_node_is_read(text: str, expected: PerRun) -> None:
    assert PerRun.read(text) == expected


@pytest.mark.parametrize("text", ["", "cpus", "cpus=two", "cpus=-1", "memory=3", "cpus=nan", "cpus=0"])
def test_a_part_of_a_node_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--per-run"):
        PerRun.read(text)


def test_room_is_counted_node_by_node() -> None:
    nodes = [{"CPU": 5.0}, {"CPU": 3.0, "GPU": 1.0}, {"memory": 1.0}]
    assert [PerRun(2).fits(one) for one in nodes] == [2, 1, 0]
    assert [PerRun(1, 0.5).fits(one) for one in nodes] == [0, 2, 0]
    there = SimpleNamespace(nodes=lambda: [{"Alive": place < 2, "Resources": one} for place, one in enumerate(nodes)])
    assert Cluster("auto", there).room(PerRun(2)) == 3
    with pytest.raises(UserError, match="No node of the cluster auto has 9 cores"):
        Cluster("auto", there).room(PerRun(9))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "local",
        "local:0",
        "local:many",
        "ray://",
        "ray://host",
        "ray://:1",
        "ray://host:a",
        "ray://host:70000",
        "tcp://host:1",
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="is no cluster"):
        check(address)


@pytest.mark.parametrize("words", [("run",), ("compare",), ("audit",), ("reproduce", "feddpa", "table-3")])
def test_without_ray_a_sentence_comes_before_any_work(tmp_path: Path, words: tuple[str, ...]) -> None:
    found = importlib.util.find_spec
    with mock.patch.object(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name)):
        told = refused(*words, "--cluster", "local:2", "--store", tmp_path / "store")
    assert told == 'A cluster needs Ray, which is not installed here: pip install "sordino[cluster]".'
    assert not (tmp_path / "store").exists()


class FakeRay(SimpleNamespace):
    """A Ray that starts and ends, and does something in between."""

    __spec__ = ModuleSpec("ray", None)  # what is installed is looked for by it

    def __init__(self, starting: Callable[[], object] = lambda: None, ending: Callable[[], object] = lambda: None):
        super().__init__(starting=starting, ending=ending, done=[])

    def is_initialized(self) -> bool:
        return False

    def init(self, **given: Any) -> None:
        self.starting()
        self.done.append("started")

    def shutdown(self) -> None:
        self.ending()
        self.done.append("ended")


def interrupt() -> None:
    """Press Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as at a terminal: tests in the background of a shell ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_ray_starts_or_ends_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted half way, Ray may crash at the end of the program, or swallow the interrupt."""
    for ray in (FakeRay(starting=interrupt), FakeRay(ending=interrupt)):
        monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt), connected("local:2"):
            assert ray.done == ["started"]
        assert ray.done == ["started", "ended"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_that_makes_ray_fail_is_told_as_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        interrupt()
        raise RuntimeError("a process of Ray has gone")

    monkeypatch.setitem(sys.modules, "ray", FakeRay(starting=fail))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), connected("local:2"):
        pytest.fail("nothing has started")


@pytest.mark.parametrize(
    ("address", "said", "told"),
    [
        (
            "auto",
            "Could not find any running Ray instance. Please specify the one by setting `--address` flag.",
            "No cluster runs on this machine (Could not find any running Ray instance): start one with `ray start",
        ),
        (
            "local:3",
            "Ray has failed\nto start",
            "No cluster of 3 cores can be started on this machine (Ray has failed): leave --cluster out",
        ),
    ],
)
def test_a_cluster_that_is_not_there_is_told_by_what_to_do(
    address: str, said: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Ray's advice on options that Sordino does not have."""

    def fail() -> None:
        raise ConnectionError(said)

    monkeypatch.setitem(sys.modules, "ray", FakeRay(starting=fail))  # type: ignore[arg-type]
    with pytest.raises(UserError) as refusal, connected(address):
        pytest.fail("there is none")
    assert str(refusal.value).startswith(told)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> None:
        interrupt()
        interrupt()
        pytest.fail("the second one was held back")

    ray = FakeRay(starting=hang)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), connected("local:2"):
        pytest.fail("nothing has started")
    assert ray.done == ["ended"]


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    assert "--per-run is for runs on a cluster" in refused("compare", "--per-run", "cpus=2", "--store", tmp_path)
    assert "--jobs is for this machine" in refused("compare", "--cluster=local:2", "--jobs=2", "--store", tmp_path)


def test_tensors_travel_as_arrays_and_come_back() -> None:
    pytest.importorskip("ray")
    whole = torch.arange(12.0).reshape(3, 4)
    value = {"t": whole, "rest": [whole.T, torch.ones(2, dtype=torch.bfloat16), np.arange(3), "text", torch.tensor(7)]}
    packed = packing.pack(value)
    assert sum(array.nbytes for array in packed.arrays) >= 2 * whole.nbytes
    assert len(packed.content) < 2000
    back = packing.unpack(packed)
    assert torch.equal(back["t"], whole)
    for one, other in zip(back["rest"], value["rest"], strict=True):
        assert (one == other).all() if hasattr(one, "all") else one == other
    parameter = packing.unpack(packing.pack(torch.nn.Linear(2, 2)))
    assert parameter.weight.requires_grad


class DiedError(Exception):
    """A worker of the stand-in died."""


class NoTaskError(Exception):
    """Never raised."""


class OneProcess:
    """Stand-in for Ray: actors live in this process, and answer when somebody waits for them."""

    def __init__(self, dies: Callable[[int], bool] = lambda call: False) -> None:
        self.exceptions = SimpleNamespace(RayError=DiedError, RayTaskError=NoTaskError, ActorDiedError=NoTaskError)
        self.calls, self.killed, self.started = 0, 0, 0
        self._dies = dies

    def nodes(self) -> list[Any]:
        return [{"Alive": True, "Resources": {"CPU": 3.0}}]

    def put(self, value: Any) -> Any:
        return value

    def remote(self, kind: Any) -> Any:
        def make(*arguments: Any) -> Any:
            self.started += 1
            return _Actor(self, kind(*arguments))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def wait(self, there: list[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        return there[-1:], there[:-1]  # the last first: nothing may depend on the order

    def get(self, reference: Any) -> Any:
        return reference()

    def kill(self, actor: Any) -> None:
        self.killed += 1

    def call(self, action: Callable[[], Any]) -> Any:
        self.calls += 1
        if self._dies(self.calls):
            raise DiedError
        return action()


class _Actor:
    def __init__(self, ray: OneProcess, worker: Any) -> None:
        def remote(name: str) -> Any:
            return SimpleNamespace(remote=lambda *given: lambda: ray.call(lambda: getattr(worker, name)(*given)))

        self.work, self.about = remote("work"), remote("about")


@pytest.fixture
def as_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values travel by Python's own pickling, so that Ray need not be loaded."""
    import copy

    monkeypatch.setattr(node, "pack", lambda value: packing.Packed(b"", [copy.deepcopy(value)]))
    monkeypatch.setattr(team, "pack", lambda value: packing.Packed(b"", [copy.deepcopy(value)]))
    monkeypatch.setattr(node, "unpack", lambda packed: packed.arrays[0])
    monkeypatch.setattr(team, "unpack", lambda packed: packed.arrays[0])
    monkeypatch.setattr(team, "prepared_for_nodes", lambda prepared: prepared)
    monkeypatch.setattr(node, "unpack_prepared", lambda prepared: prepared)


def experiment(store: Path, **keys: Any) -> Experiment:
    return Experiment.make(KEYS | keys, {"store": store})


def outcome(store: Path) -> list[Any]:
    (row,) = Store(store).all()
    assert row.summary is not None
    assert row.models is not None
    return [{key: value for key, value in row.summary.items() if key != "seconds"}, row.models.digest]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Any]]:
    """Outcome of a run on this machine alone, made once for each method."""
    known: dict[str, list[Any]] = {}

    def made(**keys: Any) -> list[Any]:
        store = tmp_path_factory.mktemp("here")
        if repr(keys) not in known:
            start(prepare(experiment(store, **keys)))
            known[repr(keys)] = outcome(store)
        return known[repr(keys)]

    return made


@pytest.mark.parametrize(
    "keys",
    [{}, {"method": "ditto"}, {"method": "dp-fedavg-record"}, {"personal": "blend"}, {"engine": "stacked"}],
    ids=lambda keys: "-".join(map(str, keys.values())) or "feddpa",
)
def test_workers_elsewhere_come_to_the_same_bits(
    tmp_path: Path, as_packed: None, here: Callable[..., list[Any]], keys: dict[str, Any]
) -> None:
    ray = OneProcess()
    start(prepare(experiment(tmp_path, **keys)), host=host_on(Cluster("auto", ray)))
    assert outcome(tmp_path) == here(**keys)
    assert ray.started == ray.killed == 3  # one for each core, and not for each client; none stays


def test_what_a_dead_worker_had_is_computed_again(
    tmp_path: Path, as_packed: None, here: Callable[..., list[Any]]
) -> None:
    ray = OneProcess(dies=lambda call: call % 5 == 0)
    start(prepare(experiment(tmp_path)), host=host_on(Cluster("auto", ray)))
    assert outcome(tmp_path) == here()
    assert ray.started > 3


def test_a_part_over_which_workers_keep_dying_ends_the_session(tmp_path: Path, as_packed: None) -> None:
    def die(self: Any, *arguments: Any) -> None:
        raise DiedError

    with (
        mock.patch.object(node.Worker, "work", die),
        pytest.raises(WorkerError, match="4 workers of the cluster died while they computed the same clients"),
    ):
        start(prepare(experiment(tmp_path)), host=host_on(Cluster("auto", OneProcess())))
    assert Store(tmp_path).all()[0].state == "stopped"


def test_nodes_of_another_kind_are_left_out(tmp_path: Path, as_packed: None, here: Callable[..., list[Any]]) -> None:
    """One of three workers would not compute bit-identical results: the others do its work. Where all are, nothing is
    computed."""
    kinds = iter([True, False, False])
    true = node.Worker.about

    def about(self: node.Worker) -> node.About:
        return node.About("odd", "x", "y") if next(kinds, False) else true(self)

    with mock.patch.object(node.Worker, "about", about):
        start(prepare(experiment(tmp_path / "one")), host=host_on(Cluster("auto", OneProcess())))
    assert outcome(tmp_path / "one") == here()
    with (
        mock.patch.object(node.Worker, "about", return_value=node.About("odd", node.VERSION, "other")),
        pytest.raises(UserError, match="The nodes odd are of another kind than this machine"),
    ):
        start(prepare(experiment(tmp_path / "all")), host=host_on(Cluster("auto", OneProcess())))
    assert Store(tmp_path / "all").all()[0].rounds_done == 0


def test_what_goes_wrong_there_is_raised_here_as_it_is(tmp_path: Path, as_packed: None) -> None:
    def fail(self: Learner, *arguments: Any) -> None:
        raise ZeroDivisionError("of its own")

    with (
        mock.patch.object(Learner, "gradient", fail),
        pytest.raises(ZeroDivisionError, match="of its own"),
    ):
        start(prepare(experiment(tmp_path)), host=host_on(Cluster("auto", OneProcess())))


def test_memory_is_sent_only_where_somebody_looks(tmp_path: Path, as_packed: None) -> None:
    lent: list[tuple[str, bool]] = []
    true = ClusterTeam._give

    def give(self: ClusterTeam, asked: Any, worker: Any, part: Any) -> None:
        lent.append((asked.kind, part.lends))
        true(self, asked, worker, part)

    with mock.patch.object(ClusterTeam, "_give", give):
        start(prepare(experiment(tmp_path, method="dp-fedavg")), host=host_on(Cluster("auto", OneProcess())))
    assert ("work", True) not in lent  # its clients begin with the server's model
    assert ("metrics", True) in lent  # and are judged by their own


def test_small_runs_keep_the_workers_of_this_machine(tmp_path: Path) -> None:
    """By sizes alone: ten clients' linear model on the digits is nothing, a thousand with a large one are much."""
    small = prepare(experiment(tmp_path))
    about = (small.method, small.learner, small.data)
    told = why_not_on_cluster(*about, small.schedule.cohort, "one-by-one")
    assert told is not None
    assert "`--workers N`" in told
    large = prepare(experiment(tmp_path, model="mlp", set={"model.hidden": 2000, "epochs": 50, "batch": 4}))
    assert why_not_on_cluster(large.method, large.learner, large.data, large.schedule.cohort, "one-by-one") is None


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_run_of_a_study_stops_there_and_comes_back(
    tmp_path: Path, here: Callable[..., list[Any]], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node does, in this process: it is stopped after its second round, comes back, and goes out again, with
    checkpoints, and with a journal alone."""
    pytest.importorskip("ray")
    monkeypatch.setattr(server, "SAVE_SECONDS", seconds)
    monkeypatch.setattr(node, "MESSAGE_SECONDS", 0.0)  # every round is told, however quick
    store, prepared = Store(tmp_path / "store"), prepare(experiment(tmp_path / "store"))
    run = register(prepared, store)
    packed, told = node.prepared_for_nodes(prepared), list[Any]()

    def tell(what: Any) -> bool:
        told.append(what)
        return len(told) == 2

    for attempt in range(3):
        with store.lock(run):
            folder = tmp_path / f"out-{attempt}"
            with alone(run, store, folder):
                pass
            store.send(run)
            if attempt == 1:  # lost with its node
                continue
            sent = node.make_run(packed, dict(node.read_files(folder)), run, tell)
            node.write_files(sent.files, tmp_path / f"back-{attempt}")
            put(Store(tmp_path / f"back-{attempt}").get(run), Store(tmp_path / f"back-{attempt}"), store, run)
        assert sent.stopped == (attempt == 0)
        assert store.get(run).rounds_done == (3 if attempt else int(seconds == 0))
        assert links_of(store.get(run), store)  # what it was charged has come back
        assert not store.get(run).sent
    assert [report.round for report in told] == ([0, 1, 1, 2] if seconds == 0 else [0, 1, 0, 1, 2])
    assert outcome(tmp_path / "store") == here()


def test_long_runs_are_sent_first_and_numbered_in_the_order_of_a_study(tmp_path: Path) -> None:
    cells = [
        Cell(method, {}, experiment(tmp_path, method=method, seed=seed, rounds=rounds))
        for method, seed, rounds in [("dp-fedavg", 0, 3), ("feddpa", 0, 3), ("dp-fedavg", 1, 3), ("feddpa", 1, 7)]
    ]
    sent = longest_first(cells)  # FedDPA passes over the records twice as often
    assert [place for place, _ in sent] == [3, 1, 0, 2]
    assert [cell.number for _, cell in sent] == [4, 2, 1, 3]
    assert [cell.number for _, cell in longest_first([replace(cells[0], number=9)])] == [9]


def test_a_run_that_was_sent_and_lost_counts_as_planned_and_begins_again(
    tmp_path: Path, here: Callable[..., list[Any]]
) -> None:
    from sordino.experiment.run import resume
    from sordino.store.spending import spending_of_run

    store, prepared = Store(tmp_path), prepare(experiment(tmp_path))
    run = register(prepared, store)
    assert not any(spending_of_run(store.get(run), store)["mu"])
    store.send(run)
    row = store.get(run)
    assert spending_of_run(row, store)["mu"] == (row.planned or {})["mu"]
    resume(run, store)
    assert outcome(tmp_path) == here()


def test_a_stopped_run_keeps_to_its_own_limit_over_runs_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that finds a stopped run with a limit takes it up only where runs since then have left room for it."""
    store, keys = Store(tmp_path), {"method": "dp-fedavg", "noise_multiplier": 2.0, "participation": 1.0}
    prepared = prepare(experiment(tmp_path, budget_over_runs=100.0, **keys))
    run = register(prepared, store)
    crew = OnCluster(Cluster("local:1", None), PerRun())
    given: list[str] = []
    monkeypatch.setattr(OnCluster, "_give", lambda self, way, store, mailbox: given.append(way.run) or way.held.close())
    cell = Cell("dp-fedavg", {}, experiment(tmp_path, **keys))
    crew._send(0, cell, Silent(), store, None)
    assert given == [run]
    start(prepare(experiment(tmp_path, **keys | {"noise_multiplier": 0.01, "seed": 1})), store)
    with pytest.raises(UserError, match="above the 100 of budget_over_runs"):
        crew._send(0, cell, Silent(), store, None)
    assert given == [run]


def test_a_small_run_asks_no_cluster(tmp_path: Path, here: Callable[..., list[Any]]) -> None:
    """Neither when it begins nor when it is taken up: nobody listens at this address."""
    pytest.importorskip("ray")

    def stop(report: Any) -> None:
        raise KeyboardInterrupt

    store, words = Store(tmp_path / "stopped"), ("--cluster", "ray://127.0.0.1:1", "--json")
    with pytest.raises(Stopped):
        start(prepare(experiment(tmp_path / "stopped", workers=None)), store, RoundWatch(stop))
    found = command("resume", store.all()[0].run, "--store", tmp_path / "stopped", *words)
    assert found.code == 0, found.err
    assert outcome(tmp_path / "stopped") == here()
    told = command("run", "--clients=8", "--rounds=1", "--explain", "--store", tmp_path / "run", *words).document
    assert "are not divided among the nodes of the cluster" in told["execution"][-1]
    asked = refused("run", "--clients=8", "--workers=2", "--store", tmp_path / "asked", *words[:2])
    assert asked.startswith("No cluster answers at ray://127.0.0.1:1 (Connection refused): start one there with ")


def test_nothing_but_the_cluster_loads_ray() -> None:
    source = Path(team.__file__).parent
    for path in source.glob("*.py"):
        top = [line for line in path.read_text().splitlines() if line.startswith(("import ray", "from ray"))]
        assert top == [], path
