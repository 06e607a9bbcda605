"""Transcripts: everything that each observer sees of a run, as the federation itself records it.

The server's side writes an `Exchange` for every question: what was broadcast, to whom, what came back, and what the
method's script read of it. A script learns of clients by reading alone, so whatever it publishes, to peers or to
outsiders, is a function of what it read: sums that it read are seen by all, and so are single messages that it read.
The server sees every message. What comes back without having been declared never gets into a transcript: the run ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from sordino.errors import UserError
from sordino.federation.client import Question
from sordino.federation.transport import Answer
from sordino.privacy.release import Public, Releases
from sordino.privacy.views import View

Reading = Literal["mean", "rows"]


@dataclass
class Exchange:
    """One question, its answer, and what was read of that."""

    question: Question
    releases: Releases
    """Releases that were due in this round."""
    public: Public
    """Everything that bounds and noise depended on."""
    answer: Answer
    read: dict[tuple[str, Reading], Tensor] = field(default_factory=dict)
    """Values that the script read, by release and way of reading."""

    def sees(self, release: str, view: View) -> Reading | None:
        """Single messages of a release, their mean, or nothing: as much as an observer sees of it."""
        if view == "server" or (release, "rows") in self.read:
            return "rows"
        return "mean" if (release, "mean") in self.read else None


@dataclass
class Transcript:
    """All exchanges of a run, in order."""

    exchanges: list[Exchange] = field(default_factory=list)

    def note(self, question: Question, releases: Releases, public: Public, answer: Answer) -> Exchange:
        """Record a question and its answer; one with values that were not declared is refused."""
        undeclared = sorted(set(answer.values) - set(releases))
        if undeclared:
            raise UserError(f"{', '.join(undeclared)} came back from clients, which {question.step} does not declare.")
        exchange = Exchange(question, releases, public, answer)
        self.exchanges.append(exchange)
        return exchange
