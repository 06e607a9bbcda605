"""Versions of a site and of a server that meet: whether they understand each other, and who must upgrade otherwise."""

from __future__ import annotations

import re

from sordino.deploy.protocol.wire import PROTOCOL
from sordino.version import VERSION

SPOKEN = f"{PROTOCOL}/{VERSION}"
"""Protocol and version of this program, as each end of a connection tells the other."""
NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)


def is_understood(spoken: str | None) -> bool:
    """Whether the other end has the protocol of this one; `spoken` is what it told, None where it told nothing."""
    return spoken is not None and spoken.partition("/")[0] == str(PROTOCOL)


def version_in(spoken: str | None) -> str | None:
    """Version that the other end told; None where it told none."""
    return None if spoken is None else spoken.partition("/")[2]


def upgrade_advice(site: object, server: object) -> str:
    """Sentence on who must upgrade where site and server do not fit together, from the version of each.

    An end that names none, or one that cannot be read, has an earlier version than the first that did.
    """
    theirs, ours = _numbers(site), _numbers(server)
    if theirs is None:
        return f"The site's version is older than {server}, which the server has: the site must be upgraded."
    if ours is None:
        return f"The server's version is older than {site}, which the site has: the server must be upgraded."
    if theirs == ours:
        return f"Both have {server}, but not the same code: install the same package on both."
    return f"The site has {site}, the server {server}: the {'site' if theirs < ours else 'server'} must be upgraded."


def _numbers(version: object) -> tuple[int, ...] | None:
    found = NUMBERS.fullmatch(version) if isinstance(version, str) else None
    return None if found is None else tuple(map(int, found.groups()))
