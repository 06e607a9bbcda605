"""Errors that are shown to users as one sentence, helpers that word them, and the check of output paths."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_NAMES_LISTED = 30
"""Largest number of known names that a sentence lists."""


BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
"""Words before the bound of a value, for pydantic's types of problems."""
WANTED = {
    "missing": "given",
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string_type": "a text, in quotes",
    "path": "the name of a file, in quotes",
    "tuple_type": "a list, in brackets",
    "list_type": "a list, in brackets",
    "dict_type": "a table of names and values",
    "model_type": "a table of names and values",
}
"""Words for values of a kind, by the beginning of pydantic's types of problems."""


class UserError(Exception):
    """A mistake in what the user gave: one sentence that says what was wrong and what to do.

    The command line prints it and ends with exit code 2.
    """

    def _render_traceback_(self) -> list[str]:
        """Return what IPython and notebooks show: the sentence without the calls that led to it."""
        return [f"{type(self).__name__}: {self}"]


class ProblemsError(UserError):
    """Several mistakes at once, one sentence each."""

    def __init__(self, where: str, sentences: Sequence[str]) -> None:
        self.sentences = list(sentences)
        super().__init__("\n".join([f"{len(self.sentences)} problems in {where}:", *self.sentences]))


def refuse(where: str, sentences: Sequence[str]) -> None:
    """Raise one error for all `sentences`, if there are any; `where` names the file or folder they are about."""
    if len(sentences) == 1:
        raise UserError(sentences[0])
    if sentences:
        raise ProblemsError(where, sentences)


class WorkerError(UserError):
    """A worker process died or ran out of memory: not the user's mistake; the run can be resumed."""


MACHINE = (WorkerError, OSError, MemoryError)
"""Errors that the machine may have caused: resuming the run may succeed."""


FAILURES = (Exception, SystemExit, GeneratorExit)
"""Errors with which code of the user's own fails: `sys.exit(0)` in it must not end the program as if all were well.
Ctrl-C is none of them."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a run: one sentence that says how to resume it."""


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """Make the error for a name that does not exist, with the nearest name that does.

    Args:
        what: Kind of thing, such as "method".
        given: The name that was written.
        known: The names that exist.
    """
    names = sorted(known)
    lower = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(given.lower(), list(lower), n=1, cutoff=0.6)
    more = f" and {len(names) - MAX_NAMES_LISTED} more" if len(names) > MAX_NAMES_LISTED else ""
    hint = f"did you mean {lower[near[0]]!r}?" if near else f"known are: {', '.join(names[:MAX_NAMES_LISTED])}{more}."
    if not given.strip():
        return UserError(f"No {re.sub(r'( called| named|:)$', '', what)} is named; {hint}")
    return UserError(f"There is no {what} {quoted(given)}; {hint}")


def quoted(value: object) -> str:
    """Quote a value as it was written; of more than 200 characters, the first 100 and the last 50."""
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-50:]}"


def explain_invalid(problem: Mapping[str, Any]) -> str:
    """Return what a value must be instead, after pydantic's word on it: "it must be at least 1".

    Args:
        problem: entry of `ValidationError.errors()`.
    """
    kind, about = str(problem["type"]), problem.get("ctx", {})
    if kind in BOUNDS:
        (bound,) = about.values()
        return f"it must be {BOUNDS[kind]} {f'{bound:g}' if isinstance(bound, float) else f'{bound:,}'}"
    if kind in ("literal_error", "enum"):
        return f"it must be {about['expected']}"
    if kind.endswith("too_short"):
        least = about["min_length"]
        return "it must not be empty" if least == 1 else f"it needs at least {least:,} {_parts(kind)}"
    if kind.endswith("too_long"):
        return f"it may have no more {_parts(kind)} than {about['max_length']:,}"
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    wanted = next((words for start, words in WANTED.items() if kind.startswith(start)), None)
    said = str(problem["msg"])
    return f"it must be {wanted}" if wanted is not None else said[:1].lower() + said[1:]


def _parts(kind: str) -> str:
    """Parts of a text or of a list, which pydantic counts."""
    return "characters" if kind.startswith("string") else "entries"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of an output file, and turn failures to write into errors for the user."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}; choose another path.") from error
    except ValueError as error:  # an unknown image format, or an invalid path
        raise UserError(f"{path} cannot be written: {error}.") from error


def check_writable(path: Path | None) -> None:
    """Refuse an output path that cannot be written, before the work that it is for. No file is left there."""
    if path is None:
        return
    with writing(path):
        final = path.resolve()  # a link is left as it is
        there = final.exists()
        final.open("a").close()
        if not there:
            final.unlink()
