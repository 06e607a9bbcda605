"""A new site: its rules, its identity, and a ledger with nothing in it but a beginning."""

from __future__ import annotations

import contextlib
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sordino.data.tables import Table
from sordino.deploy.database import AlteredError, DatabaseError
from sordino.deploy.protocol import keys, wire
from sordino.deploy.site.context import Desk
from sordino.deploy.site.data import keyed_fingerprint, read_records
from sordino.deploy.site.end import end, remove_leftovers
from sordino.deploy.site.enrol import enrol, hello
from sordino.deploy.site.freshness import note
from sordino.deploy.site.ledger import WITNESSED, Book, Entry, Head, linked, noted_last
from sordino.deploy.site.rules import FILE, MEGABYTE, RULES_CHANGED, SENTENCES, Allowed, RefusedError, Rules, read_rules
from sordino.deploy.site.witness import DoubtError, Witness, hold
from sordino.deploy.site.work import open_sum, work
from sordino.errors import UserError, unknown, writing
from sordino.methods import names
from sordino.privacy.ledger import FIRST_LINK
from sordino.util.files import write_whole
from sordino.util.toml import toml_value

COMMENTS = {
    "data": "the file with this site's records; its path may be relative to this folder",
    "label": "the label column of a table",
    "test_fraction": "the share of the records kept for testing, where the file has no test records of its own",
    "unit": "what is protected: this site as a whole (client), or each of its records (record)",
    "max_epsilon": "what all runs on these data may cost together ...",
    "max_delta": "... at this delta",
    "min_cohort": "the fewest sites with which this one lets itself be added up",
    "colluders": "how many other sites may work together with the server",
    "package": "the hash of Sordino's code that may run here (`sordino site status` shows it); without this key, any",
    "models": "the networks that may be trained here; without this key, all that come with Sordino",
    "clip": "between which clipping thresholds must lie",
    "roster": "the sites that may be in a cohort; without it others' noise is not counted on",
    "witness": "the folder outside of this one with the file that shows when this one was restored or copied; without "
    "this key, the user's state directory",
    "witnesses": "number of other sites of the roster that must confirm this one's ledger; without this key, all",
    "allow_trusted_server": "whether the server may be taken to follow the protocol (active_server = false)",
    "max_message_mb": "the largest message that is read",
    "max_misfits": "how often a server is told that something does not fit these data: that is told without noise",
    "methods": "the methods that may be run here (last, so that a file that was cut short lacks them and is refused)",
}
"""The keys in their order, each with its meaning."""
USUAL: dict[str, Any] = {"unit": "client", "max_epsilon": 8.0, "max_delta": 1e-5, "min_cohort": 3}
"""Default limits of a new site, which are then written into its file."""


def create(folder: Path, name: str, data: Path, label: str | None, rules: Mapping[str, Any]) -> bytes:
    """Make a site in a folder; its public key."""
    if (folder / FILE).exists():
        raise UserError(f"There is a site in {folder} already: its ledger must not be lost.")
    given = USUAL | {"methods": tuple(names())} | {key: value for key, value in rules.items() if value is not None}
    try:
        made = Rules(name=name, data=data, label=label, **given)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"Invalid value for {problem['loc'][0]}: {problem['msg'].lower()}.") from error
    file = read_records(folder, made)  # before anything is written: it may not be readable
    if label is not None and isinstance(file.content, Table) and label not in file.content.columns:
        raise unknown("column", label, list(file.content.columns))
    with writing(folder / FILE):
        private, secret = keys.new_identity(), secrets.token_bytes(32)
        content = {"random": secrets.token_hex(32), "data": keyed_fingerprint(file, secret)}
        if made.roster is None:  # else the roster, which is yet to be put there, belongs to the rules
            content["rules"] = Allowed(made, None).digest(secret)
        begin = Entry("begin", content)
        # First: where it cannot be written, there is no site yet.
        Witness.of(folder, made, private).write(Head(1, linked(FIRST_LINK, begin.written())))
        Book.create(folder, {"identity": private, "secret": secret, WITNESSED: b"1"}, begin)
        write_whole(folder / FILE, written(made))
    return keys.public_identity(private)


def written(rules: Rules) -> str:
    """Rules as a TOML file with a comment on each."""
    lines = [f"name = {toml_value(rules.name)}"]
    for key, comment in COMMENTS.items():
        value = getattr(rules, key)
        lines += ["", f"# {comment}", f"{key} = {toml_value(value)}" if value is not None else f"# {key} ="]
    return "\n".join(lines) + "\n"


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
