"""The gate and the ledger around a Flower app: its code trains, and only what is paid for leaves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from grids import InMemoryGrid, app_sites, grid_of

from sordino import cli
from sordino.deploy.app import METHOD
from sordino.deploy.protocol import wire
from sordino.deploy.server import coordinator
from sordino.deploy.site.judging import judge_site
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.rules import read_rules
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.deploy.terms import terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.flower.messages import unwrap, wrap
from sordino.flower.mod import ArrayLayout, GridCarrier, PrivateStrategy, SiteMod, flatten
from sordino.store.store import Store

CLIP, SITES, DELTA, NOISE = 0.5, 3, 1e-5, 0.2
SHAPES = ((30, 10), (10,))
SIZE = 310


def arrays(value: float = 0.0) -> ArrayRecord:
    return ArrayRecord([np.full(shape, value, np.float32) for shape in SHAPES])


def app_that(train: Any) -> ClientApp:
    """An app whose nodes train with a function of the arrays, the settings and the node's number."""
    app = ClientApp(mods=[SiteMod()])

    @app.train()
    def trained(message: Message, context: Context) -> Message:
        given = message.content["arrays"].to_numpy_ndarrays()
        found = train(given, message.content["config"], context.node_config["partition-id"])
        content = {"arrays": ArrayRecord(found), "metrics": MetricRecord({"num-examples": 7, "loss": 3.5})}
        return Message(RecordDict(content), reply_to=message)

    return app


def moved(given: list[np.ndarray], config: ConfigRecord, node: int) -> list[np.ndarray]:
    """Far more than the clip, in one direction."""
    return [array + np.float32(10.0) for array in given]


def along_diagonal(change: torch.Tensor) -> float:
    """Length of a change in the direction in which all numbers grow alike."""
    return float(change.sum()) / math.sqrt(SIZE)


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    found = []
    for number in range(SITES):
        path = tmp_path / f"records-{number}.dat"
        path.write_bytes(bytes([number] * 100))
        found.append(path)
    return found


def strategy(members: Any, folder: Path, inner: Any = None, **given: Any) -> PrivateStrategy:
    options = {"clip": CLIP, "noise_multiplier": NOISE, "delta": DELTA, "store": folder / "store"} | given
    inner = FedAvg(min_train_nodes=SITES, min_available_nodes=SITES) if inner is None else inner
    return PrivateStrategy(inner, members, tell=lambda sentence: None, **options)


def test_updates_are_clipped_noised_summed_and_charged(tmp_path: Path, records: list[Path]) -> None:
    members, folders = app_sites(tmp_path / "sites", records)
    seen: list[dict[str, Any]] = []

    with grid_of(app_that(moved), folders, records) as grid:

        def watch(node: int, message: Message) -> None:
            asked = wire.unpack(unwrap(message))
            if asked["kind"] == "work":
                reply = grid.app(message, grid.contexts[node])
                assert len(reply.content.metric_records) == len(reply.content.array_records) == 0
                seen.append(wire.unpack(unwrap(reply)))
                return reply
            return None

        grid.fault = watch
        made = strategy(members, tmp_path)
        result = made.start(grid, arrays(), num_rounds=2, train_config=ConfigRecord({"rate": 0.5}))
    change = flatten(result.arrays)
    # Each site wants to go far along the diagonal: a round's mean update has the clip's length, and a little noise.
    deviation = NOISE * CLIP / SITES * math.sqrt(2)
    assert abs(along_diagonal(change) - 2 * CLIP) < 5 * deviation
    assert float((change - change.mean()).norm()) == pytest.approx(deviation * math.sqrt(SIZE), rel=0.2)
    # What a site sends is masked: it tells neither its update nor its metrics.
    answers = [reply for reply in seen if reply["ok"]]
    assert len(answers) == 2 * SITES
    for reply in answers:
        assert set(reply) == {"ok", "head", "vector", "shares"}
        assert np.abs(reply["vector"].astype(np.int64) - 2**31).mean() == pytest.approx(2**30, rel=0.1)
    found = made.summary_of_run
    for folder in folders:
        with SiteLedger(folder) as ledger:
            assert sum(entry.kind == "release" for entry in ledger.entries()) == 2
        assert status(folder)["spent"]["outsider"] == pytest.approx(found.epsilon["outsider"], rel=1e-6)
    assert found.epsilon["outsider"] < found.epsilon["peer"] < (found.epsilon["server"] or math.inf)


