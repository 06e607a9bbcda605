"""Sites that are restored from backups at random moments: none of them spends its budget twice.

    PYTHONPATH=tests:tests/deploy python -m restored [TRIALS] [SEED]

Each trial makes runs of a federation of three sites, whose budgets pay for two. Before a random message site 0 is
copied, and before a later one it is put back: its folder; its folder, while the witness is lost and the owner accepts
that; or both, as a snapshot of the whole machine does. The server is honest, or lies in one of several ways, and
repeats all that it has ever asked. In the end every question to site 0 has one answer at the most, whichever ledger it
came from, and all answers together cost no more than the budget.

One case is not among the trials, because it is not noticed: a snapshot of folder and witness that is taken in the
middle of a run and put back under a server that lies. The other sites know where the run began, and only the server
knows how far it was.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from federations import Federation, changed, federation, kind, refused

from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.server.trips import Deadlines
from sordino.deploy.site.ledger import Entry, SiteLedger, row_from
from sordino.deploy.site.site import Site
from sordino.deploy.site.spending import SiteSpending
from sordino.deploy.site.witness import accept
from sordino.errors import UserError

DEADLINES = Deadlines(hello=0.0, work=0.2, open=0.2, attempts=2)
ROUNDS = 2
METHODS: dict[str, dict[str, Any]] = {
    "summed": {},
    "plain": {"protect_from": "server", "minimum_cohort": 2},
    "sums over records": {"method": "dp-fedsgd", "records": 300},
    "records": {"method": "dp-fedavg-record", "records": 300},
    "matrix": {"method": "adadp-cfl", "records": 300, "set": {"clipping": "fixed"}},
}
SERVERS = ("honest", "echoes nothing", "echoes old heads", "withholds notes", "forges notes")
RESTORED = ("folder", "folder, accepted", "folder and witness")
LONGEST = 14
"""Messages to a site in two runs, at the least."""


@dataclass
class Attack:
    """Events at the wire of one trial, and everything that left site 0."""

    made: Federation
    folder: Path
    server: str
    restored: str
    copy_at: int
    """The message to site 0 before which it is copied."""
    restore_at: int
    """The message before which it is put back."""
    messages: int = 0
    state: str = "whole"
    """`whole`, then `copied`, then `restored`, or `closed` where it does not open."""
    requests: list[bytes] = field(default_factory=list)
    """All that site 0 was asked."""
    echoes: dict[int, Any] = field(default_factory=dict)
    """The first head of each site's ledger that the server has seen."""
    rows: dict[str, list[Entry]] = field(default_factory=dict)
    """The ledger's rows of each answer that left, by its digest."""
    answers: dict[tuple[Any, ...], set[str]] = field(default_factory=lambda: collections.defaultdict(set))
    """Digests of the answers to each question."""

    def __call__(self, node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        if node == 0:
            self.messages += 1
            self.requests.append(request)
            self._meddle()
            if self.state == "closed":
                return Failure("it does not open")
        reply = self.made.sites[node].answer(self._altered(node, request))
        if node == 0:
            self._log(request, reply)
        if kind(request) == "note" and self.state == "restored":
            if self.server == "withholds notes":
                return Failure("withheld")
            if self.server == "forges notes":
                return _forged(reply)
        return reply

    def _meddle(self) -> None:
        """Copy the site or put it back, where it is time."""
        if self.state == "whole" and self.messages >= self.copy_at and self._may_be_copied():
            self.made.backup(0, self.folder)
            self.state = "copied"
        elif self.state == "copied" and self.messages >= self.restore_at:
            self.restore()

    def _may_be_copied(self) -> bool:
        if self.restored != "folder and witness" or self.server == "honest":
            return True
        with SiteLedger(self.made.folders[0]) as ledger:
            begun = {entry.content["run"] for entry in ledger.entries() if entry.kind == "start"}
            return not any(run["run"] in begun and run["state"] == "open" for run in ledger.runs())

    def restore(self) -> None:
        """Put the copy back, and open the site, if it lets itself be."""
        self.made.sites[0].close()
        self.made.restore(0, self.folder, self.restored == "folder and witness")
        if self.restored == "folder, accepted":
            self.made.witness(0).unlink()
            accept(self.made.folders[0])
        try:
            self.made.sites[0] = Site.open(self.made.folders[0])
            self.state = "restored"
        except UserError:
            self.state = "closed"

    def _altered(self, node: int, request: bytes) -> bytes:
        echo = wire.unpack(request).get("echo")
        if echo is None or self.server == "honest":
            return request
        first = self.echoes.setdefault(node, echo)
        return changed(request, echo=first if self.server == "echoes old heads" else None)

    def _log(self, request: bytes, reply: bytes) -> None:
        if kind(request) != "work" or refused(reply):
            return
        asked, digest = wire.unpack(wire.unpack(request)["ask"].tobytes()), hashlib.sha256(reply).hexdigest()
        ask = [asked[name] for name in ("run", "round", "place", "attempt")]
        self.answers[tuple(ask)].add(digest)
        with SiteLedger(self.made.folders[0]) as ledger:
            rows = [one for one in ledger.entries() if one.kind == "release" and one.content["ask"] == ask]
        self.rows.setdefault(digest, rows)

    def repeat(self) -> None:
        """Ask all again that was ever asked; the other sites give the notes for which the site waits."""
        for request in list(self.requests):
            if kind(request) == "enrol":
                self.made.sites[0].answer(self._altered(0, request))
            elif kind(request) == "work":
                again = self._altered(0, changed(request, notes={}))
                self._log(again, self.made.ask(0, again))

    def verdict(self) -> str:
        """Spending that was doubled, in words; empty where there was none."""
        double = [ask for ask, found in self.answers.items() if len(found) > 1]
        if double:
            return f"two answers to question {double[0][1:]}"
        rows = [row for found in self.rows.values() for row in found]
        policy = self.made.sites[1].context.policy
        if not SiteSpending.of(rows, policy.view).fits(policy.rules):
            return "the answers cost more than the budget"
        of_records = [row for row in rows if row_from(row).pool]
        turns = collections.Counter((row.content["ask"][0], row_from(row).release) for row in of_records)
        if max(turns.values(), default=0) > ROUNDS or len({run for run, _ in turns}) > 2:
            return "records were asked more often than was reserved for"
        return ""


def _forged(reply: bytes) -> bytes:
    """Notes signed with another key than that of the site which gave them."""
    message, private = wire.unpack(reply), keys.new_identity()
    notes = message.get("notes", {})
    forged = {owner: [*note[:-1], keys.sign(private, "note", note[-1])] for owner, note in notes.items()}
    return wire.pack({**message, "notes": forged})


def trial(folder: Path, seed: int) -> tuple[str, str]:
    """Description of one trial, and the spending that was doubled."""
    chance = random.Random(seed)
    method, server, restored = (chance.choice(list(one)) for one in (METHODS, SERVERS, RESTORED))
    copy_at = chance.randint(1, LONGEST - 4)
    changes = METHODS[method] | {"rounds": ROUNDS}
    with federation(folder, **changes) as made:
        made.allow_runs(2)
        attack = Attack(made, folder / "backup", server, restored, copy_at, chance.randint(copy_at + 1, LONGEST))

        def runs(many: int) -> None:
            for _ in range(many):
                with contextlib.suppress(UserError):
                    made.run(attack, DEADLINES)
                for row in made.store.all():
                    with contextlib.suppress(UserError):
                        made.resume(row.run, attack, DEADLINES)

        runs(2)
        if attack.state == "copied":
            attack.restore()
        if attack.state == "restored":
            runs(1)
            attack.repeat()
        about = f"{method}, {restored} ({copy_at}, {attack.restore_at}), {server} server: {attack.state}"
        return f"{about}, {len(attack.rows)} answers", attack.verdict()


def trials(count: int, seed: int, folder: Path, tell: Callable[[str], None] = print) -> list[str]:
    """So many trials; what was spent twice in each that failed."""
    torch.set_num_threads(1)
    failures = []
    for number in range(seed, seed + count):
        about, found = trial(folder / "trial", number)
        shutil.rmtree(folder / "trial")
        if found:
            failures.append(f"seed {number} ({about}): {found}")
            tell(failures[-1])
    return failures


def main() -> None:
    """The command line."""
    count, seed = (int(one) for one in (sys.argv[1:] + ["50", "0"][len(sys.argv) - 1 :]))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        failures = trials(count, seed, Path(folder))
    print(f"{count} sites were restored, {len(failures)} spent twice ({time.monotonic() - begun:.0f} s).")
    sys.exit(bool(failures))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
