"""A site: created with its rules, identity and ledger; opened to answer a server's messages."""

from __future__ import annotations

import contextlib
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sordino.data.schema import Format, Schema
from sordino.data.tables import TextTable, guess_format
from sordino.deploy.database import AlteredError, DatabaseError
from sordino.deploy.protocol import keys, wire
from sordino.deploy.site.data import fingerprint_records, keyed_fingerprint, read_by, read_records
from sordino.deploy.site.end import answer_end, remove_leftovers
from sordino.deploy.site.enrol import answer_enrol, answer_hello
from sordino.deploy.site.freshness import answer_note
from sordino.deploy.site.ledger import WITNESSED, Entry, Head, SiteLedger, chain_link, last_noted
from sordino.deploy.site.rules import (
    FILE,
    MEGABYTE,
    RULES_CHANGED,
    SENTENCES,
    WRITTEN,
    RefusedError,
    Rules,
    SitePolicy,
    read_rules,
)
from sordino.deploy.site.session import SiteContext
from sordino.deploy.site.witness import Witness, WitnessError, lock_site
from sordino.deploy.site.work import answer_open, answer_work
from sordino.errors import FAILURES, UserError, explain_invalid, unknown, writing
from sordino.methods import names
from sordino.privacy.ledger import FIRST_LINK
from sordino.util.files import read_file, write_whole
from sordino.util.toml import toml_value
from sordino.version import VERSION

COMMENTS = {
    "data": "the file with this site's records; its path may be relative to this folder",
    "label": "the label column of a table",
    "schema": "file with the schema that this site's owner agreed to: experiments with other columns are refused",
    "delimiter": "the character between the cells of a table; without this key, as the experiment's schema says",
    "encoding": "the encoding of a table's text; likewise",
    "decimal": "the character before the decimals of a table's numbers; likewise",
    "test_fraction": "the share of the records kept for testing, where the file has no test records of its own",
    "unit": "what is protected: this site as a whole (client), each of its records (record), or each person with all "
    "records (person)",
    "person": "the column, or array, with codes of persons; needed where these are protected",
    "max_sites_per_person": "the largest number of sites that know one of this site's persons; without this key, one",
    "max_epsilon": "the most that all runs on these data may cost together ...",
    "max_delta": "... at this delta",
    "min_cohort": "the smallest cohort with which this site lets its message be summed",
    "colluders": "number of other sites assumed to work together with the server",
    "package": "the hash of Sordino's code that may run here (`sordino site status` shows it); without this key, any",
    "models": "the networks that may be trained here; without this key, all that come with Sordino",
    "features": "the extractors of features that may run here; without this key, those that come with Sordino",
    "feature_files": "files with weights of such extractors, which experiments name by their SHA-256",
    "clip": "the smallest and the largest clipping threshold that is accepted",
    "max_sampling": "the largest probability with which a record may enter a sum over all sites' records; without this "
    "key, any",
    "max_rounds": "the most rounds in which a run may ask this site, spare ones included; without this key, any number",
    "roster": "file with the sites that may be in a cohort; without it other sites' noise is not counted",
    "witness": "the folder, outside of this one, of the file that shows when this one was restored or copied; without "
    "this key, the user's state directory",
    "witnesses": "number of other sites of the roster that must confirm this one's ledger; without this key, all",
    "allow_trusted_server": "whether experiments may trust the server to follow the protocol (active_server = false)",
    "max_message_mb": "size of the largest message that is read, in MiB",
    "max_misfits": "number of refusals that may depend on the data; each tells the server something without noise",
    "methods": "the methods that may run here (last, so that a truncated file lacks them and is refused)",
}
"""Keys of `site.toml` in their order, each with the comment that stands above it."""
SCHEMA = "schema.toml"
"""Copy of the schema that the owner agreed to, in the site's folder."""
DEFAULT_LIMITS: dict[str, Any] = {"unit": "client", "max_epsilon": 8.0, "max_delta": 1e-5, "min_cohort": 3}
"""Limits of a new site whose owner gives none; they are written into its file."""


