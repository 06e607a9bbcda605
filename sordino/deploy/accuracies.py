"""Mean accuracies over the sites of a deployment: each site answers one question after the last round with two noised
numbers, for its personal model and for the server's.

An experiment with `metrics_share` m keeps that share of its budget for the question. A site sends two numbers between
0 and 1: the accuracies of its personal model and of the server's model on its own test records. The server learns
their means, with noise. With z the noise multiplier of a round and T turns, rounds cost T / z^2 and the two numbers
2 s / z^2 of mu^2, so that each gets the share s = m T / (2 (1 - m)) of a round's budget.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.federation.client import Outcome, Question
from sordino.federation.evaluation import Ask, ask_after_last_round
from sordino.federation.message import Message
from sordino.federation.run_state import RunState
from sordino.privacy.gate import Gate
from sordino.privacy.release import Number, Public, Releases

STEP = "accuracies"
NAMES = ("personal", "global")


def releases(share: float, turns: int, others: float = 0.0) -> Releases:
    """Releases of the question, for which `share` of the budget of `turns` turns is kept, and `others` for what else is
    asked after the last round."""
    each = share * turns / (len(NAMES) * (1 - share - others))
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
    ask: Ask, question: Question, sent: Releases, gate: Gate, run_state: RunState
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
    means, deviations, _ = ask_after_last_round(ask, question, sent, gate, run_state)
    found = {name: float(means[name]) for name in sent if name in ("personal", *question.message)}
    return found, deviations["personal"]


def make_message(model: Tensor | None) -> Message:
    """Message of the question: the server's model, where it has one for all clients."""
    return {} if model is None else {"global": model}