def test_an_app_that_learns_nothing_sends_noise_alone(tmp_path: Path, records: list[Path]) -> None:
    members, folders = app_sites(tmp_path / "sites", records)
    with grid_of(app_that(lambda given, config, node: given), folders, records) as grid:
        result = strategy(members, tmp_path).start(
            grid, arrays(3.0), num_rounds=1, train_config=ConfigRecord({"rate": 0.5})
        )
    assert abs(along_diagonal(flatten(result.arrays) - 3.0)) < 5 * NOISE * CLIP / SITES


def test_epsilon_is_that_of_the_native_method(tmp_path: Path, records: list[Path]) -> None:
    """The same noise and the same cost as dp-fedavg of a network with as many parameters."""
    members, _ = app_sites(tmp_path / "sites", records)
    made = strategy(members, tmp_path, epsilon=5.0, noise_multiplier=None)
    ours = terms_of(made.experiment(ArrayLayout.of(arrays()), 4))
    declared = {"clients": SITES, "shape": [30], "labels": [str(one) for one in range(10)], "rounds": 4}
    common = {"epsilon": 5.0, "delta": DELTA, "model": "logistic", "method": "dp-fedavg", "set": {"clip": CLIP}}
    native = terms_of(Experiment.make(declared | common))
    assert native.learner.layout.size == ours.learner.layout.size == SIZE
    assert ours.allowance.noise == native.allowance.noise
    assert ours.shares == native.shares == SITES


def test_the_strategy_s_own_rule_moves_the_model(tmp_path: Path, records: list[Path]) -> None:
    members, folders = app_sites(tmp_path / "sites", records)
    inner = FedAdam(min_train_nodes=SITES, min_available_nodes=SITES, eta=0.25)
    with grid_of(app_that(moved), folders, records) as grid:
        result = strategy(members, tmp_path, inner).start(grid, arrays(), num_rounds=1)
    # Whatever the mean's noise, Adam's first step is nearly as long in all directions; plain averaging would go 0.03.
    assert 0.1 < float(flatten(result.arrays).abs().median()) < 0.2


def test_settings_reach_the_app_and_its_own_errors_leave_noise_alone(tmp_path: Path, records: list[Path]) -> None:
    members, folders = app_sites(tmp_path / "sites", records)
    met: list[tuple[int, float, int]] = []

    def train(given: list[np.ndarray], config: ConfigRecord, node: int) -> list[np.ndarray]:
        met.append((node, float(config["rate"]), int(config["server-round"])))
        if node == 1:
            raise ValueError("patient 4711 is missing")
        return [array + (np.nan if node == 2 else 10.0) for array in given]

    with grid_of(app_that(train), folders, records) as grid:
        leaked = []

        def watch(node: int, message: Message) -> Message:
            reply = grid.app(message, grid.contexts[node])
            leaked.append(unwrap(reply))
            return reply

        grid.fault = watch
        result = strategy(members, tmp_path).start(
            grid, arrays(), num_rounds=1, train_config=ConfigRecord({"rate": 0.5})
        )
    assert sorted(met) == [(0, 0.5, 1), (1, 0.5, 1), (2, 0.5, 1)]
    assert not any(b"4711" in one for one in leaked)
    assert "4711" in (folders[1] / "site.log").read_text()
    # Of three sites one has sent its clipped update; the others contribute their noise.
    assert abs(along_diagonal(flatten(result.arrays)) - CLIP / SITES) < 5 * NOISE * CLIP / SITES


