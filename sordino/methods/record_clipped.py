"""The base of methods that protect records under thresholds which may move."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.methods.bases import RecordLevel
from sordino.parts.record_thresholds import Fixed, RecordClipping


@dataclass(frozen=True)
class RecordClipped(RecordLevel):
    """A record-level method whose clients' thresholds may follow any rule."""

    clipping: RecordClipping = Fixed()
    """How each client's threshold is chosen: `fixed`, `quantile`, `median` or `percentile`, each with its own
    settings."""
