"""Sordino's gate and ledger around an existing Flower app: a client mod and a wrapper of a server's strategy.

The app's training code stays. At each node a `SiteMod` stands before all functions of the app: it calls the one that
trains, and lets out nothing but one clipped update with discrete noise of the site's own, masked where the sites' noise
is shared, after it was charged to the site's ledger and found within the rules of its `site.toml`. At the server a
`PrivateStrategy` wraps the app's strategy: sites are asked as in any deployment, and the strategy gets the mean of
their updates as if one node had replied.

    app = ClientApp(mods=[SiteMod()])

    @app.train()
    def train(message, context): ...

    strategy = PrivateStrategy(FedAvg(), roster="roster.toml", epsilon=8, delta=1e-5, clip=1.0)
    strategy.start(grid, initial_arrays, num_rounds=10)
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import ERROR
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from sordino.deploy.app import DECLARED, ConductedUpdate
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.protocol.roster import Member, read_roster
from sordino.deploy.server import coordinator
from sordino.deploy.server.coordinator import Script
from sordino.deploy.server.trips import Deadlines
from sordino.deploy.site.site import Site
from sordino.deploy.terms import terms_of
from sordino.errors import FAILURES, UserError
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.federation import message as messages
from sordino.federation.rounds import RoundWatch
from sordino.flower.messages import unwrap, wrap
from sordino.flower.node import NOT_OURS
from sordino.store.run_summary import Summary
from sordino.store.store import Store

SITE_KEY, SITE_VARIABLE = "sordino-site", "SORDINO_SITE"
"""Key of a node's configuration, and variable of the environment, that name the folder of its site."""
TRAIN = "train"
NOT_OPEN = Error(
    code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="This node cannot open its site: its own log says why."
)
POLL_SECONDS, SLOWEST_POLL = 0.02, 1.0
MARGIN_SECONDS = 10.0
"""Seconds by which a message outlives its trip."""
TOLD = ("names", "shapes", "types", "keys", "config")
"""Facts about the app's arrays in a question, besides their numbers."""


# ---- a node


class SiteMod:
    """A mod that lets a Sordino site answer in the place of the app, whose function only trains.

    It belongs before the app as a whole: a function without it, such as one that evaluates, answers any server bare.
    """

    def __init__(self, folder: Path | str | Callable[[Context], Path | str] | None = None) -> None:
        """Stand before a function that trains.

        Args:
            folder: The site's folder (`sordino site init --app`), or a function that finds it by a node's context. By
                default the node's configuration names it (`--node-config "sordino-site='/srv/site'"`), or SORDINO_SITE
                in the environment does.
        """
        self._folder = folder

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message of a `PrivateStrategy`; any other is refused, because what it asks for would leave bare."""
        content = unwrap(message) if message.metadata.message_type.partition(".")[0] == TRAIN else None
        if content is None:
            return Message(NOT_OURS, reply_to=message)
        # Before the app may write into the message, whose head a reply takes over.
        reply, refusal = Message(RecordDict(), reply_to=message), Message(NOT_OPEN, reply_to=message)
        try:
            site = _open_site(self._find(context))
        except FAILURES as error:  # Flower would send its text to the server
            log(ERROR, "%s", error, exc_info=not isinstance(error, UserError))
            return refusal
        site.context.train = _Training(message, context, call_next, torch.get_num_threads())
        try:
            reply.content = wrap(site.answer(content))
        finally:
            site.context.train = None
        return reply

    def _find(self, context: Context) -> Path:
        named: object = self._folder(context) if callable(self._folder) else self._folder
        named = named or context.node_config.get(SITE_KEY) or os.environ.get(SITE_VARIABLE)
        if not named:
            raise UserError(
                f"This node names no site: give its folder as {SITE_KEY} in the node's configuration, as "
                f"{SITE_VARIABLE} in the environment, or to SiteMod."
            )
        return Path(str(named))


_sites: dict[Path, Site] = {}
"""Sites that are open in this process. Opening one takes its lock, and other sites must confirm its ledger again."""


def _open_site(folder: Path) -> Site:
    where = folder.resolve()
    if where not in _sites:
        _sites[where] = Site.open(where)
    return _sites[where]


@atexit.register
def close_sites() -> None:
    """Close the sites that are open in this process."""
    while _sites:
        _sites.popitem()[1].close()


@dataclass(frozen=True)
class _Training:
    """The app's function that trains, as a site calls it."""

    asked: Message
    context: Context
    call_next: ClientAppCallable
    threads: int
    """Number of torch's threads that the app has by itself."""

    def __call__(self, told: messages.Message) -> Tensor:
        """Update of the app for a server's message."""
        layout, sent = ArrayLayout.told(told), told["global"]
        arrays, config = told["keys"]
        record = RecordDict({arrays: layout.record(sent), config: ConfigRecord(dict(told["config"]))})
        kept, before = self.asked.content, torch.get_num_threads()
        self.asked.content = record
        torch.set_num_threads(self.threads)
        try:
            reply = self.call_next(self.asked, self.context)
        finally:
            self.asked.content = kept
            torch.set_num_threads(before)
        if reply.has_error() or len(reply.content.array_records) != 1:
            raise ValueError("the app's reply does not hold one record of arrays")
        (found,) = reply.content.array_records.values()
        if ArrayLayout.of(found) != layout:
            raise ValueError("the app's reply does not hold the arrays that it was sent")
        return flatten(found) - sent


