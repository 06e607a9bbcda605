"""What is claimed falsely is caught: each test breaks one thing of the production code and sees it refuted."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.auditing.findings import Report
from sordino.auditing.suite import audit_prepared
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.federation.run_state import Restored
from sordino.federation.server import Server
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.parts.thresholds import Quantile
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger
from sordino.privacy.mechanism import Floats
from sordino.privacy.noise import Covered, Seeded
from sordino.privacy.release import Charge, Derived, Gradients, Number, Public, Releases, Update, sends
from sordino.privacy.release.base import Bounded, lengths, shorten

CLIENTS: dict[str, Any] = {
    "method": "dp-fedavg",
    "clients": 8,
    "rounds": 4,
    "epsilon": 2.0,
    "delta": 1e-5,
    "partition": "dirichlet:1",
    "model": "logistic",
    "records": 600,
    "set": {"epochs": 1, "batch": 80},
}
RECORDS = CLIENTS | {"method": "dp-fedavg-record", "partition": "iid", "set": {"epochs": 1, "batch": 16}}


def attacked(keys: dict[str, Any], trials: int = 10_000, tiers: Any = (0, 1), **more: Any) -> Report:
    method = more.pop("made", None)
    return audit_prepared(prepare(Experiment.make(keys, more), method=method), trials, tiers)


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings if finding.refuted}


@pytest.fixture
def patched() -> Iterator[Any]:
    """Replace a piece of the production code for one test."""
    with contextlib.ExitStack() as stack:
        yield lambda where, what, by: stack.enter_context(mock.patch.object(where, what, by))


@pytest.mark.parametrize("keys", [CLIENTS, RECORDS], ids=["client", "record"])
def test_nothing_is_refuted_when_nothing_is_broken(keys: dict[str, Any]) -> None:
    assert not attacked(keys).refuted


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_refuted_with_the_settings_of_the_tests_below(seed: int) -> None:
    """What is caught below is the fault and not the setting."""
    few = {"clients": 4, "rounds": 3, "seed": seed}
    for epsilon, trials in ((2.0, 20_000), (2.0, 200_000), (8.0, 10_000), (8.0, 100_000)):
        assert not attacked(CLIENTS, trials, epsilon=epsilon, **few).refuted
    for keys, tiers in ((CLIENTS, (0, 1)), (RECORDS, (0, 1)), (CLIENTS | {"partition": "dirichlet:0.3"}, (1,))):
        assert not attacked(keys, 40_000, tiers, seed=seed).refuted
    for clients, rounds in ((16, 2), (4, 16)):
        assert not attacked(CLIENTS, tiers=(0,), clients=clients, rounds=rounds, seed=seed).findings


def with_noise_times(factor: float, patched: Any) -> None:
    """Less noise than is charged, wherever noise is drawn."""
    alone, together = Seeded.normals, Seeded.rows
    patched(Seeded, "normals", lambda self, *given: factor * alone(self, *given))
    patched(Seeded, "rows", lambda self, *given: factor * together(self, *given))


@pytest.mark.parametrize(
    ("factor", "epsilon", "trials"), [(0.7, 2.0, 20_000), (0.7, 8.0, 10_000), (0.9, 2.0, 200_000), (0.9, 8.0, 100_000)]
)
def test_less_noise(factor: float, epsilon: float, trials: int, patched: Any) -> None:
    with_noise_times(factor, patched)
    report = attacked(CLIENTS, trials, epsilon=epsilon, clients=4, rounds=3)
    assert report.views["outsider"].refuted, "the mechanism's attack"
    assert "variance" in names(report), "conformance"
    assert any("numbers): less noise than is paid for" in finding.sentence for finding in report.findings), "all of it"


def test_less_noise_for_records(patched: Any) -> None:
    with_noise_times(0.7, patched)
    report = attacked(RECORDS, 40_000)
    assert report.views["server"].refuted
    assert "variance" in names(report)


def test_a_skipped_clip(patched: Any) -> None:
    patched(Update, "bounded", lambda self, rows, public: Bounded(rows, 0))
    report = attacked(CLIENTS)
    assert report.views["outsider"].refuted
    assert report.views["server"].refuted


def test_a_number_that_is_not_held_to_its_range(patched: Any) -> None:
    """It is one entry: only a canary beyond the bound tells."""
    made = DPFedAvg(clipping=Quantile(share=0.5), epochs=1, batch=80)
    assert not attacked(CLIENTS, tiers=(1,), made=made).refuted
    patched(Number, "bounded", lambda self, rows, public: Bounded(rows - self.centre(), 0))
    assert attacked(CLIENTS, tiers=(1,), made=made).views["outsider"].refuted


def test_a_skipped_clip_of_records(patched: Any) -> None:
    from sordino.privacy import clipping

    patched(clipping, "clipping_factors", lambda norms, clip, normalised=False: torch.ones(norms.shape[:-1]))
    assert attacked(RECORDS).views["server"].refuted


def test_a_clip_for_each_tensor_that_is_charged_as_one(patched: Any) -> None:
    """The weights and the bias of the network are each held to C, and C is charged."""

    def each(self: Update, rows: Tensor, public: Public) -> Bounded:
        parts = rows.split([rows.shape[1] - 10, 10], dim=1)
        clip = self._thresholds(public)[:, 0]
        return Bounded(torch.cat([shorten(part, lengths(part), clip) for part in parts], dim=1), 0)

    patched(Update, "bounded", each)
    report = attacked(CLIENTS, 40_000)
    assert report.views["outsider"].refuted


def test_a_draw_that_is_used_again_in_every_round(patched: Any) -> None:
    original = Gate.passes
    patched(
        Gate, "passes", lambda self, releases, wanted, question, public: original(self, releases, wanted, 0, public)
    )
    report = attacked(CLIENTS)
    assert report.views["outsider"].refuted
    assert "reuse" in names(report)


def test_a_draw_that_is_used_again_for_another_client(patched: Any) -> None:
    original = Seeded.normals
    patched(Seeded, "normals", lambda self, size, purpose, who, on: original(self, size, purpose, [0] * len(who), on))
    assert "reuse" in names(attacked(CLIENTS, tiers=(0,)))


def test_a_draw_that_is_used_again_in_another_run(patched: Any) -> None:
    original = Seeded.normals

    def same(self: Seeded, size: int, purpose: Any, who: Any, covered: Covered) -> Tensor:
        return original(dataclasses.replace(self, identity="one for all"), size, purpose, who, covered)

    patched(Seeded, "normals", same)
    assert "reuse" in names(attacked(CLIENTS, tiers=(0,)))


def test_a_draw_that_is_used_again_after_a_resume(patched: Any) -> None:
    """A run that is taken up counts its questions from the beginning: other messages meet the noise of earlier ones."""
    original = Server._now

    def forgetful(self: Server) -> Restored:
        return dataclasses.replace(original(self), questions=0)

    patched(Server, "_now", forgetful)
    patched(Ledger, "attempts", lambda self, question: 0)  # which tells that a question has been asked
    assert "reuse" in names(attacked(CLIENTS, tiers=(0,)))


def test_a_question_that_is_asked_again_after_a_resume_and_paid_for_once(patched: Any) -> None:
    """Twice as much is on the wire as in the ledger."""
    original, charge = Server._now, Ledger.charge

    def once(self: Ledger, releases: Releases, question: int, *given: Any) -> Any:
        known = {row.release: row for row in self.rows if row.question == question}
        return list(known.values()) or charge(self, releases, question, *given)

    patched(Server, "_now", lambda self: dataclasses.replace(original(self), questions=0))
    patched(Ledger, "attempts", lambda self, question: 0)
    patched(Ledger, "charge", once)
    assert "uncharged" in names(attacked(CLIENTS, tiers=(0,)))


@pytest.mark.parametrize(
    ("where", "clients", "rounds"), [("on entry 101 of 650", 8, 4), ("at client 2", 16, 2), ("in question 1", 4, 16)]
)
def test_noise_that_is_missing_somewhere(where: str, clients: int, rounds: int, patched: Any) -> None:
    """Of all the noise together so little is missing that the whole does not show it: it is at most 1.7 standard errors
    off where the client, or the question, is 7 off. One draw in a hundred or so shows in the whole all the same: three
    seeds in a row would be one in a million."""
    original = Floats.noised

    def less(self: Floats, rows: Tensor, cover: Any, source: Any, purpose: Any, who: Any) -> Tensor:
        before, noised = rows.clone(), original(self, rows, cover, source, purpose, who)
        weights = torch.ones_like(noised)
        if "entry" in where:
            weights[:, 100:103] = 0.0
        if "client" in where:
            weights[[client == 2 for client in who]] = 0.9
        if "question" in where and purpose[0] == 1:
            weights *= 0.93
        return before + weights * (noised - before)

    patched(Floats, "noised", less)
    reports = (attacked(CLIENTS, tiers=(0,), clients=clients, rounds=rounds, seed=seed) for seed in range(3))
    found = (report.findings[0] for report in reports)
    assert any((one.name, one.refuted) == ("variance", True) and where in one.sentence for one in found)


def test_a_draw_whose_halves_are_one(patched: Any) -> None:
    original = Seeded.normals

    def halved(self: Seeded, size: int, purpose: Any, who: Any, covered: Covered) -> Tensor:
        drawn = original(self, size, purpose, who, covered)
        drawn[:, size - size // 2 :] = -drawn[:, : size // 2]
        return drawn

    patched(Seeded, "normals", halved)
    findings = attacked(CLIENTS, tiers=(0,)).findings  # half as many draws may be found in the variance as well
    (found,) = [one for one in findings if one.name == "reuse"]
    assert found.refuted
    assert re.search("32[45] of 650 entries", found.sentence)


@dataclass(frozen=True)
class ThreeSigns(DPFedAvg):
    """Sends what it remembers of its messages in a bit for each entry, which is not enough."""

    title: ClassVar[str] = "sends more than it says"
    bits: ClassVar[int] = 1

    def public_memory(self, model: Tensor, layout: Any) -> dict[str, Tensor]:
        return {"signs": torch.zeros(layout.size)}

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> dict[str, Tensor]:
        return {"signs": (sent["update"] > 0).float() + (sent["update"] > 1).float()}

    @sends(lambda self: {**self.threshold.releases(), "signs": Derived("signs", bits=self.bits)})
    def local(self, message: Any, me: Any, data: Any) -> Any:
        return super().local(message, me, data)


class TwoBits(ThreeSigns):
    bits: ClassVar[int] = 2


def test_more_bytes_than_are_declared() -> None:
    assert not attacked(CLIENTS, made=TwoBits(epochs=1, batch=80), tiers=(0,)).refuted
    assert names(attacked(CLIENTS, made=ThreeSigns(epochs=1, batch=80), tiers=(0,))) == {"bytes"}


@dataclass(frozen=True)
class Free(Update):
    """A noised vector that says it costs nothing, and that it is one of Sordino's."""

    __module__ = Update.__module__

    def charge(self, allowance: Any, public: Public) -> Charge:
        return Charge.nothing()


