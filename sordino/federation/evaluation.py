"""Evaluation that is paid for: one noised sum over test records, of the server's model, after the last round.

An experiment with `evaluation_share` e keeps that share of its budget (of mu^2) for one question. Each test record has
a row of a norm of at most one, which follows from its target and what the *released* model predicts for it. Of classes,
it falls into one public cell by its class and score (`sordino.tasks.histogram`); of numbers, rows hold errors up to a
public limit (`sordino.tasks.error_sums`), and of times squared errors of curves (`sordino.tasks.brier_sums`). Personal
models are judged at the client alone: a training record may move all that they say.

Where whole clients are protected, a client sends the mean of its test records' rows, a vector of length one at most.
With z the noise multiplier of a round, T turns and a share m for accuracies, rounds cost T / z^2 and the evaluation
s / z^2 of mu^2, so that it gets the share s = e T / (1 - e - m) of a round's budget. Where records are protected, it is
a sum over the test records of all clients, each of length one at most, with noise that the clients share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.federation.client import HISTOGRAM, MODEL, STEP, Question
from sordino.federation.message import Message
from sordino.federation.run_state import RunState
from sordino.federation.schedule import Schedule
from sordino.federation.transport import Answer
from sordino.privacy.gate import Gate
from sordino.privacy.release import CellCounts, Public, Releases, Update
from sordino.tasks import Task
from sordino.tasks.intervals import Figure, Released

Ask = Callable[[Question, bool, Callable[[], None]], Answer]
"""A transport's `ask`: the question, whether to evaluate, and what charges for it before it is asked."""


def evaluation_steps(
    share: float, others: float, turns: int, task: Task, protects_records: bool
) -> dict[str, Releases]:
    """The step by its name, with what it sends; empty where no share of the budget is kept for it.

    Args:
        share: Share of the budget for it.
        others: Share of the budget for accuracies that sites share.
        turns: Most turns of a client that its budget pays for.
        task: The task.
        protects_records: Whether single records are protected, not whole clients.
    """
    if not share:
        return {}
    cells = task.evaluated
    if protects_records:
        return {STEP: {HISTOGRAM: CellCounts(1.0, share, cells)}}
    return {STEP: {HISTOGRAM: Update(1.0, share * turns / (1 - share - others), entries=cells)}}


@dataclass(frozen=True)
class Evaluation:
    """Figures of the server's model over all test records, as far as they were paid for."""

    figures: dict[str, Figure | None]
    """Each with a 95 % interval that holds the noise; None where noise drowns what it is about."""
    noise: float
    """Standard deviation of the noise on each entry of the sum."""
    cells: int
    """Number of its entries."""
    records: float | None
    """Number of test records, from the noisy counts; None where each client counts as one."""

    def notes(self) -> list[str]:
        """Sentence where noise drowns the counts."""
        lost = [name for name, one in self.figures.items() if one is None]
        if not lost:
            return []
        more = "." if self.records is not None else ", or protect records: whole clients count as one each."
        return [
            f"The private evaluation cannot report {', '.join(lost)}: noise of standard deviation {self.noise:.3g} on "
            f"each of {self.cells} sums exceeds the records. Raise evaluation_share{more}"
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the evaluation."""
        figures = {name: None if one is None else vars(one) for name, one in self.figures.items()}
        return {"figures": figures, "noise": self.noise, "cells": self.cells, "records": self.records}


def ask_after_last_round(
    ask: Ask, question: Question, sent: Releases, gate: Gate, run_state: RunState
) -> tuple[dict[str, Tensor], dict[str, float], Public]:
    """Ask a question after the last round: charged before it is asked, like any other.

    Args:
        ask: The transport's `ask`.
        question: The question, with the cohort that is asked.
        sent: Its releases.
        gate: The server's gate, which reads sums and messages.
        run_state: State of the run, in which the question is charged.

    Returns:
        What `Replies.mean` would give of each release, the standard deviation of the noise on each entry of it, and
        the public values with those who answered.
    """
    public = Public(question.message, question.clients)

    def charge() -> None:
        about = (question.number, question.round, question.step)
        run_state.charge(run_state.ledger.charge(sent, *about, gate.allowance, public))

    answer = ask(question, False, charge)
    run_state.answered(question.number, answer.drawn)
    who = Public(question.message, question.clients if answer.who is None else answer.who)
    means, deviations = {}, {}
    for name, release in sent.items():
        values = answer.values[name]
        mean = gate.mean_of_sum(release, values[0], who) if answer.summed else gate.mean(release, values, who)
        means[name] = mean + release.centre()
        noise = float(release.deviation(gate.allowance, who).max())
        deviations[name] = noise * release.weight(gate.allowance, who) / len(who.clients)
    return means, deviations, who


def evaluate(
    ask: Ask, question: Question, steps: Mapping[str, Releases], gate: Gate, run_state: RunState, task: Task
) -> Evaluation:
    """Ask clients for the noised sum, and work out the figures that follow from it."""
    sent = steps[STEP]
    means, deviations, _ = ask_after_last_round(ask, question, sent, gate, run_state)
    counts, of_records = means[HISTOGRAM].double().numpy(), sent[HISTOGRAM].record_level
    released = Released(counts, deviations[HISTOGRAM], of_records)
    records = task.evaluated_records(counts) if of_records else None
    return Evaluation(task.evaluation_figures(released), released.deviation, len(counts), records)


def message_of(model: Tensor) -> Message:
    """Message of the question: the server's model."""
    return {MODEL: model}


COUNTED = "counts of test records by class and score of the shared model, one cell each, Gaussian noise"
SUMMED = "sums over test records of errors of the shared model, each up to a public limit, Gaussian noise"
"""Descriptions of the noised sum, for classes and for others."""
NO_SHARED_MODEL = (
    "The share of the budget for an evaluation was not used: the server has no model that is the same for all clients, "
    "and others are judged at the clients alone."
)


def whom_to_ask(schedule: Schedule, gate: Gate) -> list[int]:
    """Clients that are asked after the last round: as many as in a round, drawn without looking at data."""
    drawn = torch.randperm(schedule.clients, generator=gate.source.generator(STEP))
    return sorted(drawn[: schedule.cohort].tolist())
