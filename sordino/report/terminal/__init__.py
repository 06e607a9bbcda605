"""What a terminal that knows few characters is shown in place of those it does not know."""

from __future__ import annotations

import codecs
import io
import sys

__all__ = ["degrade", "shown"]

PLAIN = {"ε": "epsilon", "≤": "<=", "≥": ">=", "∞": "inf", "–": "-", "±": "+-", "…": "~", "━": "-", "•": "*"}
"""Our characters beyond ASCII, and rich's, in ASCII. Any other becomes a question mark."""


HANDLER = "sordino-plain"


def shown(text: str) -> str:
    """The text as standard output will show it: a table that is told beforehand keeps its columns in line."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, HANDLER).decode(encoding)


def degrade() -> None:
    """Let standard output and error replace what their encoding lacks, where they would refuse or garble it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def plainly(error: UnicodeError) -> tuple[str, int]:
    """The handler of encoding errors: what to write instead, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(character, "?") for character in lost), error.end


codecs.register_error(HANDLER, plainly)
