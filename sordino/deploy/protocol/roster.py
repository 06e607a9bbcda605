"""Rosters: the names and lasting public keys of a federation's sites, in the order of their client numbers."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.errors import UserError, quoted
from sordino.util.toml import read_toml

IDENTITY_BYTES = 32
"""Length of an Ed25519 public key."""
NAME_LENGTH = 64
"""Most letters of a site's name."""


@dataclass(frozen=True)
class Member:
    """One site of a federation."""

    name: str
    identity: bytes
    """Lasting Ed25519 public key."""


def fingerprint(identity: bytes) -> str:
    """Fingerprint of a public key for people to compare: 80 bits of its hash, in groups of four hexadecimal digits."""
    digits = hashlib.sha256(identity).hexdigest()[:20]
    return " ".join(digits[place : place + 4] for place in range(0, len(digits), 4))


def read_roster(path: Path) -> list[Member]:
    """Read a roster: a TOML file with a table [[site]] with `name` and `identity` for each site."""
    try:
        table = read_toml(path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"The roster {path} cannot be read: {error}.") from error
    rows = table.get("site", [])
    if not isinstance(rows, list) or not rows:
        raise UserError(f"The roster {path} names no site: write a table [[site]] with name and identity for each.")
    members = [_member(row, path) for row in rows]
    check_members(members, f"The roster {path}")
    return members


def check_members(members: Sequence[Member], where: str) -> None:
    """Refuse a roster that names a site twice; `where` names the roster in the error."""
    for what, values in (("name", [one.name for one in members]), ("identity", [one.identity for one in members])):
        if len(set(values)) < len(values):
            raise UserError(f"{where} has the same {what} twice: each site needs its own.")


def roster_toml(members: Sequence[Member]) -> str:
    """Roster as TOML. It holds no fingerprints: readers compute them, because a comment could lie."""
    rows = [
        f'[[site]]\nname = {json.dumps(one.name, ensure_ascii=False)}\nidentity = "{one.identity.hex()}"\n'
        for one in members
    ]
    return "\n".join(rows)


def _member(row: object, path: Path) -> Member:
    name, identity = (row.get("name"), row.get("identity")) if isinstance(row, dict) else (None, None)
    try:
        key = bytes.fromhex(identity) if isinstance(identity, str) else b""
    except ValueError:
        key = b""
    if not isinstance(name, str) or not name or len(key) != IDENTITY_BYTES:
        raise UserError(
            f"The roster {path} has a site (name: {quoted(name)}) without name or identity of 64 hexadecimal digits: "
            "copy it from `sordino serve roster`."
        )
    if not name.isprintable():  # it is shown beside the fingerprint that owners compare, and must not hide another
        raise UserError(f"The roster {path} has a site called {quoted(name)}: use characters that can be shown.")
    return Member(name, key)
