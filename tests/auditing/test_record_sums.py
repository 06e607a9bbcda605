"""Sums of records' gradients with shared noise: misuse is refused, and false claims are caught."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor

from sordino.auditing.findings import Report
from sordino.auditing.recorded_run import Recorded, record
from sordino.auditing.suite import audit_prepared
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.method import Result
from sordino.methods.bases import RecordLevel
from sordino.methods.dp_fedsgd import DPFedSGD
from sordino.privacy import ledger
from sordino.privacy.budget.record_level_plan import Varied
from sordino.privacy.budget.shared_noise import Noise
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.ledger import number_of_attempt, split_attempt
from sordino.privacy.noise import Seeded
from sordino.privacy.release import (
    Average,
    Charge,
    Cover,
    GradientSum,
    Public,
    RecordSum,
    Release,
    Releases,
    check_steps,
    declaring,
    sends,
)
from sordino.privacy.release.base import Bounded
from sordino.privacy.unit import Unit

OWN: dict[str, Any] = {
    "method": "dp-fedavg-record",
    "clients": 4,
    "rounds": 2,
    "epsilon": 2.0,
    "delta": 1e-5,
    "partition": "iid",
    "model": "logistic",
    "records": 200,
}


class Sums(RecordLevel):
    """A user's own distributed DP-SGD that sends something beside its gradients."""

    title: ClassVar[str] = "own"
    varied: ClassVar[Varied] = "sampling"

    def run(self, fed: Any, model: Tensor) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model})  # type: ignore[attr-defined]
            server.model = server.model - 0.1 * got.mean("gradient")


def recorded(method: Any, **keys: Any) -> Recorded:
    return record(prepare(Experiment.make(OWN, keys), method=method))


def batch_sum(entries: int) -> Releases:
    """Gradients of a batch, and the sum of one vector for each record of the same batch."""
    return {"gradient": GradientSum(1.0, 0.05, share=0.5), "more": RecordSum(1.0, 0.5, entries, drawn=True)}


@dataclass(frozen=True)
class AllLabels(Sums):
    """Counts the labels of all records, and pays for those of a batch."""

    @sends(lambda self: batch_sum(10))
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(message["global"]), "more": data.label_counts()})


@dataclass(frozen=True)
class SumAsRecord(Sums):
    """Sends the sum over a batch as if it were one record, of which a record may move twice the bound."""

    @sends(lambda self: batch_sum(650))
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send=dict.fromkeys(("gradient", "more"), data.gradient_sum(message["global"])))


