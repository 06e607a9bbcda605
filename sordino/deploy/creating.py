"""A new site: its rules, its identity, and a ledger with nothing in it but a beginning."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sordino.data.tables import Table
from sordino.deploy import keys
from sordino.deploy.book import WITNESSED, Book
from sordino.deploy.entries import Entry, Head, linked
from sordino.deploy.records import keyed_fingerprint, read_records
from sordino.deploy.rules import FILE, Allowed, Rules
from sordino.deploy.witness import Witness
from sordino.errors import UserError, unknown, writing
from sordino.files import write_whole
from sordino.methods import names
from sordino.privacy.ledger import BLANK
from sordino.toml import toml_value

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
        Witness.of(folder, made, private).write(Head(1, linked(BLANK, begin.written())))
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
