"""A grid of Flower within this process: nodes answer as soon as they are asked, from contexts of their own."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from sordino.deploy.app import METHOD, NETWORK
from sordino.deploy.protocol.roster import Member, roster_toml
from sordino.deploy.site.site import Site
from sordino.flower import mod

RUN, SERVER = 1, 1
Fault = Callable[[int, Message], Message | None]


@dataclass
class InMemoryGrid(Grid):
    """Nodes with an app; a `fault` may answer a node's message in its place, and sees all of them."""

    app: ClientApp
    contexts: dict[int, Context]
    fault: Fault | None = None
    replies: dict[str, Message] = field(default_factory=dict)
    names: Iterator[int] = field(default_factory=itertools.count)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = []
        for message in messages:
            node, name = message.metadata.dst_node_id, f"message-{next(self.names)}"
            arrived = copy.deepcopy(message)
            arrived.metadata.__dict__["_message_id"] = name
            reply = None if self.fault is None else self.fault(node, arrived)
            if reply is None:
                try:
                    reply = self.app(arrived, self.contexts[node])
                except Exception as error:
                    reply = Message(Error(code=0, reason=str(error)), reply_to=arrived)
            self.replies[name] = copy.deepcopy(reply)
            found.append(name)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def app_sites(folder: Path, records: list[Path], **rules: Any) -> tuple[list[Member], list[Path]]:
    """Sites whose updates an app trains, one for each file, with the roster pinned."""
    members, folders = [], []
    limits = {
        "methods": (METHOD,),
        "models": (NETWORK,),
        "max_epsilon": 100.0,
        "max_delta": 1e-5,
        "roster": "roster.toml",
    }
    for number, path in enumerate(records):
        where = folder / f"site-{number}"
        where.mkdir(parents=True)
        given = limits | {"witness": "../witness"} | rules
        members.append(Member(where.name, Site.create(where, where.name, path, **given)))
        folders.append(where)
    for where in folders:
        (where / "roster.toml").write_text(roster_toml(members))
    return members, folders


@contextlib.contextmanager
def grid_of(app: ClientApp, folders: list[Path], records: list[Path]) -> Iterator[InMemoryGrid]:
    """A grid of nodes, each with its site's folder and its records; sites are closed in the end."""
    before = {name: getattr(TaskIdentity, f"_{name}") for name in ("task_id", "run_id", "node_id")}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, SERVER
    contexts = {}
    for number, (folder, path) in enumerate(zip(folders, records, strict=True)):
        node = 10 + number
        config = {"sordino-site": str(folder), "records": str(path), "partition-id": number}
        contexts[node] = Context(RUN, node, config, RecordDict(), {})
    try:
        yield InMemoryGrid(app, contexts)
    finally:
        mod.close_sites()
        for name, value in before.items():
            setattr(TaskIdentity, f"_{name}", value)
