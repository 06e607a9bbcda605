"""Reading users' TOML files, and writing TOML, which Python's library cannot."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sordino.errors import UserError, quoted
from sordino.util.files import read_text

CUT = re.compile(r"=[ \t]*[+-]?[0-9][0-9A-Za-z_.+-]*\Z")
"""A number at the very end of a file: `rounds = 30`, truncated, reads as `rounds = 3`. Other values show their end."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file that a user names; refuse one that may be truncated within a number. Raises an `OSError` if it
    cannot be read and a `ValueError` if it is not TOML."""
    text = read_text(path)
    found = tomllib.loads(text)
    if CUT.search(text):
        raise UserError(
            f"{path} ends in the middle of its last line, {quoted(text.splitlines()[-1])}: it may have been cut. End "
            "it with a line break."
        )
    return found


def toml_key(name: str) -> str:
    """Format a key, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_sections(name: str, table: Mapping[str, Any]) -> list[str]:
    """Format a table as lines under its heading; tables within it get headings of their own."""
    given = {key: value for key, value in table.items() if value is not None}
    plain = {key: value for key, value in given.items() if not isinstance(value, Mapping)}
    lines = [f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    if lines or not given:
        lines = ["", f"[{name}]", *lines]
    for key, value in given.items():
        if key not in plain:
            lines += toml_sections(f"{name}.{toml_key(key)}", value)
    return lines


def toml_value(value: Any) -> str:
    """Format a text, path, number, truth value, list or table as TOML. Keys whose value is None are left out; tables
    in a list get a line each."""
    if isinstance(value, Mapping):
        known = [f"{toml_value(key)} = {toml_value(one)}" for key, one in value.items() if one is not None]
        return "{" + ", ".join(known) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        gap = ",\n  " if any(isinstance(one, Mapping) for one in value) else ", "
        return "[" + gap.join(toml_value(one) for one in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    # What JSON writes, TOML reads; but one character that JSON leaves as it is must be escaped.
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False).replace("\x7f", "\\u007f")