# ---- arrays


@dataclass(frozen=True)
class ArrayLayout:
    """Names, shapes and types of an app's arrays."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> ArrayLayout:
        """Layout of a record of arrays; arrays of whole numbers are refused."""
        arrays = [array.numpy() for array in record.values()]
        for name, array in zip(record, arrays, strict=True):
            if array.dtype.kind != "f":
                raise UserError(
                    f"The array {name!r} holds {array.dtype}, of which there is no noisy mean: send floating-point "
                    "arrays alone, as by leaving counters of batch normalization at the nodes."
                )
        return cls(tuple(record), tuple(one.shape for one in arrays), tuple(str(one.dtype) for one in arrays))

    @classmethod
    def told(cls, message: messages.Message) -> ArrayLayout:
        """Layout as a server's message tells it."""
        shapes = tuple(tuple(int(size) for size in shape) for shape in message["shapes"])
        return cls(tuple(message["names"]), shapes, tuple(message["types"]))

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each array."""
        return [int(np.prod(shape)) for shape in self.shapes]

    def message(self) -> dict[str, Any]:
        """Layout of the model, as the server's message describes it."""
        return {
            "names": list(self.names),
            "shapes": [list(shape) for shape in self.shapes],
            "types": list(self.types),
        }

    def record(self, flat: Tensor) -> ArrayRecord:
        """Record of arrays from one vector of all their entries."""
        parts = flat.detach().split(self.sizes)
        about = zip(self.names, parts, self.shapes, self.types, strict=True)
        return ArrayRecord({name: Array(part.numpy().reshape(shape).astype(kind)) for name, part, shape, kind in about})


def flatten(record: ArrayRecord) -> Tensor:
    """One float32 vector of all entries of a record's arrays."""
    return torch.from_numpy(np.concatenate([array.numpy().reshape(-1).astype(np.float32) for array in record.values()]))


# ---- the server