@dataclass(frozen=True)
class RecordsAsSum(Sums):
    """Sends records that nothing has limited as a sum of limited gradients."""

    @sends(lambda self: {"gradient": GradientSum(1.0, 0.05)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"gradient": data.projected(torch.ones(64, 650))})


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (AllLabels(), "that the question draws of training records, not <sealed labels"),
        (SumAsRecord(), "that the question draws of training records, not <sealed sum of gradients"),
        (RecordsAsSum(), r"sum that data.gradient_sum\(model\) gives of training records, not <sealed projected"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_the_gate_takes_no_sealed_value_for_another(method: Sums, wanted: str) -> None:
    with pytest.raises(UserError, match=wanted):
        recorded(method, engine="one-by-one")


@dataclass(frozen=True)
class Judges(Sums):
    """Sends a mean beside its sums, for which no noise is planned."""

    @sends(lambda self: {"gradient": GradientSum(1.0), "right": Average(0.0, 1.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(
            send={"gradient": data.gradient_sum(message["global"]), "right": data.judged(message["global"])[1]}
        )


def test_what_no_noise_is_planned_for_is_refused_beside_sums() -> None:
    with pytest.raises(UserError, match="either sums over records, whose noise is shared out, or what is covered"):
        recorded(Judges())


@dataclass(frozen=True)
class Weighted(Sums):
    """Gives the records of the last group a weight of its own."""

    weights: Callable[[], Tensor] = lambda: torch.ones(10)

    @sends(lambda self: {"gradient": GradientSum(1.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(message["global"], self.weights())})


def last_group(weight: float) -> Callable[[], Tensor]:
    return lambda: torch.cat([torch.ones(9), torch.tensor([weight])])


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
@pytest.mark.parametrize(
    "weights",
    [last_group(torch.inf), last_group(torch.nan), lambda: torch.ones(9)],
    ids=["infinite", "no number", "too few"],
)
def test_weights_that_are_not_finite_or_too_few_are_refused(engine: str, weights: Callable[[], Tensor]) -> None:
    """One record's infinite weight would empty its client's sum, and so move it by all records' thresholds."""
    with pytest.raises(UserError, match="Weights of records must be 10 numbers, one for each group of labels"):
        recorded(Weighted(weights=weights), engine=engine)


SUMS = OWN | {"method": "dp-fedsgd", "rounds": 4}


@pytest.mark.parametrize("lost", [0, 3])
def test_a_lost_round_is_asked_again_with_other_coins_and_noise_and_charged_again(lost: int) -> None:
    """The first round counts labels, which leave once, and the last one uses the last turn."""
    prepared = prepare(Experiment.make(SUMS, {"set": {"sampling": 0.3}}))
    run = record(prepared, stop_after=lost, loses=True)
    attempts = [split_attempt(exchange.question.number) for exchange in run.transcript.exchanges]
    assert len(set(attempts)) == len(attempts) == len({row.question for row in run.ledger.rows})
    again = [question for question, attempt in attempts if attempt]
    assert again == ([0, 1] if lost == 0 else [4])
    assert run.ledger.epsilon(1e-5)["outsider"] > 1.05 * record(prepared).ledger.epsilon(1e-5)["outsider"]
    number = again[-1]
    first, second = (
        [toss.fallen for toss in run.source.tosses if toss.purpose[0] == number_of_attempt(number, before)]
        for before in (0, 1)
    )
    assert len(first) == len(second) == 4
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))


CHEATS = SUMS | {"rounds": 3, "engine": "one-by-one", "set": {"sampling": 0.3}}


def attacked(keys: Any = CHEATS, made: Any = None, tiers: Any = (0,), trials: int = 4000, **more: Any) -> Report:
    return audit_prepared(prepare(Experiment.make(keys, more), method=made), trials, tiers)


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings if finding.refuted}


@pytest.fixture
def patched() -> Iterator[Any]:
    """Replace a piece of the production code for one test."""
    with contextlib.ExitStack() as stack:
        yield lambda where, what, by: stack.enter_context(mock.patch.object(where, what, by))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"set": {"sampling": 1.0, "clipping": "quantile", "class_weight": "balanced"}},
        {"set": {"sampling": 0.3, "clipping": "quantile"}, "colluders": 1},
        {"set": {"sampling": 0.3, "clipping": "normalised"}, "protect_from": "server", "engine": "stacked"},
    ],
    ids=["fixed", "all", "quantile", "normalised"],
)
def test_nothing_is_refuted_when_nothing_is_broken(more: dict[str, Any]) -> None:
    report = attacked(tiers=(0, 1), **more)
    assert not report.findings
    assert not report.refuted
    for view in report.views.values():
        assert 0.1 * view.claimed < view.bound < 1.2 * view.claimed
    views = report.views
    assert views["server"].claimed >= views["peer"].claimed >= views["outsider"].claimed


def test_noise_that_is_divided_instead_of_shared_out(patched: Any) -> None:
    """Every client adds z C / k where z C / sqrt(k) is charged."""
    honest = GradientSum.cover

    def divided(self: GradientSum, width: int, allowance: Any, public: Public) -> Cover:
        cover = honest(self, width, allowance, public)
        return replace(cover, deviations=cover.deviations / math.sqrt(allowance.of_records.shared.guaranteed))

    patched(GradientSum, "cover", divided)
    report = attacked(tiers=(0, 1), trials=10_000)
    assert "price" in names(report)
    assert all(view.refuted for view in report.views.values())


