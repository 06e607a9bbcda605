"""Accuracies that sites share: one question after the last round, noised, charged and summed like any other.

An experiment with `metrics_share` m keeps that share of its budget for the question. A site sends two numbers between
0 and 1: the accuracies of its personal model and of the server's model on its own test records. The server learns
their means, with noise. With z the noise multiplier of a round and T turns, rounds cost T / z^2 and the two numbers
2 s / z^2 of mu^2, so that each gets the share s = m T / (2 (1 - m)) of a round's budget.
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
AskSites = Callable[[Question, bool, Callable[[], None]], Answer]
"""The transport's `ask`: the question, whether to evaluate, and what charges for it before it is asked."""


def releases(share: float, turns: int) -> Releases:
    """Releases of the question, for which `share` of the budget of `turns` turns is kept."""
    each = share * turns / (len(NAMES) * (1 - share))
    return {name: Number(0.0, 1.0, share=each) for name in NAMES}


def answer(gate: Gate, sent: Releases, question: int, public: Public, figures: list[float | None]) -> Outcome:
    """A site's answer through its gate.

    Args:
        gate: The site's gate.
        sent: The question's releases.
        question: Number that noise from the seed is keyed by.
        public: Public values that bounds depend on.
        figures: Accuracies in the order of `NAMES`; None, where the site has no such model, contributes noise alone.
    """
    values = zip(sent, (math.nan if figure is None else figure for figure in figures), strict=True)
    rows = {name: torch.tensor([[value]]) for name, value in values}
    return Outcome(gate.passes(sent, rows, question, public), {}, None)


def collect(
    ask: AskSites, question: Question, sent: Releases, gate: Gate, run_state: RunState
) -> tuple[dict[str, float], float]:
    """Ask the sites for their accuracies.

    Args:
        ask: The transport's `ask`.
        question: The question, with the cohort that is asked.
        sent: Its releases.
        gate: The server's gate, which reads sums and messages.
        run_state: State of the run, in which the question is charged before it is asked.

    Returns:
        Means over the sites that answered, and the standard deviation of the noise on each.
    """
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


def make_message(model: Tensor | None) -> Message:
    """Message of the question: the server's model, where it has one for all clients."""
    return {} if model is None else {"global": model}
