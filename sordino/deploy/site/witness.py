"""A site's witness: a small file outside its folder that holds the ledger's head when something last left.

A folder restored from a backup has forgotten what left since, and would spend the same budget again. The folder alone
cannot show that. So each commit of the ledger is followed by writing the witness to disk, and only then by the reply.
A folder that lacks the row its witness names does not open. One that is ahead of its witness on the same chain was
killed between commit and witness, and continues.

The head in the file is signed with the site's own key, so that damage and another site's witness are noticed.

The file also holds a fingerprint of the site's records: where a ledger is put beside other records, the witnesses in
the same folder show whether another site's ledger has paid for these.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.deploy.database import DatabaseError
from sordino.deploy.protocol import keys
from sordino.deploy.site.ledger import WITNESSED, Entry, Head, SiteLedger, row_from
from sordino.deploy.site.rules import FILE, Rules, SitePolicy, read_rules
from sordino.errors import UserError
from sordino.store.lock import HeldError, holding
from sordino.util.files import write_whole

MAX_WITNESS_BYTES = 4096
"""Number of bytes of a witness file that are read."""


class WitnessError(UserError):
    """The witness of a site's ledger is missing, unreadable or newer than the ledger."""


class OlderThanWitnessError(WitnessError):
    """The witness of a site's ledger has seen rows that the ledger lacks."""


@dataclass(frozen=True)
class Witness:
    """The witness of one site."""

    path: Path
    private: bytes
    """The site's private Ed25519 key."""
    records: str | None = None
    """Fingerprint of the records that the site answers from; None where they have not been read."""

    @classmethod
    def of(cls, folder: Path, rules: Rules, private: bytes, records: str | None = None) -> Witness:
        """Witness of the site in `folder`: in the folder that `witness` names, or in the user's state directory.

        The file is named after the site's identity, so that several sites can share a folder.

        Args:
            folder: the site's folder.
            rules: its rules.
            private: its private key, which signs what is written.
            records: fingerprint of its file of records; None where that has not been read.
        """
        where = (_state_folder() if rules.witness is None else folder / rules.witness).resolve()
        if where.is_relative_to(folder.resolve()):
            raise UserError(
                f"{folder / FILE}: the witness {where} lies inside of the site's folder, and would be restored with "
                "it: set `witness` to a folder elsewhere, on another disk if there is one."
            )
        return cls(where / f"{keys.public_identity(private).hex()}.json", private, records)

    def read(self) -> Head | None:
        """Last head written; None without a file. A file that cannot be read or verified raises `WitnessError`."""
        try:
            found = _load(self.path)
            head = Head.from_list([found["position"], bytes.fromhex(found["link"])])
            signature = bytes.fromhex(found["signature"])
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise WitnessError(f"The witness {self.path} of this site's ledger cannot be read: {ADVICE}") from error
        if not keys.is_signed(keys.public_identity(self.private), signature, *head.signed_parts()):
            raise WitnessError(f"The witness {self.path} is damaged, or belongs to another site: {ADVICE}")
        return head

    def write(self, head: Head) -> None:
        """Write a head durably; after a crash the file holds the last one or this one."""
        signature = keys.sign(self.private, *head.signed_parts())
        content = {"position": head.position, "link": head.link.hex(), "signature": signature.hex()}
        if self.records is not None:
            content["records"] = self.records
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(content))
        except OSError as error:
            raise DatabaseError(
                f"The witness {self.path} cannot be written ({error.strerror}): free disk space, or name another "
                f"folder with `witness` in {FILE}."
            ) from error

    def update(self, ledger: SiteLedger) -> Head:
        """Write the ledger's head to the witness, and return it.

        No other process commits meanwhile, so that the witness never goes back.
        """
        with ledger.transaction():
            self.check(ledger)
            head = ledger.head()
            self.write(head)
        return head

    def check(self, ledger: SiteLedger) -> None:
        """Refuse a ledger that is behind its witness or on another branch, or whose witness is gone."""
        seen = self.read()
        if seen is None:
            if ledger.is_witnessed():
                raise WitnessError(f"The witness {self.path} of this site's ledger is gone: {ADVICE}")
        elif ledger.link(seen.position) != seen.link:
            raise OlderThanWitnessError(
                f"The ledger in {ledger.path} has {ledger.head().position} rows, but its witness {self.path} has seen "
                f"row {seen.position} of another ledger: this folder was restored from a backup or copied, and does "
                "not know everything that left. Put the newest folder back. If it is lost, `sordino site accept` "
                "continues with this one, and its budget counts as used up."
            )

    def check_records(self) -> None:
        """Refuse records that another site with a witness in the same folder answers from.

        What they have cost stands in that site's ledger.
        """
        for path in sorted(self.path.parent.glob("*.json")):
            if path == self.path:
                continue
            with contextlib.suppress(*UNREADABLE):  # that site tells of it
                if _load(path)["records"] == self.records:
                    raise UserError(
                        f"The records beside this ledger are not those that it was used with, but another site's, "
                        f"whose witness is {path}: what they have cost is in that site's ledger. Put the site.db and "
                        "the records of both back where they were. If the other site is given up for good, remove "
                        "its witness."
                    )


UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""Errors of reading a file that is no witness."""
ADVICE = (
    "the site's folder may have been restored or copied. Put the witness back where it was (`witness` in site.toml "
    "names its folder). If it is lost, `sordino site accept` continues without it, and the budget counts as used up "
    "until the other sites confirm the ledger."
)


@contextlib.contextmanager
def lock_site(folder: Path) -> Iterator[None]:
    """Hold the site's lock, so that no other process answers for it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(holding(folder / "lock"))
        except HeldError as error:
            raise UserError(f"The site in {folder} is already open in another process: end that one first.") from error
        yield


def accept(folder: Path) -> str:
    """Continue with a folder whose witness is missing, unreadable or newer; returns a sentence for the owner.

    It is unknown what has left since, so the budget counts as used up: for good where the ledger is known to lack
    rows or a run was open that could spend without limit, otherwise until the other sites confirm the ledger.
    """
    policy = read_rules(folder)
    with lock_site(folder), SiteLedger(folder) as ledger:
        ledger.check()
        witness = Witness.of(folder, policy.rules, ledger.fact("identity"))
        try:
            witness.check(ledger)
        except WitnessError as doubt:
            entry = _acceptance_entry(ledger, policy, doubt)
        else:
            raise UserError(f"The site in {folder} agrees with its witness {witness.path}: there is nothing to accept.")
        with ledger.transaction():
            ledger.append([entry])
            ledger.set_fact(WITNESSED, b"1")
        witness.write(ledger.head())
    if entry.kind == "spoiled":
        return f"The budget of the site in {folder} counts as used up: {entry.content['why']}."
    return (
        f"The budget of the site in {folder} counts as used up until the other sites of its roster confirm its ledger."
    )


def _acceptance_entry(ledger: SiteLedger, policy: SitePolicy, doubt: WitnessError) -> Entry:
    """Ledger row that records the owner's acceptance: `spoiled` for good, or `accepted` until others confirm."""
    unlimited = set()
    for entry in ledger.entries():
        if entry.kind == "start" and entry.content["unlimited"]:
            unlimited.add(entry.content["run"])
        elif entry.kind == "release":
            row = row_from(entry)
            if not row.pool and row.costs().any():  # what was drawn with other sums costs nothing by itself
                unlimited.add(entry.content["ask"][0])
    if isinstance(doubt, OlderThanWitnessError):
        return Entry("spoiled", {"why": "it was restored or copied, and accepted by its owner"})
    if policy.roster is None:
        return Entry(
            "spoiled", {"why": "its witness was lost, and no roster names sites that could confirm its ledger"}
        )
    if any(run["state"] == "open" and run["run"] in unlimited for run in ledger.runs()):
        return Entry("spoiled", {"why": "its witness was lost while a run was open for which nothing was reserved"})
    return Entry("accepted", {"why": "its witness was lost"})


def _load(path: Path) -> dict[str, Any]:
    """Content of a witness file, unchecked."""
    with path.open("rb") as file:
        content: dict[str, Any] = json.loads(file.read(MAX_WITNESS_BYTES))
    return content


def _state_folder() -> Path:
    """Folder for witnesses in the user's state directory (XDG Base Directory Specification)."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise UserError(
            f"This user has no home directory: name a folder for the witness with `witness` in {FILE}."
        ) from error
    return base / "sordino" / "witness"