def test_shares_that_cancel_in_the_sum(patched: Any) -> None:
    """Each message has all of its noise, and their sum has less."""
    honest = Seeded.normals

    def cancelling(self: Seeded, size: int, purpose: Any, clients: Any, covered: Any) -> Tensor:
        rows = [honest(self, size, (*purpose, "even"), [client - client % 2], covered) for client in clients]
        more = honest(self, size, purpose, clients, covered)
        signs = torch.tensor([(-1.0) ** client for client in clients]).unsqueeze(1)
        return 0.6 * signs * torch.cat(rows) + 0.8 * more

    patched(Seeded, "normals", cancelling)
    found = attacked(tiers=(0,), set={"sampling": 1.0, "counts": 0.0})
    assert "sum" in names(found)
    assert "variance" not in names(found), "single messages are as noisy as they should be"


def test_a_sum_that_is_normalised_by_the_realised_batch(patched: Any) -> None:
    """A record that enters makes all others count less."""
    honest = PrivateRecords._clipped_sum

    def normalised(self: Any, flat: Tensor, chosen: Tensor, weights: Tensor | None = None) -> Tensor:
        expected = self._batch_drawn.rate * len(looked_inside(self))
        return honest(self, flat, chosen, weights) * expected / max(1, len(chosen))

    patched(PrivateRecords, "_clipped_sum", normalised)
    assert "contribution" in names(attacked())


def looked_inside(data: Any) -> Tensor:
    """A client's labels, which no step is handed."""
    found: Tensor = data._PrivateRecords__units.y
    return found


@dataclass(frozen=True)
class Own(DPFedSGD):
    """DP-FedSGD of a user, whose step looks where it may not."""

    title: ClassVar[str] = "cheats"
    sampling: float = 0.3

    def weights(self, message: Any, data: Any) -> Tensor:
        given: Tensor = message["weights"]
        return given

    @sends(lambda self: self.clipping.releases(self.sampling))
    def local(self, message: Any, me: Any, data: Any) -> Result:
        total = data.gradient_sum(message["global"], self.weights(message, data))
        return Result(send={"gradient": total, **self.clipping.tell(message["global"], data)})


OWN_SUMS = {key: value for key, value in CHEATS.items() if key != "set"}


def test_the_honest_twin_is_consistent() -> None:
    assert not attacked(OWN_SUMS, Own(), (0, 1)).refuted


@dataclass(frozen=True)
class RawWeights(Own):
    """Weighs records by how rare their label is among all records of the client: those not drawn act, too."""

    def weights(self, message: Any, data: Any) -> Tensor:
        counts = torch.bincount(looked_inside(data), minlength=10)
        return len(counts) / (10 * counts.clamp(min=1))


def test_weights_from_raw_counts() -> None:
    assert "not drawn" in names(attacked(OWN_SUMS, RawWeights()))


@dataclass(frozen=True)
class Free(Release):
    """A number that says that it costs nothing."""

    __module__ = GradientSum.__module__

    @property
    def stackable(self) -> bool:
        return True

    def charge(self, allowance: Any, public: Public) -> Charge:
        return Charge.nothing()

    def describe(self) -> str:
        return "a number for nothing"


@dataclass(frozen=True)
class TellsCoins(Own):
    """Tells the server how many records its batch has."""

    @sends(lambda self: {"gradient": GradientSum("clip", self.sampling), "size": Free()})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        size = data._batch_drawn.coins(len(looked_inside(data))).sum()
        return Result(send={"gradient": data.gradient_sum(message["global"]), "size": size.float()})


def test_coins_that_are_told_to_the_server() -> None:
    """They depend on nobody's records, so that other records show nothing of it: other coins do."""
    report = attacked(OWN_SUMS, TellsCoins())
    assert names(report) == {"without noise"}
    assert any("depends on other coins" in finding.sentence for finding in report.findings)


@dataclass(frozen=True)
class Thin(Own):
    """Starts from a model that each client has moved by its own thinly noised message."""

    def public_memory(self, model: Tensor, layout: Any) -> dict[str, Tensor]:
        return {"own": torch.zeros_like(model)}

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> dict[str, Tensor]:
        return {"own": public["own"] - 0.01 * sent["gradient"]}

    @sends(lambda self: self.clipping.releases(self.sampling))
    def local(self, message: Any, me: Any, data: Any) -> Result:
        total = data.gradient_sum(message["global"] + me["own"])
        return Result(send={"gradient": total}, keep={"model": message["global"]})


