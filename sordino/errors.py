"""Errors written for the person who made the mistake."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_NAMES = 30
"""How many known names a sentence lists."""


class UserError(Exception):
    """A mistake in what the user gave: one sentence that says what was wrong and what to do.

    The command line prints it and ends with exit code 2.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython and notebooks show of it: the sentence, without the calls that led to it."""
        return [f"{type(self).__name__}: {self}"]


class ProblemsError(UserError):
    """Several mistakes at once, each a sentence of its own."""

    def __init__(self, where: str, sentences: Sequence[str]) -> None:
        self.sentences = list(sentences)
        super().__init__("\n".join([f"{len(self.sentences)} problems in {where}:", *self.sentences]))


def refuse(where: str, sentences: Sequence[str]) -> None:
    """Raise what is wrong, all of it; nothing where nothing is."""
    if len(sentences) == 1:
        raise UserError(sentences[0])
    if sentences:
        raise ProblemsError(where, sentences)


class WorkerError(UserError):
    """A worker process died or ran out of memory: nobody's mistake, and the run can be resumed."""


MACHINE = (WorkerError, OSError, MemoryError)
"""Errors that the machine may have caused: resuming the run may succeed."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C while a run was under way: one sentence that says how to take it up."""


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest names that do.

    `what` is the kind of thing ("method"), `given` the name that was written, `known` the right ones.
    """
    names = sorted(known)
    lower = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(given.lower(), list(lower), n=1, cutoff=0.5)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    hint = f"did you mean {lower[near[0]]!r}?" if near else f"known are: {', '.join(names[:MOST_NAMES])}{more}."
    if not given.strip():
        return UserError(f"No {re.sub(r'( called| named|:)$', '', what)} is named; {hint}")
    return UserError(f"There is no {what} {quoted(given)}; {hint}")


def quoted(value: object) -> str:
    """A value as it was written, in short: what a user gave may be a book."""
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-50:]}"


def wrong(problem: Mapping[str, Any]) -> str:
    """What pydantic says is wrong, with tiny bounds in powers of ten: it would write 1e-100 as a hundred digits."""
    tiny = [bound for bound in problem.get("ctx", {}).values() if isinstance(bound, float) and 0 < bound < 1e-4]
    said = str(problem["msg"])
    return f"{said.rpartition(' ')[0]} {tiny[0]:g}" if tiny else said


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file that the user asked for; what keeps it from being written becomes a sentence."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}; name another place.") from error
    except ValueError as error:  # a kind of picture that is not known, or a name that is none
        raise UserError(f"{path} cannot be written: {error}.") from error


def check_writable(path: Path | None) -> None:
    """Refuse a place where nothing can be written, before the work that it is for; nothing is left behind there."""
    if path is None:
        return
    with writing(path):
        final = path.resolve()  # a link is left as it is
        there = final.exists()
        final.open("a").close()
        if not there:
            final.unlink()
