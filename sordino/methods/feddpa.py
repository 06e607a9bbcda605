"""FedDPA (Yang, Huang, Ye: "Dynamic Personalized Federated Learning with Adaptive Differential Privacy",
NeurIPS 2023).

Each client keeps its own values of the parameters that carry most Fisher information about its data, and
takes the noisy global values of the rest (dynamic Fisher personalization). It then trains the two groups in
turn under two constraints: personal parameters are held near their start, and the length of the shared
update is drawn towards the clipping threshold, so that clipping distorts it less (adaptive constraint).

Each epoch is two passes over the records, one for each group: 2E passes a round where DP-FedAvg has E. Its fair
rival is `dp-fedavg[epochs=2E]`, without privacy `fedavg[epochs=2E]`, and a run says so.

Where paper and released code differ, the paper is followed, and the code's way is a switch: groups take turns in each
epoch (`schedule="two-phase"` trains one after the other); the penalties use one norm of the group anchored at the start
of the round (`constraints="code"`: the sum of tensor norms around the global model, of all parameters); the update is
measured from the start of the round (`base="global"`: from the global model, personal parameters included); the average
is uniform (`weights="records"`: by numbers of records, which then leave bare, and single messages are read); images are
taken as they are (`augmentation`: shifted and mirrored at random; never turned, while the code turns FEMNIST by up to
20 degrees).

Other departures from the code: a parameter is personal from tau on, not above it; dropout stays on (the code forgets to
switch it on again after the Fisher information, for FedDPA alone); a tensor whose Fisher values are all equal is shared
instead of turning into NaN, and zero; Fisher information is taken of all records as they are, not of augmented ones
without the last batch; test images are never augmented, and clients are tested on their own records (`test="official"`
gives the code's common test set); clients take turns instead of being drawn; noise is shared out over the cohort of a
round, not over all clients. As in the code, Fisher information is the mean of per-record squared gradients (the paper's
Eq. 4 squares a sum), scaled to [0, 1] within each tensor (Eq. 5: within each layer), and `personal` is the accuracy
after local training, before clipping and noise.

Privacy: mask, personal parameters and penalties stay at the client and precede the clip, so the epsilon of
the clipped and noised update is all there is. The `paper` variant takes its noise from the released code's
accounting, which treats client-level noise as if it were DP-SGD on pooled records; the true epsilon is
printed beside it. That accounting also multiplies its sampling rate and its number of steps by the share of clients
that take part in a round; here both are those of full participation.

| paper | code |
|---|---|
| F_hat (Eq. 4, 5) | `information` |
| M_1, M_2 (Eq. 6) | `personal`, `shared` |
| w_i^t before training (Eq. 7) | `start` |
| u, v | the entries under `personal`, under `shared` |
| tau, lambda_1, lambda_2, C | `tau`, `lambda1`, `lambda2`, `clip` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sordino.learning.descent import Pull, Tether
from sordino.learning.network import Records
from sordino.learning.parameters import Layout
from sordino.method import Budget, Federation, Message, NotNegative, Replies, Result, Schedule, Variant
from sordino.methods.bases import Clipped
from sordino.parts.averaging import by_records
from sordino.parts.masks import scale_to_unit
from sordino.parts.thresholds import whole
from sordino.privacy.accounting.gaussian import rdp_multiplier
from sordino.privacy.release import Bare, Releases, sends


@dataclass(frozen=True)
class FedDPA(Clipped):
    """Fisher masks and adaptive constraints."""

    title: ClassVar[str] = "Fisher masks keep informative parameters personal; constraints soften clipping"
    paper: ClassVar[str] = "Yang, Huang, Ye, NeurIPS 2023"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "the released code derives its noise from record-level accounting of pooled data: a published "
        "target of 2 is really about 49 for an outsider, and far more for the server",
    }

    tau: NotNegative = 0.4
    """The Fisher value, scaled to [0, 1] in each tensor, from which a parameter is personal. 0: all are;
    above 1: none. Code 0.4; paper's grid 0.05 to 0.5."""
    lambda1: NotNegative = 0.05
    """Strength with which personal parameters are held near their start. Paper's best 0.05; code 0.1; 0: off."""
    lambda2: NotNegative = 0.1
    """Strength with which the shared update's norm is drawn to C. Paper's best 0.1; code 0.05; 0: off."""
    schedule: Literal["alternating", "two-phase"] = "alternating"
    """Personal and shared parameters take turns in each epoch (paper), or one after the other (code)."""
    constraints: Literal["paper", "code"] = "paper"
    """Penalties on one norm around the round's start, or on the sum of tensor norms around the global model."""
    base: Literal["start", "global"] = "start"
    """Origin of the update: the round's start (paper), or the global model (code)."""
    weights: Literal["uniform", "records"] = "uniform"
    """Weights of the average of updates: equal, or by the clients' numbers of records (code), which leave bare: epsilon
    is infinite."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, self._average(got), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self._releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        received, clip = message["global"], whole(message["clip"])
        own = torch.where(me["participations"] > 0, me["model"], received)

        information = scale_to_unit(data.fisher(own), data.layout)  # Eq. 4, 5
        personal = (information >= self.tau).to(own.dtype)  # Eq. 6
        shared = 1 - personal
        start = personal * own + shared * received  # Eq. 7

        hold, draw = self._penalties(start, received, personal, shared, clip, data.layout)
        train_personal, train_shared = self.descent(data), self.descent(data)
        model = start
        for phase in self._phases():
            if phase == "personal":
                model = train_personal.epoch(model, mask=personal, pull=hold)  # Eq. 8, 9
            else:
                model = train_shared.epoch(model, mask=shared, pull=draw)  # Eq. 10, 11

        update = model - (start if self.base == "start" else received)
        sent = self.threshold.tell(update, model, message, data)
        if self.weights == "records":
            sent["records"] = data.count
        return Result(send=sent, keep={"model": model}, start=start)

    def passes(self) -> int:
        return 2 * self.epochs

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        rival = "dp-fedavg" if self.privacy == "dp" else "fedavg"
        twice = (
            f"FedDPA passes over the records {self.passes()} times a round, twice in each of its {self.epochs} "
            f"epoch{'s' if self.epochs > 1 else ''}: its fair rival is {rival}[epochs={self.passes()}]."
        )
        return [*super().notes(schedule, budget), twice]

    def _releases(self) -> Releases:
        if self.weights == "uniform":
            return self.threshold.releases()
        counted = Bare("the released code weighs clients by their numbers of records")
        return {**self.threshold.releases(), "records": counted}

    def _average(self, got: Replies) -> Tensor:
        if self.weights == "uniform":
            return got.mean("update")
        return by_records(got.rows("records"), got.rows("update"))

    def _phases(self) -> list[str]:
        """Return the group of parameters that each pass over the records trains."""
        if self.schedule == "alternating":
            return ["personal", "shared"] * self.epochs
        return ["personal"] * self.epochs + ["shared"] * self.epochs

    def _penalties(
        self, start: Tensor, received: Tensor, personal: Tensor, shared: Tensor, clip: float | Tensor, layout: Layout
    ) -> tuple[Pull, Pull]:
        """Return the gradients of (lambda1/2) |u - u0| (Eq. 9) and (lambda2/2) | |v - v0| - C | (Eq. 11)."""

        def hold(length: Tensor) -> float:
            return self.lambda1 / 2

        def draw(length: Tensor) -> Tensor:
            return self.lambda2 / 2 * torch.sign(length - clip)

        if self.constraints == "paper":
            return Tether(start, personal, hold), Tether(start, shared, draw)

        def around_received(force: Callable[[Tensor], float | Tensor]) -> Pull:
            def pull(model: Tensor) -> Tensor:
                pieces = layout.tensors(model - received)
                length = torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]).sum()
                return force(length) * torch.cat([unit(piece) for piece in pieces])

            return pull

        return around_received(hold), around_received(draw)

    def discloses(self) -> list[str]:
        if self.variant == "sound":
            return []
        return ["The noise of the released code follows from the number of all clients' records, which it discloses."]

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """Return the multiplier of the released code: that of DP-SGD on the pooled records, although noise is added
        once a round."""
        steps = round(rounds * self.epochs * records / self.batch)
        return rdp_multiplier(epsilon, steps, delta, rate=min(1.0, self.batch / records))


def unit(vector: Tensor) -> Tensor:
    """Scale a vector to length one; the zero vector stays zero, so that the result is a subgradient of the norm."""
    return vector / torch.linalg.vector_norm(vector).clamp(min=1e-12)
