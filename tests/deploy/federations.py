"""Small federations in this process: an experiment laid out, its sites opened, the run made."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Failure, Fault, InProcessCarrier
from sordino.deploy.protocol.roster import Member
from sordino.deploy.server.coordinator import resume, start
from sordino.deploy.server.trips import Deadlines
from sordino.deploy.site.site import Site
from sordino.deploy.trial import lay_out
from sordino.experiment.config import Experiment
from sordino.store.run_summary import Summary
from sordino.store.store import Store

QUICK = Deadlines(hello=0.0, work=5.0, open=0.2, attempts=3)
KEYS: dict[str, Any] = {
    **{"data": "digits", "partition": "iid", "method": "dp-fedavg", "rounds": 2, "epsilon": 20.0, "workers": 1},
    "set": {"epochs": 1, "batch": 64},
}


@dataclass
class Federation:
    """Sites of one experiment, and a store."""

    original: Experiment
    experiment: Experiment
    members: list[Member]
    folders: list[Path]
    store: Store
    sites: list[Site] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def run(self, fault: Fault | None = None, deadlines: Deadlines = QUICK) -> Summary:
        """A new run over all sites."""
        carrier = InProcessCarrier(self.sites, fault)
        return start(self.experiment, self.members, carrier, self.store, tell=self.told.append, deadlines=deadlines)

    def resume(self, run: str, fault: Fault | None = None, deadlines: Deadlines = QUICK) -> Summary:
        """The rest of a run."""
        return resume(run, InProcessCarrier(self.sites, fault), self.store, tell=self.told.append, deadlines=deadlines)

    def ask(self, number: int, request: bytes) -> bytes:
        """Ask a site a question, once the others have confirmed its ledger where it waits for them."""
        site = self.sites[number]
        reply = wire.unpack(site.answer(request))
        if reply.get("code") != "unconfirmed":
            return wire.pack(reply)
        return site.answer(changed(request, notes=self.notes(number, reply["statement"])))

    def notes(self, number: int, statement: Any) -> dict[bytes, Any]:
        """The other sites' notes on a site's ledger."""
        owner = self.sites[number].identity
        asked = wire.request("note", statements={owner: statement})
        others = [one for one in self.sites if one.identity != owner]
        return {one.identity: wire.unpack(one.answer(asked))["notes"][owner] for one in others}

    def allow_runs(self, times: int) -> None:
        """Let the sites' budgets pay for so many runs of the experiment."""
        for number, folder in enumerate(self.folders):
            rules = self.sites[number].context.policy.rules
            text = (folder / "site.toml").read_text()
            for name, value in (("max_epsilon", rules.max_epsilon), ("max_delta", rules.max_delta)):
                text = re.sub(rf"(?m)^{name} = .*$", f"{name} = {times * value!r}", text)
            (folder / "site.toml").write_text(text)
            self.reopen(number)

    def forget(self) -> None:
        """Make the server forget how far the sites' ledgers were."""
        (self.store.folder / "heads.db").unlink()

    def witness(self, number: int) -> Path:
        """The file of a site's witness."""
        return self.folders[number].parent / "witness" / f"{self.members[number].identity.hex()}.json"

    def backup(self, number: int, folder: Path) -> None:
        """Copy a site's folder and its witness."""
        shutil.copytree(self.folders[number], folder)
        shutil.copy(self.witness(number), folder / "witness.json")

    def restore(self, number: int, folder: Path, witness: bool) -> None:
        """Put a copied ledger back, with its witness or without."""
        shutil.copy(folder / "site.db", self.folders[number] / "site.db")
        if witness:
            shutil.copy(folder / "witness.json", self.witness(number))

    def reopen(self, number: int) -> Site:
        """A site that was closed and is open again, as after a restart."""
        self.sites[number].close()
        self.sites[number] = Site.open(self.folders[number])
        return self.sites[number]

    def model(self, run: str) -> Tensor:
        """The server's model of a run."""
        return load_file(self.store.path(run) / "models.safetensors")["global"]

    def close(self) -> None:
        """Let go of all sites."""
        for site in self.sites:
            site.close()


@contextlib.contextmanager
def federation(folder: Path, sites: int = 3, **changes: Any) -> Iterator[Federation]:
    """An experiment laid out at so many sites, all of them open."""
    settings = {**KEYS["set"], **changes.pop("set", {})}
    original = Experiment.make(KEYS | changes | {"set": settings, "store": folder / "store"})
    experiment, members, folders = lay_out(original, folder / "sites", sites)
    made = Federation(original, experiment, members, folders, Store(folder / "store"))
    try:
        made.sites = [Site.open(one) for one in folders]
        yield made
    finally:
        made.close()


def kind(request: bytes) -> str:
    """What a request asks for."""
    return str(wire.unpack(request)["kind"])


def is_confirmed(request: bytes) -> bool:
    """Whether a request is no question, or comes with the notes for which a site waits before its first one."""
    message = wire.unpack(request)
    return message["kind"] != "work" or bool(message.get("notes")) or wire.unpack(message["ask"].tobytes())["round"] > 0


def changed(request: bytes, **changes: Any) -> bytes:
    """A request with other contents."""
    return wire.pack({**wire.unpack(request), **changes})


def with_ask(request: bytes, **changes: Any) -> bytes:
    """A question with other contents."""
    import numpy as np

    message = wire.unpack(request)
    asked = {**wire.unpack(message["ask"].tobytes()), **changes}
    return wire.pack({**message, "ask": np.frombuffer(wire.pack(asked), dtype=np.uint8)})


def refused(reply: bytes) -> str:
    """The short name of a refusal; empty where it is none."""
    found = wire.unpack(reply)
    return "" if found["ok"] else str(found["code"])


@dataclass
class Recorder:
    """A fault that loses nothing and remembers every request and reply."""

    seen: list[tuple[int, str, bytes, bytes]] = field(default_factory=list)

    def __call__(self, node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        reply = answer()
        if refused(reply) == "unconfirmed":  # it is asked again, with the notes that it waits for
            return reply
        self.seen.append((node, kind(request), request, reply))
        return reply

    def of(self, what: str) -> list[tuple[int, bytes, bytes]]:
        """Requests of one kind and their replies."""
        return [(node, request, reply) for node, one, request, reply in self.seen if one == what]
