"""Accuracies that sites share: one more question behind the last round, noised, charged and summed like any other.

An experiment with `metrics_share` m keeps that share of its budget for it. A site sends two numbers between 0 and 1:
how well its personal model does on its own test records, and the server's model. What the server learns are their
means, with noise. With z the noise multiplier of a round and T turns, rounds cost T / z^2 and the two numbers
2 s / z^2 of mu^2, so that their share of a round's budget is s = m T / (2 (1 - m)) each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sordino.federation.client import Outcome, Question
from sordino.federation.message import Message
from sordino.federation.run_state import RunState
from sordino.federation.transport import Answer
from sordino.privacy.gate import Gate
from sordino.privacy.release import Number, Public, Releases

STEP = "accuracies"
NAMES = ("personal", "global")
Ask = Callable[[Question, bool, Callable[[], None]], Answer]


def releases(share: float, turns: int) -> Releases:
    """What the question sends, where `share` of the budget is kept for it."""
    each = share * turns / (len(NAMES) * (1 - share))
    return {name: Number(0.0, 1.0, share=each) for name in NAMES}


def answered(gate: Gate, sent: Releases, question: int, public: Public, figures: list[float | None]) -> Outcome:
    """A site's answer; an accuracy that it does not have is a null contribution."""
    values = zip(sent, (math.nan if figure is None else figure for figure in figures), strict=True)
    rows = {name: torch.tensor([[value]]) for name, value in values}
    return Outcome(gate.passes(sent, rows, question, public), {}, None)


def shared(
    ask: Ask, question: Question, sent: Releases, gate: Gate, run_state: RunState
) -> tuple[dict[str, float], float]:
    """The means over sites of what they share, and the deviation of the noise on each."""
    public = Public(question.message, question.clients)

    def charge() -> None:
        about = (question.number, question.round, question.step)
        run_state.charge(run_state.ledger.charge(sent, *about, gate.allowance, public))

    answer = ask(question, False, charge)
    who = Public(question.message, question.clients if answer.who is None else answer.who)

    def mean(name: str) -> Tensor:
        release, values = sent[name], answer.values[name]
        if answer.summed:
            return gate.mean_of_sum(release, values[0], who) + release.centre()
        return gate.mean(release, values, who) + release.centre()

    found = {name: float(mean(name)) for name in sent if name in ("personal", *question.message)}
    deviation = float(sent["personal"].deviation(gate.allowance, who)) / len(who.clients)
    return found, deviation


def message(model: Tensor | None) -> Message:
    """What sites are told: the server's model, where it has one for all."""
    return {} if model is None else {"global": model}