class GridCarrier:
    """Carries bytes to nodes over the grid of a Flower app."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[int]:
        """Nodes that can be reached now."""
        return list(self._grid.get_node_ids())

    def trip(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Failure]]:
        """Bring each node its request, and yield nodes with their answers or failures, for at most `seconds`."""
        until, pause = time.monotonic() + seconds, POLL_SECONDS
        sent = [
            Message(wrap(content), dst_node_id=node, message_type=TRAIN, ttl=seconds + MARGIN_SECONDS)
            for node, content in requests.items()
        ]
        names = list(self._grid.push_messages(sent))
        waiting = {name: node for name, node in zip(names, requests, strict=True) if name}
        for node in set(requests) - set(waiting.values()):
            yield node, Failure("it is not connected")
        while waiting and time.monotonic() < until:
            found = list(self._grid.pull_messages(list(waiting)))
            for reply in found:
                # Errors come from the SuperLink's own node: only the message they reply to shows whose they are.
                name = reply.metadata.reply_to_message_id
                if name in waiting:
                    content = unwrap(reply)
                    yield waiting.pop(name), Failure("it gave no answer of a site") if content is None else content
            pause = POLL_SECONDS if found else min(1.2 * pause, SLOWEST_POLL)
            if waiting:
                time.sleep(max(0.0, min(pause, until - time.monotonic())))
        for node in waiting.values():
            yield node, Failure("it did not answer in time")


@dataclass
class _Conductor:
    """The app's strategy, as a run's server calls it."""

    strategy: Strategy
    grid: Grid
    layout: ArrayLayout
    config: ConfigRecord
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None
    result: Result
    asked: Message | None = None

    def configure(self, round: int, model: Tensor) -> messages.Message:
        """Message of the strategy to nodes in a round: equal for all of them."""
        record = self.layout.record(model)
        made = list(self.strategy.configure_train(round + 1, record, ConfigRecord(dict(self.config)), self.grid))
        if not made:
            raise UserError(f"The strategy asks nobody to train in round {round + 1}.")
        first = made[0].content
        if len(first.array_records) != 1 or len(first.config_records) != 1:
            raise UserError("The strategy must send nodes one record of arrays and one of settings.")
        if any(one.content.config_records != first.config_records for one in made):
            raise UserError("The strategy tells nodes different things, but all sites must get the same question.")
        ((arrays, sent),) = first.array_records.items()
        ((key, config),) = first.config_records.items()
        if not torch.equal(flatten(sent), model):
            raise UserError("The strategy sends nodes other arrays than the model of the round.")
        self.asked = made[0]
        return {**self.layout.message(), "keys": [arrays, key], "config": dict(config)}

    def aggregate(self, round: int, model: Tensor, mean: Tensor) -> Tensor:
        """Model that the strategy makes of the sites' mean update, which comes as the reply of one node."""
        assert self.asked is not None
        (arrays,) = self.asked.content.array_records
        weight = MetricRecord({getattr(self.strategy, "weighted_by_key", "num-examples"): 1.0})
        content = RecordDict({arrays: self.layout.record(model + mean), "metrics": weight})
        found, _ = self.strategy.aggregate_train(round + 1, [Message(content, reply_to=self.asked)])
        if found is None:
            raise UserError(f"The strategy made no model of the mean update in round {round + 1}.")
        made = ArrayLayout.of(found)
        if (made.names, made.shapes) != (self.layout.names, self.layout.shapes):
            raise UserError(f"The strategy made other arrays in round {round + 1} than it was given.")
        if not flatten(found).isfinite().all():
            raise UserError(f"The strategy made a model in round {round + 1} that holds numbers which are not finite.")
        self.result.arrays = found
        if self.evaluate is not None:
            metrics = self.evaluate(round + 1, found)
            if metrics is not None:
                self.result.evaluate_metrics_serverapp[round + 1] = metrics
        return flatten(found)


