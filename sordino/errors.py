"""Errors written for the person who made the mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave: one sentence that says what was wrong and what to do.

    The command line prints it and ends with exit code 2.
    """


class WorkerError(UserError):
    """A process that did part of a run's work is gone: nobody's mistake, and the run can be taken up."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C while a run was under way: one sentence that says how to take it up."""


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest names that do.

    `what` is the kind of thing ("method"), `given` the name that was written, `known` the right ones.
    """
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}."
    return UserError(f"There is no {what} {given!r}; {hint}")
