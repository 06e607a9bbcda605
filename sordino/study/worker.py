"""Worker process of `compare` or `reproduce`: experiments come in on standard input, reports go out on standard output.

Each line is a JSON document. In: the keys of an experiment, and the number that its run shall have. Out: that a run has
begun, each round's report, then the run's name, or why there is none. Whatever a user's own code prints goes to
standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from typing import Any, TextIO

from sordino.errors import UserError
from sordino.simulator.serving import end_with


def main() -> None:
    """Work until standard input ends, or until the process that started this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; only the parent reacts
    end_with(int(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from sordino.experiment.config import Experiment
    from sordino.federation.rounds import RoundWatch
    from sordino.store.store import Store
    from sordino.study.run_cells import run_or_reuse

    for line in sys.stdin:
        try:
            keys, number = json.loads(line)
            experiment = Experiment.make(keys)
            with contextlib.closing(Store(experiment.store)) as store:
                summary = run_or_reuse(
                    experiment,
                    store,
                    RoundWatch(lambda report: _say(out, report=dataclasses.asdict(report))),
                    lambda run: _say(out, begun=run),
                    number,
                )
            _say(out, run=summary.run)
        except UserError as error:
            _say(out, refused=str(error))
        except BaseException as error:
            _say(out, failed=type(error).__name__)


def _say(out: TextIO, **content: Any) -> None:
    out.write(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
