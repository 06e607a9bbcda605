"""A log of JSON lines for machines: sentences, rounds and errors of a service, one document a line."""

from __future__ import annotations

import datetime
import json
import math
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from sordino.util.display import Telling

Level = Literal["info", "error"]


class JsonLines:
    """A display that writes lines of JSON: `time` (UTC), `service`, `level`, `event` and what belongs to the event."""

    def __init__(self, service: str, stream: TextIO | None = None) -> None:
        """Log for a `service` to a stream, by default to standard error."""
        self._service, self._stream = service, sys.stderr if stream is None else stream
        self._lock = threading.Lock()

    def write(self, event: str, level: Level = "info", **content: Any) -> None:
        """Write a line on an event."""
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "service": self._service, "level": level, "event": event, **content}
        with self._lock:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()

    def say(self, sentence: str) -> None:
        """Write a sentence."""
        self.write("told", text=sentence)

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        """Log of the rounds of a run."""
        return _Rounds(self, rounds)

    def total(self, done: int, runs: int) -> None:
        """Write nothing: a service has one run."""


class _Rounds:
    def __init__(self, log: JsonLines, rounds: int) -> None:
        self._log, self._rounds = log, rounds

    def __call__(self, report: Any) -> None:
        epsilon = {view: value for view, value in report.epsilon.items() if math.isfinite(value)}
        self._log.write("round", round=report.round + 1, rounds=self._rounds, sites=report.cohort, epsilon=epsilon)

    def blending(self, done: int, clients: int) -> None:
        """Write nothing: sites blend by themselves."""

    def end(self, personal: float | None = None) -> None:
        """Write nothing: the run's result follows."""
