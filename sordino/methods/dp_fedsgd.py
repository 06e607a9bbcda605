"""DP-FedSGD: distributed DP-SGD, one noisy sum of records' gradients in each round, whose noise the clients share.

Heikkila, Koskela, Shimizu, Kaski, Honkela, "Differentially Private Cross-Silo Federated Learning", 2020 (arXiv
2007.05553); also Dopamine (Malekzadeh et al., 2021, arXiv 2101.11693) and DeCaPH (Fang et al., 2024, arXiv 2402.00205).
Each client sums the gradients of its records at the server's model, each limited to a threshold, and adds its share of
the noise. The server sees the sum over all clients, divides it by the expected number of records and takes a step.
Nothing that a client computed from its own message influences anything: between rounds clients remember nothing.

With `protect_from = "outsider"` the noise of one sum protects every record from whoever sees sums and models; on real
machines a secure sum shows nothing else to the server. With `protect_from = "server"` each message carries all of it.

Departures: the papers average over a fixed batch; here each record enters with probability `sampling`, and the sum is
divided by the public expectation. Their step is constant; here it is capped by the noise, which is public, and the
served model is the mean of the last half of the rounds. A noisy count of the labels (or sum of a number) sets the bias
of the output layer to begin with: 3 % of the budget, without which rare outcomes are learned last.

| paper | code |
|---|---|
| C, sigma | `threshold["clip"]`, the multiplier of the record plan over the root of the guaranteed shares |
| q, T | `sampling`, `rounds` |
| eta | `largest_step`, limited by `walk`; times the server's rate |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from sordino.errors import UserError
from sordino.learning.parameters import Layout
from sordino.method import ADDED_LATER, Federation, Message, NotNegative, Positive, Replies, Result, State
from sordino.methods.bases import RecordLevel
from sordino.parts.sum_thresholds import SumClipping, SumFixed
from sordino.privacy.budget.record_level_plan import Varied
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import RecordSum, sends

CLIP_PER_FEATURE = 0.15
"""Threshold of a linear model's gradients, over the root of twice its features and one for the intercept. Signal
over noise at the start, (min(c, p) + min(c, 1 - p)) / c where a share p of the records has the rarer outcome, is
largest for c up to p."""
CLIP_OF_NUMBERS = 0.25
"""Threshold of the gradients of a linear model of a number, over the root of its features and one for the intercept:
smaller ones pull predictions of skewed targets towards the median (experiments/outcomes.md)."""
CLIP_OF_OTHERS = 1.0
"""Threshold of the gradients of other networks."""
STEP_ON_TABLES, STEP_ON_OTHERS = 1.0, 8.0
"""Largest step of the server, for linear models of two classes or of a number and for others."""
WALK_ON_TABLES, WALK_ON_OTHERS = 0.1, 0.2
"""Largest random walk of a parameter by noise alone, for linear models of two classes and for others. On digits in 20
clients (seeds 11 and 12, epsilon 1 and 8, logistic regression and a network) 0.2 had up to 9 points more than 0.05 and
up to 5 more than 0.4."""
DECAY = 0.8
"""Share of the mean that `ema` keeps from round to round."""


@dataclass(frozen=True)
class DPFedSGD(RecordLevel):
    """Distributed DP-SGD: one noisy gradient sum a round, noise shared by the clients."""

    title: ClassVar[str] = "distributed DP-SGD: one sum of gradients a round, whose noise clients share, record level"
    paper: ClassVar[str] = "Heikkila et al., 2020 (arXiv 2007.05553)"
    varied: ClassVar[Varied] = "sampling"
    counts_labels: ClassVar[bool] = True

    clip: Positive | None = None  # type: ignore[assignment] # here it depends on the network
    """The threshold C to which each record's gradient is limited. By default 0.15 sqrt(2 (features + 1)) for linear
    models of two classes, on columns of about unit variance, 0.25 sqrt(features + 1) for linear models of a number, and
    1 for others."""
    clipping: SumClipping = SumFixed()
    """Rule for the threshold: `fixed`; `quantile` (private, Andrew et al.); `normalised` (every gradient is scaled to
    it)."""
    sampling: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The probability q with which each record enters a round's sum. All of them need least noise for what they cost;
    fewer save time."""
    largest_step: Positive | None = None
    """Largest step of the server along the mean gradient, where noise does not ask for a smaller one. By default 1
    for linear models of two classes or of a number and 8 for others."""
    walk: Positive | None = None
    """Largest standard deviation by which noise alone moves a parameter over all rounds T. It limits the step to
    walk / (s sqrt(T)), where s is the standard deviation of the noise on the mean gradient. By default 0.1 for linear
    models of two classes and 0.2 for others."""
    start: Literal["zero", "network"] | None = None
    """Model to begin with: all zeros, or the network's own weights. By default zeros for linear models, which forget
    random weights too slowly at steps that noise limits, and the network's own for others."""
    served: Literal["last", "tail", "ema"] = "tail"
    """Model that the server serves: its last one, the mean of the last half of the rounds, or an exponential mean."""
    counts: Annotated[NotNegative, Field(lt=0.5)] = 0.03
    """Share of the budget (of mu^2) for a noisy count of the labels, which sets the bias of the output layer in the
    first round; 0 to begin with the network's own."""
    class_weight: str = field(default="none", metadata=ADDED_LATER)
    """Weights of the records in the sum. `balanced`: in proportion to one over the noisy count of their label, so that
    rare labels count as much as common ones. Or declared: `1,9` in the order of the classes, or `healthy:1,ill:9`."""

    def run(self, fed: Federation, model: Tensor) -> None:
        start = self.start or ("zero" if is_linear(fed) else "network")
        model = torch.zeros_like(model) if start == "zero" else model
        server = fed.state(
            model=model,
            served=model,
            motion=self.server.begin(model),
            threshold=self.clipping.begin(self._first_clip(fed)),
            weights=torch.ones(len(fed.task.groups)),
            **({"counted": torch.zeros(fed.task.counted)} if fed.task.tells_counts and self.counts else {}),
        )
        for number in fed.rounds(server):
            if number == 0 and self.counts:
                means, records = self._counted(fed)
                if fed.task.tells_counts:
                    server.counted = means
                server.model = with_output_bias(server.model, fed.task.start(means, records), fed.layout)
                if self.class_weight == "balanced":
                    frequencies = fed.task.frequencies_of(means, records)
                    server.weights = 1 / (len(frequencies) * frequencies)
            message = {"global": server.model, "clip": server.threshold["clip"], "weights": server.weights}
            got = fed.ask(fed.sample(), self.local, message)
            step = self._step(fed, got)
            server.model, server.motion = self.server.step(server.model, -got.mean("gradient"), server.motion, step)
            server.threshold = self.clipping.following(server.threshold, got)
            server.served = self._average(server, number, fed.schedule.rounds)

    @sends(lambda self: self.clipping.releases(self.sampling))
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        weights = message["weights"] if self.class_weight == "balanced" else None  # all ones
        total = data.gradient_sum(message["global"], weights)
        return Result(send={"gradient": total, **self.clipping.tell(message["global"], data)})

    @sends(lambda self: {"labels": RecordSum(1.0, self.counts, "groups")} if self.counts else {})
    def count(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        return Result(send={"labels": data.label_counts()})

    def settled(self, clients: int) -> DPFedSGD:
        if self.class_weight == "balanced" and not self.counts:
            raise UserError(
                'class_weight = "balanced" needs a noisy count of the labels: give `counts` a share of the budget, '
                "such as 0.03."
            )
        return self

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor]:
        return state.served.unsqueeze(0), torch.zeros(clients, dtype=torch.int64)

    def _first_clip(self, fed: Federation) -> float:
        """Threshold to begin with, by the network."""
        if self.clip is not None:
            return self.clip
        if not is_table(fed):
            return CLIP_OF_OTHERS
        if fed.task.width == 1:
            return CLIP_OF_NUMBERS * math.sqrt(fed.features + 1)
        return CLIP_PER_FEATURE * math.sqrt(2 * (fed.features + 1))

    def _counted(self, fed: Federation) -> tuple[Tensor, float]:
        """Noisy means of what is counted of the labels (for classes their shares), and the number of records."""
        got = fed.ask(fed.sample(), self.count, {"groups": fed.task.counted})
        return got.mean("labels"), float(fed.record_plan.trained[list(got.who)].sum())

    def _step(self, fed: Federation, got: Replies) -> float:
        """Length of the next step along the mean gradient, without the server optimizer's own rate: all public."""
        if not self.server.proportional:
            return 1.0
        noise = float(got.deviation("gradient").max()) / fed.record_plan.expected_records(got.who)
        table = is_table(fed)
        largest = self.largest_step or (STEP_ON_TABLES if table else STEP_ON_OTHERS)
        walk = self.walk or (WALK_ON_TABLES if table and fed.task.width > 1 else WALK_ON_OTHERS)
        return min(largest, walk / (noise * math.sqrt(fed.schedule.rounds))) if noise else largest

    def _average(self, server: State, number: int, rounds: int) -> Tensor:
        """Model to be served after a round."""
        if self.served == "ema" and number > 0:
            return DECAY * server.served + (1 - DECAY) * server.model
        before = number - rounds // 2
        if self.served == "tail" and before > 0:
            return server.served + (server.model - server.served) / (before + 1)
        return server.model


def is_linear(fed: Federation) -> bool:
    """Whether the network has a single layer to train."""
    return len(fed.layout.layers) == 1


def is_table(fed: Federation) -> bool:
    """Whether the network is a linear model of two classes or of a number, as for most tables."""
    return is_linear(fed) and fed.task.decides_by_one


def with_output_bias(model: Tensor, bias: Tensor, layout: Layout) -> Tensor:
    """Return a flat model whose output layer has the given bias; one without such a bias stays.

    Args:
        model: Flat vector.
        bias: One value for each output.
        layout: Names and shapes of the parameters; the output layer's bias is the last tensor.
    """
    if layout.shapes[-1] != tuple(bias.shape):
        return model
    changed = model.clone()
    changed[-len(bias) :] = bias
    return changed