def test_a_thin_message_that_the_next_step_uses(patched: Any) -> None:
    """What clients learn from their own messages is refused beforehand, and would be found without that."""
    with pytest.raises(UserError, match="nothing may be learned from it"):
        attacked(OWN_SUMS, Thin())
    patched(declaring, "_check_sums", lambda steps, states: None)
    assert {"own message", "public state"} <= names(attacked(OWN_SUMS, Thin()))


@pytest.mark.parametrize(("kept", "by"), [("coins", {"coins"}), ("noise", {"reuse"})])
def test_coins_or_noise_that_are_kept_over_attempts(kept: str, by: set[str], patched: Any) -> None:
    """The second attempt is charged as a fresh draw."""
    coins, normals = Seeded.coins, Seeded.normals

    def same_coins(self: Seeded, count: int, rate: float, question: int, *more: Any) -> Tensor:
        return coins(self, count, rate, split_attempt(question)[0], *more)

    def same_noise(self: Seeded, size: int, key: Any, *more: Any) -> Tensor:
        return normals(self, size, (split_attempt(key[0])[0], *key[1:]), *more)

    patched(Seeded, *(("coins", same_coins) if kept == "coins" else ("normals", same_noise)))
    assert by <= names(attacked())


def test_bits_that_are_charged_beside_gradients(patched: Any) -> None:
    """Two charges over one draw of coins, each of which claims the coins' secrecy for itself."""
    patched(ledger, "join_drawn", dict)
    clipping = {"clipping": "quantile", "clipping.share": 0.5}
    report = attacked(tiers=(0, 1), trials=40_000, set={"sampling": 0.05, **clipping})
    assert "price" in names(report)
    assert report.views["server"].refuted


def test_bits_cannot_be_declared_beside_gradients_of_another_draw() -> None:
    steps: dict[str, Releases] = {
        "local": {"gradient": GradientSum(1.0, 0.05, share=0.5)},
        "bits": {"within": RecordSum(0.5, 0.5, drawn=True)},
    }
    with pytest.raises(UserError, match="bits declares within over a batch, but no GradientSum that draws one"):
        check_steps(steps, Unit.RECORD, ())


def test_one_coin_for_all_clients(patched: Any) -> None:
    honest = Seeded.coins
    patched(Seeded, "coins", lambda self, count, rate, question, client, n: honest(self, count, rate, question, 0, n))
    assert "coins" in names(attacked())


def test_a_rate_that_is_charged_lower_than_coins_fall(patched: Any) -> None:
    honest = GradientSum.charge

    def cheap(self: GradientSum, allowance: Any, public: Public) -> Charge:
        charge = honest(self, allowance, public)
        assert charge.sampled is not None
        return replace(charge, sampled=charge.sampled * [0.5, 1.0, 1.0])

    patched(GradientSum, "charge", cheap)
    assert "coins" in names(attacked())


def test_label_counts_that_are_not_limited(patched: Any) -> None:
    """Each record counts five times, where a bound of one is charged."""
    honest = RecordSum.bounded

    def five_times(self: RecordSum, rows: Tensor, public: Public) -> Bounded:
        found = honest(self, rows, public)
        return replace(found, rows=5 * found.rows)

    patched(RecordSum, "bounded", five_times)
    report = attacked(tiers=(0, 1))
    assert "contribution" in names(report)


def test_less_noise_on_label_counts(patched: Any) -> None:
    honest = RecordSum.cover

    def less(self: RecordSum, width: int, allowance: Any, public: Public) -> Cover:
        cover = honest(self, width, allowance, public)
        return replace(cover, deviations=cover.deviations / 10)

    patched(RecordSum, "cover", less)
    report = attacked(tiers=(0, 1), set={"counts": 0.2, "sampling": 0.3})
    assert "price" in names(report)
    assert report.views["outsider"].refuted


def test_prices_that_are_right_for_the_server_alone(patched: Any) -> None:
    """Outsiders are charged as if there were a hundred clients."""
    patched(Noise, "met", lambda self, asked: (100, 0))
    report = attacked(tiers=(0, 1), trials=10_000)
    assert {view for view in report.views if report.refutes(view)} == {"outsider", "peer"}
    assert report.views["outsider"].refuted
