"""Refusals that depend on a site's data (labels or sizes that do not fit): each is told a few times at most.

A refusal that depends on the data is a release without noise, of one bit. A server that asks again and again, with
other labels, other ranges or another delta, could learn which values occur and how many records there are. So each such
refusal stands in the ledger, and when the owner's `max_misfits` of them have been told, the site refuses before it
looks at its data. What was told once may be told again.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from sordino.deploy.book import Book
from sordino.deploy.entries import Entry, noted_last
from sordino.deploy.rules import Allowed, RefusedError

KIND = "misfit"


@contextlib.contextmanager
def telling(book: Book, allowed: Allowed, about: str) -> Iterator[None]:
    """Where something looks at the data; `about` is what was asked, so that the same question is counted once."""
    entries = book.entries()
    told = {entry.content["about"] for entry in entries if entry.kind == KIND}
    this = f"{about} {noted_last(entries, 'data')}"
    if this not in told and len(told) >= allowed.rules.max_misfits:
        raise RefusedError("misfits", f"max_misfits is {allowed.rules.max_misfits}")
    try:
        yield
    except Exception as error:
        if this not in told:
            with book.transaction():
                book.append([Entry(KIND, {"about": this})])
        if isinstance(error, RefusedError):
            raise
        raise RefusedError("failed", traceback.format_exc()) from error