def rules_toml(rules: Rules) -> str:
    """Content of `site.toml`, with a comment on each key."""
    lines = [f"name = {toml_value(rules.name)}"]
    for key, comment in COMMENTS.items():
        value = getattr(rules, "schema_file" if key == "schema" else key)
        lines += ["", f"# {comment}", f"{key} = {toml_value(value)}" if value is not None else f"# {key} ="]
    return "\n".join(lines) + "\n"


def _csv_format_keys(path: Path) -> dict[str, Any]:
    """Keys that say how a CSV file is written, where that is unusual; none for other files, or where it cannot be read:
    the error is raised where its records are."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return {}
    found, usual = guess_format(path), Format()
    return {key: getattr(found, key) for key in WRITTEN if getattr(found, key) != getattr(usual, key)}


HANDLERS: dict[str, Callable[[SiteContext, Mapping[str, Any]], bytes]] = {
    "hello": answer_hello,
    "enrol": answer_enrol,
    "work": answer_work,
    "open": answer_open,
    "note": answer_note,
    "end": answer_end,
}


class Site:
    """An open site: its rules and records have been read, and no other process answers for it."""

    def __init__(
        self, context: SiteContext, witness: Witness, notices: Sequence[str], held: contextlib.ExitStack
    ) -> None:
        self.context, self._witness, self._held = context, witness, held
        self.notices = notices
        """Sentences for the owner to read before the site takes part."""
        self._witnessed: Head | None = None
        self._refused = ""
        self.name, self.identity = context.policy.rules.name, context.identity

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Open the site in a folder; refuse one that is open elsewhere, or whose ledger was altered or restored."""
        policy = read_rules(folder)
        with contextlib.ExitStack() as held:
            held.enter_context(lock_site(folder))
            file = read_records(folder, policy.rules)
            with SiteLedger(folder) as ledger:
                context = SiteContext(folder, policy, file, ledger.fact("identity"), ledger.fact("secret"))
                witness = Witness.of(folder, policy.rules, context.private, fingerprint_records(file))
                notices = _check_ledger(context, ledger, witness)
                remove_leftovers(folder, ledger)
            return cls(context, witness, notices, held.pop_all())

    @staticmethod
    def create(
        folder: Path, name: str, data: Path, *, label: str | None = None, schema: Path | None = None, **rules: Any
    ) -> bytes:
        """Create a site and return its public key.

        Args:
            folder: The site's folder, which must exist.
            name: Name of the site in rosters and messages.
            data: File with its records, absolute or relative to the folder.
            label: Label column, where the file is a table.
            schema: File with the schema that the owner agreed to. It is copied into the folder, and records that do
                not fit it are refused.
            rules: Other keys of `site.toml`; None stands for a default. How a table is written is read from it where
                it is not given.
        """
        if (folder / FILE).exists():
            raise UserError(f"There is a site in {folder} already: its ledger must not be lost.")
        given = (
            DEFAULT_LIMITS
            | {"methods": tuple(names())}
            | {key: value for key, value in rules.items() if value is not None}
        )
        agreed = None if schema is None else Schema.read(schema)
        if agreed is not None:
            if label not in (None, *agreed.label_names):
                known = " and ".join(map(repr, agreed.label_names))
                raise UserError(f"The label is {label!r}, but the schema's is {known}: leave one out.")
            label, given["schema"] = agreed.label_name, Path(SCHEMA)
        try:
            made = Rules(name=name, data=data, label=label, **(_csv_format_keys(folder / data) | given))
        except ValidationError as error:
            problem = error.errors()[0]
            raise UserError(f"Invalid value for {problem['loc'][0]}: {explain_invalid(problem)}.") from error
        file = read_records(folder, made)  # before anything is written, because it may fail
        if agreed is not None:
            read_by(agreed, file, made)
        if label is not None and isinstance(file.content, TextTable) and label not in file.content.columns:
            raise unknown("column", label, list(file.content.columns))
        with writing(folder / FILE):
            private, secret = keys.new_identity(), secrets.token_bytes(32)
            content = {"random": secrets.token_hex(32), "data": keyed_fingerprint(file, secret)}
            if made.roster is None:  # else the digest waits for the roster, which the owner has yet to put there
                content["rules"] = SitePolicy(made, None, agreed).digest(secret)
            begin = Entry("begin", content)
            # The witness first: if it cannot be written, no site has been created.
            Witness.of(folder, made, private, fingerprint_records(file)).write(
                Head(1, chain_link(FIRST_LINK, begin.to_json()))
            )
            SiteLedger.create(folder, {"identity": private, "secret": secret, WITNESSED: b"1"}, begin)
            if schema is not None:
                write_whole(folder / SCHEMA, read_file(schema))
            write_whole(folder / FILE, rules_toml(made))
        return keys.public_identity(private)

    def close(self) -> None:
        """Release the site's lock."""
        self._held.close()

    def answer(self, request: bytes) -> bytes:
        """Answer a message; the reply leaves only when the witness has the ledger's head. Never raises.

        Refusals give one of the fixed `SENTENCES`.
        """
        reply = self._dispatch(request)
        try:
            with SiteLedger(self.context.folder) as ledger:
                if ledger.head() != self._witnessed:
                    self._witnessed = self._witness.update(ledger)
        except WitnessError as error:
            return self._refuse("witness", error)
        except AlteredError as error:
            return self._refuse("closed", error)
        except DatabaseError as error:
            return self._refuse("disk", error)
        return reply

    def _dispatch(self, request: bytes) -> bytes:
        try:
            message = wire.unpack(request, self.context.policy.rules.max_message_mb * MEGABYTE)
            handler = HANDLERS.get(str(message.get("kind")))
            if handler is None:
                raise RefusedError("message", "its kind is unknown")
            if message.get("protocol") != wire.PROTOCOL:
                raise RefusedError(
                    "protocol",
                    f"The message has version {message.get('protocol')!r:.20}, this site has {wire.PROTOCOL}.",
                    version=VERSION,
                )
            return handler(self.context, message)
        except RefusedError as refused:
            return self._refuse(refused.code, refused.detail, **refused.more)
        except wire.WireError as error:
            return self._refuse("message", error)
        except AlteredError as error:
            return self._refuse("closed", error)
        except DatabaseError as error:
            return self._refuse("disk", error)
        except FAILURES:  # the text of an error may reveal the data, so it goes into the log only
            return self._refuse("failed", traceback.format_exc())

    def _refuse(self, code: str, detail: object, **more: Any) -> bytes:
        told = f"refused: {SENTENCES[code]} {detail}"
        if told != self._refused:  # a site that waits logs that once
            self.context.log(told)
        self._refused = told if more else ""
        return wire.pack({"ok": False, "code": code, "sentence": SENTENCES[code], **more})


def _check_ledger(context: SiteContext, ledger: SiteLedger, witness: Witness) -> list[str]:
    """Check the ledger's integrity and its witness, and note in it that data or rules have changed.

    Returns sentences for the owner.
    """
    ledger.check()
    witness.check(ledger)  # before anything is appended to the ledger
    entries = ledger.entries()
    now = {"data": keyed_fingerprint(context.file, context.secret), "rules": context.policy.digest(context.secret)}
    noted = {kind: last_noted(entries, kind) for kind in now}
    changed = [Entry(kind, {kind: digest}) for kind, digest in now.items() if noted[kind] != digest]
    if noted["data"] not in (None, now["data"]):
        witness.check_records()
    ledger.upgrade()
    if changed:
        with ledger.transaction():
            ledger.append(changed)
    witness.update(ledger)
    notices = [RULES_CHANGED] if noted["rules"] not in (None, now["rules"]) else []
    for sentence in notices:
        context.log(sentence)
    if ledger.is_witnessed():
        return notices
    with ledger.transaction():  # last: until this is stored, a missing witness is no reason to refuse
        ledger.set_fact(WITNESSED, b"1")
    first = f"This site's ledger now has a witness, {witness.path}, which shows whether the site's folder was restored."
    return [*notices, first]