def test_a_budget_over_all_runs_ends_with_a_refusal(tmp_path: Path, records: list[Path]) -> None:
    members, folders = app_sites(tmp_path / "sites", records, max_epsilon=30.0, max_delta=DELTA)
    with grid_of(app_that(moved), folders, records) as grid:
        strategy(members, tmp_path, noise_multiplier=None, epsilon=20.0).start(grid, arrays(), num_rounds=1)
        spent = [status(folder)["spent"]["outsider"] for folder in folders]
        assert all(10 < one <= 20 for one in spent)
        second = strategy(members, tmp_path, noise_multiplier=None, epsilon=25.0)
        result = second.start(grid, arrays(), num_rounds=1)
        assert not flatten(result.arrays).any()
        assert any("too few sites had budget left" in note for note in second.summary_of_run.notes)
        assert [status(folder)["spent"]["outsider"] for folder in folders] == spent


def test_what_no_private_strategy_asks_for_does_not_leave(tmp_path: Path, records: list[Path]) -> None:
    """A server without Sordino, or one that lies, gets no update from a node with the mod."""
    _, folders = app_sites(tmp_path / "sites", records)
    with grid_of(app_that(moved), folders, records) as grid:
        config = ConfigRecord({"rate": 0.5})
        for message in FedAvg(min_available_nodes=SITES).configure_train(1, arrays(), config, grid):
            (name,) = grid.push_messages([message])
            (reply,) = grid.pull_messages([name])
            assert reply.has_error()


def test_a_site_without_its_app_refuses(tmp_path: Path, records: list[Path]) -> None:
    members, folders = app_sites(tmp_path / "sites", records)
    opened = [Site.open(folder) for folder in folders]
    try:
        from sordino.deploy.protocol.carrier import InProcessCarrier
        from sordino.deploy.server.trips import Deadlines
        from sordino.store.store import Store

        told: list[str] = []
        experiment = strategy(members, tmp_path).experiment(ArrayLayout.of(arrays()), 1)
        quick = Deadlines(hello=0.0, work=1.0, open=0.2, attempts=1)
        with pytest.raises(UserError):
            coordinator.start(
                experiment, members, InProcessCarrier(opened), Store(tmp_path / "store"), None, told.append, quick
            )
        assert any("rules do not allow this experiment" in one for one in told)
    finally:
        for site in opened:
            site.close()


def test_the_owner_of_an_app_s_site_sees_what_it_spent(
    tmp_path: Path, records: list[Path], capsys: Any, monkeypatch: Any
) -> None:
    members, folders = app_sites(tmp_path / "sites", records)
    with grid_of(app_that(moved), folders, records) as grid:
        strategy(members, tmp_path).start(grid, arrays(), num_rounds=1)
    monkeypatch.chdir(tmp_path)
    for words in (["site", "status"], ["statement"], ["ledger"]):
        monkeypatch.setattr("sys.argv", ["sordino", *words, str(folders[0]), "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        assert json.loads(capsys.readouterr().out)
    with pytest.raises(UserError, match="Only the app"):
        judge_site(folders[0])


def test_a_site_for_an_app_is_made_without_a_look_at_its_records(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "records.dat").write_bytes(bytes(100))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sordino", "site", "init", "--app", "--name", "a", "--data", "records.dat"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert read_rules(tmp_path / "a").rules.methods == (METHOD,)


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.complex64])
def test_arrays_of_which_there_is_no_noisy_mean_are_refused(kind: type) -> None:
    with pytest.raises(UserError, match="no noisy mean"):
        ArrayLayout.of(ArrayRecord([np.zeros(3, kind)]))