class PrivateStrategy(Strategy):
    """A strategy whose nodes are Sordino's sites: it sees the mean of their clipped and noised updates, and no more."""

    def __init__(
        self,
        strategy: Strategy,
        roster: Path | str | Sequence[Member],
        clip: float,
        epsilon: float | None = None,
        delta: float = 1e-5,
        noise_multiplier: float | None = None,
        minimum_cohort: int | None = None,
        colluders: int = 0,
        store: Path | str = DEFAULT_STORE,
        tell: Callable[[str], None] = print,
        resume: str | None = None,
    ) -> None:
        """Wrap a strategy.

        Args:
            strategy: The app's strategy. Its `fraction_train` says how many sites are asked in a round; which ones is
                drawn by Sordino, and who trains with how many records is not told.
            roster: The sites (`sordino serve roster`), or the file that names them.
            clip: L2 norm to which each site's update is scaled down, over all arrays together.
            epsilon: Budget of the run, for the outsider. Either it or `noise_multiplier` is given.
            delta: Delta of that budget.
            noise_multiplier: Noise over the clipping threshold, in the sum.
            minimum_cohort: Number of sites that must answer; by default all that are asked.
            colluders: Number of sites that may work together with the server.
            store: Folder of the store that keeps the run (`sordino runs --store`).
            tell: Shows a sentence to the operator.
            resume: Name of a stopped run to take up.
        """
        super().__init__()
        self.strategy = strategy
        self.members = tuple(read_roster(Path(roster)) if isinstance(roster, str | Path) else roster)
        self.store, self.tell, self.resumed, self.clip = Path(store), tell, resume, clip
        self.summary_of_run: Summary | None = None
        """Summary of the run once it is over, with epsilon for each observer."""
        self._declared = {
            **{"clients": len(self.members), "epsilon": epsilon, "delta": delta},
            **{"noise_multiplier": noise_multiplier, "minimum_cohort": minimum_cohort, "colluders": colluders},
            "participation": getattr(strategy, "fraction_train", 1.0),
        }

    def experiment(self, layout: ArrayLayout, rounds: int) -> Experiment:
        """The run as an experiment, from which noise and cost follow."""
        given = {key: value for key, value in self._declared.items() if value is not None}
        sizes = ",".join(map(str, layout.sizes))
        settings = {"clip": self.clip, "model.sizes": sizes}
        return Experiment.make({**DECLARED, **given, "rounds": rounds, "set": settings, "store": self.store})

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds and return what Flower's strategies return. Arguments are those of `Strategy.start`.

        Nodes evaluate nothing: metrics would leave them without noise.
        """
        if evaluate_config is not None:
            raise UserError("Nodes do not evaluate, because metrics would leave bare: leave out evaluate_config.")
        layout, result = ArrayLayout.of(initial_arrays), Result(arrays=initial_arrays)
        experiment = self.experiment(layout, num_rounds)
        if evaluate_fn is not None and self.resumed is None:
            before = evaluate_fn(0, initial_arrays)
            if before is not None:
                result.evaluate_metrics_serverapp[0] = before
        config = ConfigRecord() if train_config is None else train_config
        conductor = _Conductor(self.strategy, grid, layout, config, evaluate_fn, result)
        method = terms_of(experiment).method
        script = Script(ConductedUpdate(**vars(method), conductor=conductor), flatten(initial_arrays))
        store, carrier, watch = Store(self.store), GridCarrier(grid), RoundWatch(lambda report: None)
        deadlines = replace(Deadlines(), work=timeout)
        if self.resumed is None:
            begin = coordinator.start
            found = begin(experiment, self.members, carrier, store, watch, self.tell, deadlines, script=script)
        else:
            self._check_same(experiment, self.resumed, store)
            found = coordinator.resume(self.resumed, carrier, store, watch, self.tell, deadlines, script)
        for note in found.notes:
            self.tell(note)
        self.summary_of_run = found
        return result

    def _check_same(self, experiment: Experiment, run: str, store: Store) -> None:
        """Refuse to take up a run with other settings than its own, by which its sites answer and noise was planned."""
        stored = coordinator.deployed_experiment(run, store)
        if terms_of(stored).identity != terms_of(experiment).identity:
            raise UserError(
                f"The run {run!r} was begun with other settings, or other arrays: give those that it was begun with, "
                "or leave out resume to begin a new one."
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody is asked but by `start`."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Nothing: replies of nodes are not read one by one."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody evaluates: metrics would leave bare."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: nobody evaluates."""
        return None

    def summary(self) -> None:
        """Log the wrapped strategy's summary."""
        self.strategy.summary()
