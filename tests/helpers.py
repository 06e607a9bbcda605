"""Running the command line, in this process, where torch is loaded only once, or as a process; and the methods."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sordino.cli import main
from sordino.method import Method
from sordino.methods import find, names
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.store.run_summary import Summary
from sordino.study.compare import ComparisonRow, OverSeeds

QUICK = ("--clients=8", "--rounds=2", "--partition=iid", "--workers=1", "--set=epochs=1", "--set=batch=64")
"""A run of a tenth of a second on the built-in digits."""
QUICK_KEYS: dict[str, Any] = {
    **{"clients": 8, "rounds": 2, "partition": "iid", "workers": 1},
    "set": {"epochs": 1, "batch": 64},
}
"""The same for Python."""


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The last line of standard output, read as JSON."""
        return json.loads(self.out.splitlines()[-1])


def summary_of(**more: Any) -> Summary:
    """A run's result with the given fields; the others are those of a small run."""
    fields: dict[str, Any] = {
        **{"run": "x-1", "method": "x", "called": "x", "variant": "sound", "privacy": "dp", "seed": 0, "seconds": 1.0},
        **{"rounds": 2, "rounds_done": 2, "clients": 3, "parameters": 1234, "upload_bytes": 0},
        "accuracy": {"personal": 0.5, "personal_worst": 0.25, "start": 0.4, "global": None},
        **{"epsilon": dict.fromkeys(VIEWS, 8.0), "attack_accuracy": dict.fromkeys(VIEWS, 1.0), "delta": 1e-5},
        **{"unit": "client", "protect_from": "outsider", "noise_multiplier": 1.0, "not_covered": [], "notes": []},
        "spent": {"unit": "client", "mu": [1.0, 1.0, 1.0], "recipes": []},
    }
    found = fields | more
    return Summary(**found | {"unit": Unit(found["unit"])})


def row_of(method: str, **more: Any) -> ComparisonRow:
    """A row of a comparison with the given fields; the others are those of two small runs."""
    figure = OverSeeds(0.75, 0.02)
    fields: dict[str, Any] = {
        **{"method": method, "at": {}, "variant": "sound", "unit": "client", "seeds": 2, "seconds": 1.26},
        "accuracy": {"personal": figure, "personal_worst": figure, "start": figure, "global": None},
        **{"against_local": None, "epsilon": {"outsider": 8.001, "peer": 8.5, "server": None}, "delta": 1e-5},
        **{"not_covered": [], "notes": [], "runs": ["x-1", "x-2"], "by_seed": []},
        "curves": [[{"round": r, "personal": 0.5 + 0.1 * r, "start": 0.5, "global": None} for r in range(3)]],
    }
    found = fields | more
    return ComparisonRow(**found | {"unit": Unit(found["unit"])})


def command(*arguments: object) -> Outcome:
    """`sordino ARGUMENTS...`, as the shell would see it."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["sordino", *(str(argument) for argument in arguments)]
    code = 0
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(*arguments: object) -> str:
    """The sentence with which `sordino ARGUMENTS...` is refused; nothing else may be printed."""
    outcome = command(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("Error: ")
    return lines[0].removeprefix("Error: ")


TAKES_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Whoever runs the tests in the background of a shell ignores Ctrl-C, and so would what they start."""


def start_process(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process that runs `script` with `arguments` and then ends."""
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(root), "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-c", f"{TAKES_CTRL_C}\n{script}", *(str(argument) for argument in arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def process(script: str, *arguments: object) -> Outcome:
    """What came of such a process."""
    started = start_process(script, *arguments)
    out, err = started.communicate(timeout=120)
    return Outcome(started.returncode, out, err)


COMMAND = "from sordino.cli import main; main()"
"""The script that is the command line."""


def has_paper_variant(kind: type[Method]) -> bool:
    """Whether anything of a method looks at its variant: where nothing does, `paper` is `sound` by another name."""
    own = [inspect.getsource(part) for part in kind.__mro__ if part.__module__.startswith("sordino.methods.")]
    accounts = kind.published_multiplier is not Method.published_multiplier
    return accounts or "paper" in kind.caveats or any("self.variant" in source for source in own)


ALL = [(name, "sound") for name in names()] + [(name, "paper") for name in names() if has_paper_variant(find(name))]
"""Every method, in every variant that is another one."""
FOREMOST = ("local", "dp-fedavg", "feddpa", "fedglp-adp", "acdp-pfsd", "dp-fedavg-record", "pac-dp", "adadp-cfl")
"""Methods that every test over methods runs each time; long ones run the others in the slow part."""
KINDS = ("local", "dp-fedavg", "feddpa", "dp-fedavg-record", "dp-fedsgd", "adadp-cfl")
"""One method of each kind: without messages, updates of whole clients, parts of them, noisy gradients of records, sums
over records, and groups of clients. The longest tests run the others in the slow part."""


UNSTACKED = {("adadp-cfl", "paper"), ("dp-scaffold", "paper")}
"""Methods whose steps look at single records besides taking gradients: their clients go one by one."""


def otherwise_slow(cases: Iterable[Any], often: Callable[[Any], bool]) -> list[Any]:
    """Parameters of a test that runs each time for the cases that are to run `often`, and is slow for the others."""
    marks = {True: (), False: (pytest.mark.slow,)}
    each = [(case if isinstance(case, tuple) else (case,), marks[bool(often(case))]) for case in cases]
    return [pytest.param(*given, marks=mark) for given, mark in each]


SITE_LIMITS: dict[str, Any] = {
    **{"unit": "client", "max_epsilon": 8.0, "max_delta": 1e-5, "min_cohort": 3, "methods": ("dp-fedavg",)}
}
"""Keys that a site's rules must have."""