def test_arrays_keep_their_names_shapes_and_types() -> None:
    from flwr.app import Array

    record = ArrayRecord({"a.b": Array(np.ones((2, 3))), "c": Array(np.zeros((), np.float16))})
    layout = ArrayLayout.of(record)
    assert ArrayLayout.told(wire.unpack(wire.pack(layout.message()))) == layout
    again = layout.record(flatten(record))
    assert [(name, one.numpy().dtype, one.numpy().shape) for name, one in again.items()] == [
        ("a.b", np.float64, (2, 3)),
        ("c", np.float16, ()),
    ]


def test_nodes_are_told_the_same_or_nothing(tmp_path: Path, records: list[Path]) -> None:
    class Each(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            for message in super().configure_train(server_round, arrays, config, grid):
                message.content = RecordDict(
                    {"arrays": arrays, "config": ConfigRecord({"node": message.metadata.dst_node_id})}
                )
                yield message

    members, folders = app_sites(tmp_path / "sites", records)
    with grid_of(app_that(moved), folders, records) as grid:
        made = strategy(members, tmp_path, Each(min_available_nodes=SITES))
        with pytest.raises(UserError, match="different things"):
            made.start(grid, arrays(), num_rounds=1)
        with pytest.raises(UserError, match="metrics would leave bare"):
            made.start(grid, arrays(), num_rounds=1, evaluate_config=ConfigRecord())


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ([np.zeros(4)], "made other arrays"),
        ([np.zeros(shape[::-1]) for shape in SHAPES], "made other arrays"),
        ([np.full(shape, np.nan) for shape in SHAPES], "not finite"),
    ],
)
def test_a_strategy_s_model_is_one_that_nodes_can_train(
    tmp_path: Path, records: list[Path], made: list[np.ndarray], sentence: str
) -> None:
    class Strange(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return ArrayRecord(made), None

    members, folders = app_sites(tmp_path / "sites", records)
    with grid_of(app_that(moved), folders, records) as grid:
        inner = Strange(min_train_nodes=SITES, min_available_nodes=SITES)
        with pytest.raises(UserError, match=sentence):
            strategy(members, tmp_path, inner).start(
                grid, arrays(), num_rounds=2, train_config=ConfigRecord({"rate": 0.5})
            )


def test_a_run_is_taken_up_with_its_own_settings_alone(tmp_path: Path, records: list[Path]) -> None:
    """Sites answer as the run's terms say: a server that takes it up as another experiment would print its epsilon."""
    members, folders = app_sites(tmp_path / "sites", records)

    def stop(done: int, model: ArrayRecord) -> None:
        if done == 1:
            raise ZeroDivisionError

    given: dict[str, Any] = {"num_rounds": 3, "train_config": ConfigRecord({"rate": 0.5})}
    with grid_of(app_that(moved), folders, records) as grid:
        with pytest.raises(ZeroDivisionError):
            strategy(members, tmp_path).start(grid, arrays(), evaluate_fn=stop, **given)
        (row,) = Store(tmp_path / "store").all()
        with pytest.raises(UserError, match="its PrivateStrategy takes it up"):
            coordinator.resume(row.run, GridCarrier(grid), Store(tmp_path / "store"))
        for changed in ({"clip": 2 * CLIP}, {"noise_multiplier": 1.0}, {"colluders": 1}):
            with pytest.raises(UserError, match="other settings"):
                strategy(members, tmp_path, resume=row.run, **changed).start(grid, arrays(), **given)
        with pytest.raises(UserError, match="other settings"):
            strategy(members, tmp_path, resume=row.run).start(grid, arrays(), **given | {"num_rounds": 4})
        made = strategy(members, tmp_path, resume=row.run)
        result = made.start(grid, arrays(), **given)
    assert made.summary_of_run is not None
    assert made.summary_of_run.rounds_done == 3
    assert abs(along_diagonal(flatten(result.arrays)) - 3 * CLIP) < 5 * NOISE * CLIP / SITES * math.sqrt(3)
    for folder in folders:
        with SiteLedger(folder) as ledger:
            assert sum(entry.kind == "release" for entry in ledger.entries()) == 3


def test_the_grid_gives_up_nodes_that_do_not_answer() -> None:
    from sordino.deploy.protocol.carrier import Failure

    class Silent(InMemoryGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            return []

    with grid_of(ClientApp(), [], []):
        grid = Silent(ClientApp(), {10: Context(1, 10, {}, RecordDict(), {})})
        ((node, reply),) = GridCarrier(grid).trip({10: b"x"}, 0.05)
    assert node == 10
    assert isinstance(reply, Failure)


def test_a_message_s_head_carries_nothing_of_what_the_app_wrote_there(tmp_path: Path, records: list[Path]) -> None:
    """Replies take their heads from the message as it came, whatever the app does to it."""
    members, folders = app_sites(tmp_path / "sites", records)
    app = ClientApp(mods=[SiteMod()])

    @app.train()
    def trained(message: Message, context: Context) -> Message:
        message.metadata.group_id = "patient 4711"
        message.metadata.__dict__["_reply_to_message_id"] = "patient 4711"
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    heads: list[str] = []
    with grid_of(app, folders, records) as grid:

        def watch(node: int, message: Message) -> Message:
            reply = grid.app(message, grid.contexts[node])
            heads.append(str(vars(reply.metadata)))
            return reply

        grid.fault = watch
        strategy(members, tmp_path).start(grid, arrays(), num_rounds=1, train_config=ConfigRecord({"rate": 0.5}))
    assert len(heads) >= 3 * SITES
    assert not any("4711" in one for one in heads)


def test_a_site_that_does_not_open_tells_the_server_nothing(
    tmp_path: Path, records: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Flower sends the text of an exception to the server: names of files and what is wrong with a ledger stay here."""
    _, folders = app_sites(tmp_path / "sites", records)
    records[1].rename(tmp_path / "patient-4711.dat")
    (folders[2] / "site.toml").write_text("patient = 4711")
    told: list[str] = []
    with grid_of(app_that(moved), folders, records) as grid:
        grid.contexts[10].node_config.pop("sordino-site")

        def watch(node: int, message: Message) -> Message:
            reply = grid.app(message, grid.contexts[node])
            told.append(reply.error.reason)
            return reply

        grid.fault = watch
        grid.push_messages([asked(node) for node in grid.contexts])
    assert len(told) == SITES
    assert set(told) == {"This node cannot open its site: its own log says why."}
    assert "SORDINO_SITE" in caplog.text
    assert "records-1.dat" in caplog.text


def asked(node: int) -> Message:
    """Message of a server to a node."""
    content = wrap(wire.pack({"kind": "hello", "protocol": wire.PROTOCOL}))
    return Message(content, dst_node_id=node, message_type="train")


def test_an_app_s_mod_answers_no_message_but_those_that_train(tmp_path: Path, records: list[Path]) -> None:
    """Evaluation and queries of an app that is behind the mod as a whole let nothing out."""
    _, folders = app_sites(tmp_path / "sites", records)
    app, called = ClientApp(mods=[SiteMod()]), list[str]()

    @app.evaluate()
    def evaluated(message: Message, context: Context) -> Message:
        called.append("evaluate")
        return Message(RecordDict({"metrics": MetricRecord({"loss": 4711.0})}), reply_to=message)

    @app.query()
    def queried(message: Message, context: Context) -> Message:
        called.append("query")
        return Message(RecordDict({"metrics": MetricRecord({"loss": 4711.0})}), reply_to=message)

    with grid_of(app, folders, records) as grid:
        for kind in ("evaluate", "query"):
            for content in (RecordDict({"arrays": arrays()}), asked(10).content):
                (name,) = grid.push_messages([Message(content, dst_node_id=10, message_type=kind)])
                (reply,) = grid.pull_messages([name])
                assert reply.has_error()
    assert not called
