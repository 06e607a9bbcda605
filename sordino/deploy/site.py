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
| end | the run's keys are destroyed; the final model is kept | ending |
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sordino.deploy import wire
from sordino.deploy.book import Book
from sordino.deploy.creating import create
from sordino.deploy.database import AlteredError, DatabaseError
from sordino.deploy.desk import Desk
from sordino.deploy.ending import end, remove_leftovers
from sordino.deploy.enrolling import enrol, hello
from sordino.deploy.entries import Entry, noted_last
from sordino.deploy.opening import open_sum
from sordino.deploy.records import keyed_fingerprint, read_records
from sordino.deploy.rules import MEGABYTE, RULES_CHANGED, SENTENCES, RefusedError, read_rules
from sordino.deploy.working import work
from sordino.errors import UserError
from sordino.experiment.holding import HeldError, holding

HANDLERS: dict[str, Callable[[Desk, Mapping[str, Any]], bytes]] = {
    "hello": hello,
    "enrol": enrol,
    "work": work,
    "open": open_sum,
    "end": end,
}


class Site:
    """A site that is open: its rules and records have been read, and no other process answers for it."""

    def __init__(self, desk: Desk, held: contextlib.ExitStack, news: Sequence[str] = ()) -> None:
        self.desk, self._held = desk, held
        self.news = news
        """What its owner should know before it takes part, in sentences."""
        self.name, self.identity = desk.allowed.rules.name, desk.identity

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Open the site in a folder; one that another process has opened, or whose ledger was altered, is refused."""
        allowed = read_rules(folder)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(holding(folder / "lock"))
            except HeldError as error:
                raise UserError(f"The site in {folder} is already open in another process.") from error
            file = read_records(folder, allowed.rules)
            with Book(folder) as book:
                desk = Desk(folder, allowed, file, book.known("identity"), book.known("secret"))
                news = _take_stock(desk, book)
                remove_leftovers(folder, book)
            return cls(desk, held.pop_all(), news)

    @classmethod
    def create(cls, folder: Path, name: str, data: Path, *, label: str | None = None, **rules: Any) -> bytes:
        """Make a site: its rules in `site.toml`, a new identity and an empty ledger; its public key."""
        return create(folder, name, data, label, rules)

    def close(self) -> None:
        """Let another process answer for the site."""
        self._held.close()

    def answer(self, request: bytes) -> bytes:
        """What the site answers to a message. It never raises, and says why it refuses in a fixed sentence only."""
        try:
            message = wire.unpacked(request, self.desk.allowed.rules.max_message_mb * MEGABYTE)
            handler = HANDLERS.get(str(message.get("kind")))
            if handler is None:
                raise RefusedError("message", "it has no known kind")
            if message.get("protocol") != wire.PROTOCOL:
                raise RefusedError("protocol", f"its version is {message.get('protocol')!r:.20}")
            return handler(self.desk, message)
        except RefusedError as refused:
            return self._refusal(refused.code, refused.detail)
        except wire.WireError as error:
            return self._refusal("message", error)
        except AlteredError as error:
            return self._refusal("closed", error)
        except DatabaseError as error:
            return self._refusal("disk", error)
        except Exception:  # whatever goes wrong at a site, its text may tell of the data
            return self._refusal("failed", traceback.format_exc())

    def _refusal(self, code: str, detail: object) -> bytes:
        self.desk.note(f"refused: {SENTENCES[code]} {detail}")
        return wire.packed({"ok": False, "code": code, "sentence": SENTENCES[code]})


def _take_stock(desk: Desk, book: Book) -> list[str]:
    """Look whether the ledger is as it was written; note that the data or the rules have changed, where they have."""
    book.check()
    entries = book.entries()
    now = {"data": keyed_fingerprint(desk.file, desk.secret), "rules": desk.allowed.digest(desk.secret)}
    noted = {kind: noted_last(entries, kind) for kind in now}
    changed = [Entry(kind, {kind: digest}) for kind, digest in now.items() if noted[kind] != digest]
    if changed:
        with book.transaction():
            book.append(changed)
    news = [RULES_CHANGED] if noted["rules"] not in (None, now["rules"]) else []
    for sentence in news:
        desk.note(sentence)
    return news