@dataclass(frozen=True)
class Twice(DPFedAvg):
    """Sends its update twice and pays once."""

    title: ClassVar[str] = "pays once"

    def _both(self) -> Releases:
        return {"update": Update(clip="clip", share=0.5), "again": Free(clip="clip", share=0.5)}

    def run(self, fed: Any, model: Tensor) -> None:
        server = fed.state(model=model, threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model = server.model + (got.mean("update") + got.mean("again")) / 2

    @sends(lambda self: self._both())
    def local(self, message: Any, me: Any, data: Any) -> Any:
        result = super().local(message, me, data)
        return dataclasses.replace(result, send={"update": result.send["update"], "again": result.send["update"]})


@dataclass(frozen=True)
class Both(Twice):
    """Sends its update twice and pays for both."""

    def _both(self) -> Releases:
        return {"update": Update(clip="clip", share=0.5), "again": Update(clip="clip", share=0.5)}


def test_a_draw_that_is_used_again_for_another_release(patched: Any) -> None:
    """Each of two messages is hidden well; their difference is not hidden at all."""
    assert not attacked(CLIENTS, made=Both(epochs=1, batch=80), tiers=(0,)).refuted
    original = Seeded.normals

    def same(self: Seeded, size: int, purpose: Any, who: Any, covered: Covered) -> Tensor:
        return original(self, size, (purpose[0], "any"), who, Covered(torch.zeros(len(who), 1), []))

    patched(Seeded, "normals", same)
    assert "reuse" in names(attacked(CLIENTS, made=Both(epochs=1, batch=80), tiers=(0,)))


def test_a_release_that_is_not_charged() -> None:
    report = attacked(CLIENTS, 40_000, made=Twice(epochs=1, batch=80))
    assert report.views["outsider"].refuted
    assert "price" in names(report)


def test_a_release_without_a_row_in_the_ledger(patched: Any) -> None:
    original = Ledger.charge
    patched(Ledger, "charge", lambda self, releases, *given: original(self, {}, *given))
    report = attacked(CLIENTS, tiers=(0,))
    assert "uncharged" in names(report)


def test_a_dropout_that_is_not_accounted_for(patched: Any) -> None:
    """Half of the cohort's noise is missing in the sum, and the whole cohort's is charged."""
    original = Floats.mean

    def dropped(self: Floats, rows: Tensor, cover: Any) -> Tensor:
        half = max(1, (len(rows) + 1) // 2)
        order = rows.square().sum(dim=1).argsort(descending=True)[:half]  # the canary is not among those that drop out
        return original(self, rows[order], cover) * half / len(rows)

    patched(Floats, "mean", dropped)
    assert attacked(CLIENTS, 40_000).views["outsider"].refuted


def test_weights_by_numbers_of_records(patched: Any) -> None:
    """The largest client counts most in the mean, and all are charged alike."""
    prepared = prepare(Experiment.make(CLIENTS, {"partition": "dirichlet:0.3"}))
    sizes = torch.as_tensor(prepared.data.train.sizes).double()
    weights = (sizes / sizes.sum()).float()

    def weighed(self: Gate, release: Any, rows: Tensor, public: Public) -> Tensor:
        return weights[list(public.clients)] @ rows

    patched(Gate, "mean", weighed)
    assert audit_prepared(prepared, 40_000, (1,)).views["outsider"].refuted


def test_shuffled_batches_that_are_charged_as_poisson_samples(patched: Any) -> None:
    """Every record once in each pass."""

    def shuffled(self: Seeded, count: int, rate: float, *purpose: Any) -> Tensor:
        step, batches = int(purpose[-1]), max(1, round(1 / rate))
        order = np.random.default_rng(abs(hash((purpose[:-1], step // batches)))).permutation(count)
        taken = np.zeros(count, dtype=bool)
        taken[np.array_split(order, batches)[step % batches]] = True
        return torch.from_numpy(taken)

    patched(Seeded, "coins", shuffled)
    assert "coins" in names(attacked(RECORDS, tiers=(0,)))


def test_coins_that_fall_too_often(patched: Any) -> None:
    original = Seeded.coins
    patched(Seeded, "coins", lambda self, count, rate, *purpose: original(self, count, min(1, 1.5 * rate), *purpose))
    assert "coins" in names(attacked(RECORDS, tiers=(0,)))


def test_steps_that_are_charged_once_a_round(patched: Any) -> None:
    original = Gradients.charge

    def once(self: Gradients, allowance: Any, public: Public) -> Charge:
        charge = original(self, allowance, public)
        assert charge.sampled is not None
        return dataclasses.replace(
            charge, sampled=np.column_stack([charge.sampled[:, :2], np.ones(len(charge.sampled))])
        )

    patched(Gradients, "charge", once)
    report = attacked(RECORDS, 40_000)
    assert "steps" in names(report)
    assert report.views["server"].refuted


def test_a_quantile_bit_without_noise(patched: Any) -> None:
    """The bit leaves nearly as it is, and is charged as if it were noised."""
    original = Floats.noised

    def bare(self: Floats, rows: Tensor, cover: Any, source: Any, purpose: Any, clients: Any) -> Tensor:
        noised = original(self, rows, cover, source, purpose, clients)
        return rows + 1e-3 * (noised - rows) if purpose[-1] == "below" else noised

    patched(Floats, "noised", bare)
    report = attacked(CLIENTS, made=DPFedAvg(clipping=Quantile(), epochs=1, batch=80))
    assert report.views["outsider"].refuted
    assert "variance" in names(report)


@dataclass(frozen=True)
class SecretMedian(DPFedAvg):
    """Publishes the median of single messages, which it gets behind the federation's back."""

    title: ClassVar[str] = "reads what it is not handed out"

    def run(self, fed: Any, model: Tensor) -> None:
        server = fed.state(model=model, threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model = server.model + got._values["update"].median(dim=0).values


def test_a_median_of_single_messages_that_is_read_in_secret() -> None:
    report = attacked(CLIENTS, made=SecretMedian(epochs=1, batch=80), tiers=(0,))
    assert "hidden channel" in names(report)


@dataclass(frozen=True)
class OpenMedian(SecretMedian):
    """The same by reading rows: everybody pays what the server pays."""

    def run(self, fed: Any, model: Tensor) -> None:
        server = fed.state(model=model, threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model = server.model + got.rows("update").median(dim=0).values


def test_a_median_of_single_messages_that_is_not_charged_to_the_outsider(patched: Any) -> None:
    sound = attacked(CLIENTS, made=OpenMedian(epochs=1, batch=80))
    assert not sound.refuted
    assert sound.views["outsider"].claimed == sound.views["server"].claimed
    from sordino.federation.replies import Answers

    patched(Answers, "_expose", lambda self, release: None)
    report = attacked(CLIENTS, made=OpenMedian(epochs=1, batch=80))
    assert report.views["outsider"].refuted
    assert not report.views["server"].refuted


ELSEWHERE = types.ModuleType("elsewhere")
"""Place where a step leaves something: outside of its own module, which it must not change."""
ELSEWHERE.heard = []  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Gossip(DPFedAvg):
    """Lets a client leave something where the server's script finds it."""

    title: ClassVar[str] = "tells behind the federation's back"

    def run(self, fed: Any, model: Tensor) -> None:
        server = fed.state(model=model, threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            told = sum(ELSEWHERE.heard)
            message = {"global": server.model + 1e-3 * told, "clip": server.threshold["clip"]}
            server.model = server.model + fed.ask(fed.sample(), self.local, message).mean("update")

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Any, me: Any, data: Any) -> Any:
        result = super().local(message, me, data)
        ELSEWHERE.heard.append(float(result.keep["model"].detach()[:32].sum()))  # the sum of all is what it was before
        return result


def test_a_channel_behind_the_federations_back() -> None:
    report = attacked(CLIENTS, made=Gossip(epochs=1, batch=80), tiers=(0,), engine="one-by-one")
    assert "hidden channel" in names(report)


def test_bounds_of_attacks_are_finite() -> None:
    assert all(math.isfinite(view.bound) for view in attacked(CLIENTS, tiers=(1,)).views.values())
