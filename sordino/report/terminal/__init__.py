"""Text for terminals whose encoding knows few characters."""

from __future__ import annotations

import codecs
import io
import sys

__all__ = ["catalogue", "columns", "degrade", "details", "metrics", "progress", "results"]

PLAIN = {"ε": "epsilon", "≤": "<=", "≥": ">=", "∞": "inf", "–": "-", "±": "+-", "…": "~", "━": "-", "•": "*"}
"""ASCII replacements for our characters beyond ASCII, and rich's; any other becomes a question mark."""


HANDLER = "sordino-plain"


def terminal_text(text: str) -> str:
    """Text as standard output will show it, so that a table that is measured beforehand keeps its columns in line."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, HANDLER).decode(encoding)


def degrade() -> None:
    """Let standard output and error replace what their encoding lacks, where they would refuse or garble it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def plainly(error: UnicodeError) -> tuple[str, int]:
    """Handle an encoding error: returns the replacement, and the position to go on from."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(character, "?") for character in lost), error.end


codecs.register_error(HANDLER, plainly)
