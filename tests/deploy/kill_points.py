"""Deployments that are killed at random moments, and what must be true of them afterwards.

    PYTHONPATH=tests:tests/deploy python -m kill_points [TRIALS] [SEED]

Each trial copies a federation of three sites and makes a run of it in a process that dies at a random call of
something that writes, or in which a site dies while it answers. The run is taken up, perhaps to die once more, and in
the end: its model is that of a run that was never killed; every site answered a question with the same bytes whenever
it was asked; everything that left is in its site's ledger, once for each attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from federations import QUICK, federation, kind
from killing import die_at, killed
from safetensors.torch import load_file
from torch import Tensor

from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Failure, InProcessCarrier
from sordino.deploy.protocol.roster import Member
from sordino.deploy.server.coordinator import resume, start
from sordino.deploy.server.journal import DeploymentJournal
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.site import Site
from sordino.deploy.site.witness import Witness
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.store.run_files import RunFiles
from sordino.store.store import Store

POINTS: list[tuple[Any, str, int]] = [
    (SiteLedger, "_commit", 40),
    (Witness, "write", 20),
    (DeploymentJournal, "execute", 40),
    (RunFiles, "save", 3),
    (RunFiles, "charge", 2),
    (Site, "answer", 24),
]
"""What a process may die at, and at which call at the latest."""
CASES: tuple[dict[str, Any], ...] = ({}, {"method": "dp-fedsgd", "set": {"sampling": 0.5}})
"""Experiments that trials are made with by turns: sums of sites' updates, and of records' gradients."""
DYING: list[tuple[Any, str]] = [(SiteLedger, "_commit"), (Witness, "write")]
"""Calls at which a site may die while it answers."""


@dataclass(frozen=True)
class Template:
    """A federation that is copied for each trial, and the model with which an undisturbed run of it ends."""

    folder: Path
    experiment: Experiment
    members: list[Member]
    model: Tensor
    rounds: int

    def copied(self, folder: Path) -> tuple[Store, list[Path]]:
        """A copy of it."""
        shutil.copytree(self.folder, folder)
        return Store(folder / "store"), [folder / "sites" / member.name for member in self.members]


def template(folder: Path, **changes: Any) -> Template:
    """A federation, laid out, and what comes of it undisturbed. Its noise comes from the seed: runs can be compared."""
    with federation(folder, noise="integers", **changes) as made:
        shutil.copytree(folder, folder.with_name("copy"))
        model = made.model(made.run().run)
        return Template(folder.with_name("copy"), made.experiment, made.members, model, made.experiment.rounds)


class Wire:
    """A fault that writes down what each site answered, and at which a site may die."""

    def __init__(self, log: Path, chance: random.Random | None) -> None:
        self.log, self.chance = log, chance

    def __call__(self, node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        if self.chance is not None and kind(request) in ("work", "open") and self.chance.random() < 0.25:
            chance, when = self.chance, self.chance.choice(["before", "after"])

            def child() -> None:
                owner, name = chance.choice(DYING)
                die_at(owner, name, chance.randint(1, 2), when)
                answer()

            killed(child)
            if self.chance.random() < 0.5:
                return Failure("the site is gone")
        reply = answer()
        asked = wire.unpack(request)
        if asked["kind"] in ("work", "open") and wire.unpack(reply)["ok"]:
            where = asked if asked["kind"] == "open" else wire.unpack(asked["ask"].tobytes())
            name = f"{asked['kind']} {node} {where['round']} {where['place']} {where['attempt']}"
            with self.log.open("a") as log:
                log.write(f"{name} {hashlib.sha256(reply).hexdigest()}\n")
        return reply


def trial(made: Template, folder: Path, seed: int) -> str:
    """One run with deaths; what was wrong with it, or nothing."""
    chance = random.Random(seed)
    store, folders = made.copied(folder)
    log = folder / "wire.log"
    log.touch()

    def session(deadly: bool) -> None:
        if deadly:
            owner, name, most = chance.choice(POINTS)
            die_at(owner, name, chance.randint(1, most), chance.choice(["before", "after"]))
        dying = random.Random(seed) if deadly and chance.random() < 0.5 else None
        with contextlib.ExitStack() as held:
            sites = [held.enter_context(contextlib.closing(Site.open(one))) for one in folders]
            carrier = InProcessCarrier(sites, Wire(log, dying))
            runs = Store(folder / "store").all()
            try:
                resume(runs[0].run, carrier, store, deadlines=QUICK)
            except (IndexError, UserError) as error:
                if runs and "before it began" not in str(error):
                    raise
                start(made.experiment, made.members, carrier, store, deadlines=QUICK)

    store.close()
    store = Store(folder / "store")
    for _ in range(chance.randint(1, 2)):
        chance.random()
        killed(lambda: session(True))
    if killed(lambda: session(False)):
        return "it died though nobody killed it"
    return verdict(made, store, folders, log)


def verdict(made: Template, store: Store, folders: list[Path], log: Path) -> str:
    """What is wrong with a run that came to its end, or nothing."""
    row = store.all()[0]
    if row.state != "done":
        return "it did not come to its end"
    answered: dict[str, str] = {}
    for line in log.read_text().splitlines():
        name, _, digest = line.rpartition(" ")
        if answered.setdefault(name, digest) != digest:
            return f"two answers to {name}"
    charged, opened = set(), set()
    for number, folder in enumerate(folders):
        with SiteLedger(folder) as ledger:
            asks = [tuple(entry.content["ask"][1:]) for entry in ledger.entries() if entry.kind == "release"]
            opened |= {tuple(entry.content["ask"][1:]) for entry in ledger.entries() if entry.kind == "opened"}
        if len(set(asks)) < len(asks):
            return f"site {number} paid twice for one question"
        charged |= {(number, *ask) for ask in asks}
    for name in answered:
        what, *ask = name.split()
        if what == "work" and tuple(int(part) for part in ask) not in charged:
            return f"{name} was not paid for"
    attempts = any(ask[-1] > 0 for ask in charged)
    # Where an answer was lost, and no budget was reserved for another attempt, the run ends there.
    ended = row.rounds_done < made.rounds and {tuple(ask) for _, *ask in charged} - opened
    model = load_file(store.path(row.run) / "models.safetensors")["global"]
    if not (attempts or ended) and not torch.equal(model, made.model):
        return "its model is another one"
    return ""


def trials(count: int, seed: int, folder: Path, tell: Callable[[str], None] = print) -> list[str]:
    """So many trials; what was wrong with each that failed."""
    torch.set_num_threads(1)
    made = [template(folder / str(place) / "template", **case) for place, case in enumerate(CASES)]
    failures = []
    for number in range(seed, seed + count):
        found = trial(made[number % len(made)], folder / "trial", number)
        shutil.rmtree(folder / "trial")
        if found:
            failures.append(f"seed {number}: {found}")
            tell(failures[-1])
    return failures


def main() -> None:
    """The command line."""
    count, seed = (int(one) for one in (sys.argv[1:] + ["200", "0"][len(sys.argv) - 1 :]))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        failures = trials(count, seed, Path(folder))
    print(f"{count} deployments were killed, {len(failures)} broke a promise ({time.monotonic() - begun:.0f} s).")
    sys.exit(bool(failures))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
