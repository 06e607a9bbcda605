"""A site: one client on its own machine, with its own records, rules, ledger and memory.

`Site.answer` maps a message to an answer and never raises. What it sends has been charged, durably, in the same
transaction that keeps it for whoever asks again: a site that is killed before has released nothing, one that is killed
after it sends the same bytes. It answers to one list of survivors of a sum, ever, and is masked once for an ask.

| message | answer | file |
|---|---|---|
| hello | who the site is, signed | enrolling |
| enrol | a key for this run, signed; the experiment must be within `site.toml` | enrolling |
| work | trip 1: what the step sends, bounded and noised; masked where it is to be summed | working |
| open | trip 2: what opens the survivors' sum | opening |
| note | how far others' ledgers are, to them | freshness |
| end | the run's keys are destroyed; the final model is kept | ending |

A witness outside of the folder is told of every row of the ledger before anything leaves.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sordino.deploy import wire
from sordino.deploy.book import WITNESSED, Book
from sordino.deploy.creating import create
from sordino.deploy.database import AlteredError, DatabaseError
from sordino.deploy.desk import Desk
from sordino.deploy.ending import end, remove_leftovers
from sordino.deploy.enrolling import enrol, hello
from sordino.deploy.entries import Entry, Head, noted_last
from sordino.deploy.freshness import note
from sordino.deploy.opening import open_sum
from sordino.deploy.records import keyed_fingerprint, read_records
from sordino.deploy.rules import MEGABYTE, RULES_CHANGED, SENTENCES, RefusedError, read_rules
from sordino.deploy.witness import DoubtError, Witness, hold
from sordino.deploy.working import work

HANDLERS: dict[str, Callable[[Desk, Mapping[str, Any]], bytes]] = {
    "hello": hello,
    "enrol": enrol,
    "work": work,
    "open": open_sum,
    "note": note,
    "end": end,
}


class Site:
    """A site that is open: its rules and records have been read, and no other process answers for it."""

    def __init__(self, desk: Desk, witness: Witness, news: Sequence[str], held: contextlib.ExitStack) -> None:
        self.desk, self._witness, self._held = desk, witness, held
        self.news = news
        """Sentences that its owner should read before it takes part."""
        self._witnessed: Head | None = None
        self._refused = ""
        self.name, self.identity = desk.allowed.rules.name, desk.identity

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Open the site in a folder; one that another process has opened, or whose ledger was altered, is refused."""
        allowed = read_rules(folder)
        with contextlib.ExitStack() as held:
            held.enter_context(hold(folder))
            file = read_records(folder, allowed.rules)
            with Book(folder) as book:
                desk = Desk(folder, allowed, file, book.known("identity"), book.known("secret"))
                witness = Witness.of(folder, allowed.rules, desk.private)
                news = _take_stock(desk, book, witness)
                remove_leftovers(folder, book)
            return cls(desk, witness, news, held.pop_all())

    @classmethod
    def create(cls, folder: Path, name: str, data: Path, *, label: str | None = None, **rules: Any) -> bytes:
        """Make a site: its rules in `site.toml`, a new identity and an empty ledger; its public key."""
        return create(folder, name, data, label, rules)

    def close(self) -> None:
        """Let another process answer for the site."""
        self._held.close()

    def answer(self, request: bytes) -> bytes:
        """Answer a message, once the witness has seen the ledger. Never raises; refusals give one of a few fixed
        reasons."""
        reply = self._answered(request)
        try:
            with Book(self.desk.folder) as book:
                if book.head() != self._witnessed:
                    self._witnessed = self._witness.follow(book)
        except DoubtError as error:
            return self._refusal("witness", error)
        except AlteredError as error:
            return self._refusal("closed", error)
        except DatabaseError as error:
            return self._refusal("disk", error)
        return reply

    def _answered(self, request: bytes) -> bytes:
        try:
            message = wire.unpacked(request, self.desk.allowed.rules.max_message_mb * MEGABYTE)
            handler = HANDLERS.get(str(message.get("kind")))
            if handler is None:
                raise RefusedError("message", "it has no known kind")
            if message.get("protocol") != wire.PROTOCOL:
                raise RefusedError("protocol", f"its version is {message.get('protocol')!r:.20}")
            return handler(self.desk, message)
        except RefusedError as refused:
            return self._refusal(refused.code, refused.detail, **refused.more)
        except wire.WireError as error:
            return self._refusal("message", error)
        except AlteredError as error:
            return self._refusal("closed", error)
        except DatabaseError as error:
            return self._refusal("disk", error)
        except Exception:  # whatever goes wrong at a site, its text may tell of the data
            return self._refusal("failed", traceback.format_exc())

    def _refusal(self, code: str, detail: object, **more: Any) -> bytes:
        told = f"refused: {SENTENCES[code]} {detail}"
        if told != self._refused:  # a site that waits says so once
            self.desk.note(told)
        self._refused = told if more else ""
        return wire.packed({"ok": False, "code": code, "sentence": SENTENCES[code], **more})


def _take_stock(desk: Desk, book: Book, witness: Witness) -> list[str]:
    """Check that the ledger is as it was written, and the newest that its witness knows; note changes of data or rules.
    Returns sentences for the owner."""
    book.check()
    witness.check(book)  # before anything is added to the ledger
    entries = book.entries()
    now = {"data": keyed_fingerprint(desk.file, desk.secret), "rules": desk.allowed.digest(desk.secret)}
    noted = {kind: noted_last(entries, kind) for kind in now}
    changed = [Entry(kind, {kind: digest}) for kind, digest in now.items() if noted[kind] != digest]
    if changed:
        with book.transaction():
            book.append(changed)
    witness.follow(book)
    news = [RULES_CHANGED] if noted["rules"] not in (None, now["rules"]) else []
    for sentence in news:
        desk.note(sentence)
    if book.is_witnessed():
        return news
    with book.transaction():  # only now: a site that is killed before has no witness that could be missing
        book.know(WITNESSED, b"1")
    first = f"This site's ledger has a witness from now on, {witness.path}: it shows when the folder was restored."
    return [*news, first]
