"""Methods that cheat through the public interface: the gate refuses what they try, or the audit catches it.

Each is a user's own method whose printed epsilon is false. The test says by what it is caught.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.auditing.findings import Report
from sordino.auditing.recorded_run import record
from sordino.auditing.suite import audit_prepared
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.method import Result
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.privacy.release import Charge, Cover, Derived, Follows, Gradients, Public, Release, Update, sends
from sordino.privacy.release.base import Bounded

SMALL: dict[str, Any] = {
    "clients": 4,
    "rounds": 2,
    "epsilon": 2.0,
    "delta": 1e-5,
    "model": "logistic",
    "records": 160,
    "partition": "iid",
    "engine": "one-by-one",
}


def attacked(method: Any, tiers: Any = (0,), trials: int = 2000, batch: int = 80) -> Report:
    name = "dp-fedavg" if method.unit == "client" else "dp-fedavg-record"
    made = replace(method, epochs=1, batch=batch)
    return audit_prepared(prepare(Experiment.make(SMALL, {"method": name}), method=made), trials, tiers)


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings if finding.refuted}


ELSEWHERE = types.ModuleType("elsewhere")
"""Place for what no message may hold: another module than the methods' own, which could as well be a file."""
ELSEWHERE.notes = {}  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _blank_notes() -> Iterator[None]:
    ELSEWHERE.notes.clear()
    yield
    ELSEWHERE.notes.clear()


@dataclass(frozen=True)
class Cheat(DPFedAvg):
    """DP-FedAvg whose parts can be replaced; what its clients' records are like is noted down."""

    title: ClassVar[str] = "cheats"

    def run(self, fed: Any, model: Tensor) -> None:
        server = fed.state(model=model, threshold=self.threshold.begin(fed, self.clip))
        for number in fed.rounds(server):
            if not self.goes_on(number):
                break
            message = {"global": server.model, "clip": server.threshold["clip"]}
            got = fed.ask(self.cohort(fed), self.local, message)
            server.model = self.end(server.model + got.mean("update"), fed, number)

    def goes_on(self, number: int) -> bool:
        return True

    def cohort(self, fed: Any) -> list[int]:
        return list(fed.sample())

    def end(self, model: Tensor, fed: Any, number: int) -> Tensor:
        return model

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Any, me: Any, data: Any) -> Result:
        ELSEWHERE.notes["label"] = ELSEWHERE.notes.get("label", 0) + int(data.y[0])
        return super().local(message, me, data)


def test_the_honest_twin_is_consistent() -> None:
    assert not attacked(Cheat(), (0, 1)).refuted


class ByCohort(Cheat):
    """Asks clients in an order that tells of their labels."""

    def cohort(self, fed: Any) -> list[int]:
        asked = list(fed.sample())
        first = ELSEWHERE.notes.get("label", 0) % len(asked)
        return asked[first:] + asked[:first]


class ByFinalModel(Cheat):
    """Puts what it noted down into the model that is published, after the last question."""

    def end(self, model: Tensor, fed: Any, number: int) -> Tensor:
        return model + 1e-6 * ELSEWHERE.notes["label"] if number == fed.schedule.rounds - 1 else model


class ByMessage(Cheat):
    """Tells all clients what it noted down, each time anew."""

    def end(self, model: Tensor, fed: Any, number: int) -> Tensor:
        return model + 1e-6 * ELSEWHERE.notes["label"]


@pytest.mark.parametrize("method", [ByCohort(), ByFinalModel(), ByMessage()], ids=lambda one: type(one).__name__)
def test_what_clients_leave_lying_about_is_noticed_in_the_script(method: Cheat) -> None:
    found = names(attacked(method))
    assert "hidden channel" in found
    assert ("cohort" in found) == isinstance(method, ByCohort)


@dataclass(frozen=True)
class ByRounds(Cheat):
    """Goes on for as long as the labels of the last client add up to what they do."""

    wanted: int = 0

    def goes_on(self, number: int) -> bool:
        return number == 0 or ELSEWHERE.notes["labels"] == self.wanted

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Any, me: Any, data: Any) -> Result:
        ELSEWHERE.notes["labels"] = int(data.y.sum())
        return DPFedAvg.local(self, message, me, data)


def test_a_number_of_rounds_that_depends_on_records() -> None:
    labels = prepare(Experiment.make(SMALL)).data.clients[-1].y
    assert "cohort" in names(attacked(ByRounds(wanted=int(labels.sum()))))


@dataclass(frozen=True)
class Publishes(Cheat):
    """Publishes something of its clients' records that is the same for as many others of the same kinds."""

    what: str = ""

    def end(self, model: Tensor, fed: Any, number: int) -> Tensor:
        return model + 1e-6 * ELSEWHERE.notes["found"]

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Any, me: Any, data: Any) -> Result:
        found = {
            "sizes": len(data.y),
            "a size above 30": int(len(data.y) > 30),
            "whether there is a single record": int(len(data.y) == 1),
            "whether label 9 occurs": int((data.y == 9).any()),
            "whether label 0 occurs": int((data.y == 0).any()),
            "how many labels occur": len(data.y.unique()),
            "whether one record alone has label 9": int(sorted(data.y.tolist())[-2:] == [0, 9]),
            "whether a client has label 3 alone": int(len(data.y) > 1 and bool((data.y == 3).all())),
            "whether a value is extreme": int(data.x.abs().max() > 1e3),
            "whether a record is empty": int((data.x.flatten(1) == 0).all(dim=1).any()),
        }
        ELSEWHERE.notes["found"] = max(ELSEWHERE.notes.get("found", 0), found[self.what])
        return DPFedAvg.local(self, message, me, data)


@pytest.mark.parametrize(
    "what",
    [
        *("sizes", "a size above 30", "whether label 9 occurs", "how many labels occur", "whether a value is extreme"),
        *("whether one record alone has label 9", "whether a client has label 3 alone"),
        *("whether there is a single record", "whether label 0 occurs", "whether a record is empty"),
    ],
)
def test_what_is_published_of_sizes_and_rare_labels_is_noticed(what: str) -> None:
    """Half of a client's records, a single one, a label that one record alone has, and what else may be."""
    assert "hidden channel" in names(attacked(Publishes(what=what)))


@dataclass(frozen=True)
class Fails(Cheat):
    """Fails at clients of a certain kind; the script catches that, and goes on as if nothing had happened."""

    on: str = ""

    def run(self, fed: Any, model: Tensor) -> None:
        with contextlib.suppress(Exception):
            super().run(fed, model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Any, me: Any, data: Any) -> Result:
        single, rare = len(data.y) == 1, not (data.y == 9).any()
        if {"a single record": single, "a rare label": rare and not single, "all": True}[self.on]:
            raise ValueError(self.on)
        return DPFedAvg.local(self, message, me, data)


@pytest.mark.parametrize("on", ["a single record", "a rare label"])
def test_a_step_that_fails_on_certain_records_is_refuted(on: str) -> None:
    assert names(attacked(Fails(on=on))) == {"failure"}


def test_an_audit_ends_with_the_error_of_a_step_whatever_the_script_catches() -> None:
    with pytest.raises(ValueError, match="all"):
        attacked(Fails(on="all"))


@dataclass(frozen=True)
class Remembers(Cheat):
    """A public state that knows more than what was sent."""

    def public_memory(self, model: Tensor, layout: Any) -> dict[str, Tensor]:
        return {"seen": torch.zeros(1)}

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> dict[str, Tensor]:
        return {"seen": public["seen"] + ELSEWHERE.notes["label"]}

    @sends(lambda self: {**self.threshold.releases(), "seen": Derived("seen")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        ELSEWHERE.notes["label"] = int(data.y[0])
        return DPFedAvg.local(self, message, me, data)


def test_a_public_state_that_depends_on_records() -> None:
    found = names(attacked(Remembers()))
    assert "public state" in found
    assert "without noise" in found, "and it leaves, under a release that costs nothing"


@dataclass(frozen=True)
class FreeMetric(Release):
    """A number that says that it costs nothing."""

    __module__ = Update.__module__

    def charge(self, allowance: Any, public: Public) -> Charge:
        return Charge.nothing()

    def describe(self) -> str:
        return "a number for nothing"


@dataclass(frozen=True)
class SeededNoise(Update):
    """A vector with noise of its own making, the same for whoever knows how it is made."""

    __module__ = Update.__module__

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        found = super().bounded(rows, public)
        made = torch.randn(found.rows.shape, generator=torch.Generator().manual_seed(0))
        return replace(found, rows=found.rows + made)

    def cover(self, width: int, allowance: Any, public: Public) -> Any:
        return None


@dataclass(frozen=True)
class OwnThreshold(Update):
    """A threshold that is each vector's own length, in which the noise is as large as was promised."""

    __module__ = Update.__module__

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        ELSEWHERE.notes["length"] = float(rows.norm(dim=1).max())
        return super().bounded(rows, public)

    def cover(self, width: int, allowance: Any, public: Public) -> Cover:
        honest = super().cover(width, allowance, public)
        longest = ELSEWHERE.notes.get("length", 1.0)
        return replace(honest, deviations=honest.deviations * longest, bounds=honest.bounds * longest)


@dataclass(frozen=True)
class HalfBare(Update):
    """Much noise on the first entry and none on the others."""

    __module__ = Update.__module__

    def cover(self, width: int, allowance: Any, public: Public) -> Cover:
        honest = super().cover(width, allowance, public)
        deviations = torch.cat([1e3 * honest.deviations, torch.zeros_like(honest.deviations)], dim=1)
        return replace(honest, deviations=deviations, bounds=honest.bounds.expand(-1, 2), sizes=[1, width - 1])


@dataclass(frozen=True)
class CheapForOutsiders(Update):
    """Charges the server what it should, and outsiders a hundredth."""

    __module__ = Update.__module__

    def charge(self, allowance: Any, public: Public) -> Charge:
        honest = super().charge(allowance, public)
        return replace(honest, noise=honest.noise * [10.0, 10.0, 1.0])


@dataclass(frozen=True)
class Discreet(Update):
    """Says that single messages tell nothing that the sum does not."""

    __module__ = Update.__module__

    def expose(self, ledger: Any, row: Any, clients: Any) -> list[Any]:
        return []


@dataclass(frozen=True)
class CheapLater(Update):
    """Charges what it should in the first round only."""

    __module__ = Update.__module__

    def charge(self, allowance: Any, public: Public) -> Charge:
        ELSEWHERE.notes["times"] = ELSEWHERE.notes.get("times", 0) + 1
        return super().charge(allowance, public) if ELSEWHERE.notes["times"] == 1 else Charge.nothing()


@dataclass(frozen=True)
class Sends(Cheat):
    """Sends its update as a kind of release of its own."""

    kind: ClassVar[type[Update]] = Update

    @sends(lambda self: {"update": self.kind(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return DPFedAvg.local(self, message, me, data)


def sending(kind_: type[Update], base: type[Sends] = Sends) -> Sends:
    """A method that sends its update as `kind_`."""
    return dataclass(frozen=True)(type(f"Sends{kind_.__name__}", (base,), {"kind": kind_}))()


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        (SeededNoise, "without noise"),
        (OwnThreshold, "data in the noise"),
        (HalfBare, "price"),
        (CheapLater, "price"),
    ],
)
def test_an_own_kind_of_release_that_lies_about_its_noise(kind: type[Update], by: str) -> None:
    assert by in names(attacked(sending(kind), (0, 1)))


class Own(Update):
    """A kind of release that does not even say that it is Sordino's."""


def test_own_kinds_of_release_are_refused_unless_they_deny_it() -> None:
    """So the cheats of this file pass themselves off as Sordino's."""
    with pytest.raises(UserError, match="a kind of release that is not Sordino's"):
        attacked(sending(Own))


def test_an_own_kind_of_release_that_is_cheap_for_outsiders() -> None:
    assert not attacked(sending(Update), (0, 1), 20_000).refuted
    report = attacked(sending(CheapForOutsiders), (1,), 20_000)
    assert report.views["outsider"].refuted
    assert not report.views["server"].refuted


@dataclass(frozen=True)
class ReadsRows(Sends):
    """Takes the median of single messages."""

    def run(self, fed: Any, model: Tensor) -> None:
        server = fed.state(model=model, threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model = server.model + got.rows("update").median(dim=0).values


def test_an_own_kind_of_release_that_denies_that_rows_tell_more_than_sums() -> None:
    assert not attacked(sending(Update, ReadsRows), (1,), 4000).refuted
    assert attacked(sending(Discreet, ReadsRows), (1,), 4000).views["outsider"].refuted


@dataclass(frozen=True)
class Measures(Cheat):
    """Sends a raw metric beside its update."""

    @sends(lambda self: {**self.threshold.releases(), "metric": FreeMetric()})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        result = DPFedAvg.local(self, message, me, data)
        return replace(result, send={**result.send, "metric": data.y.float().mean()})


def test_a_raw_metric_that_costs_nothing() -> None:
    assert "without noise" in names(attacked(Measures()))


@dataclass(frozen=True)
class TwoFaced(Cheat):
    """Declares one thing to the server, and another to its clients."""

    def steps(self) -> Any:
        ELSEWHERE.notes["asked"] = ELSEWHERE.notes.get("asked", 0) + 1
        share = 1.0 if ELSEWHERE.notes.get("client") else 1e-4
        return {"local": {"update": Update(clip="clip", share=share)}}

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return DPFedAvg.local(self, message, me, data)


def test_a_declaration_that_is_another_at_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    from sordino.federation.client import Clients

    original = Clients.__init__

    def made(self: Any, *given: Any) -> None:
        ELSEWHERE.notes["client"] = True
        original(self, *given)
        ELSEWHERE.notes["client"] = False

    monkeypatch.setattr(Clients, "__init__", made)
    assert "price" in names(attacked(TwoFaced()))


@dataclass(frozen=True)
class Longer(Cheat):
    """Sends one entry more for some labels."""

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        result = DPFedAvg.local(self, message, me, data)
        return replace(result, send={"update": torch.cat([result.send["update"], torch.zeros(int(data.y[0]))])})


def test_the_gate_refuses_a_vector_of_another_length() -> None:
    with pytest.raises(UserError, match="entries"):
        attacked(Longer())


@dataclass(frozen=True)
class InDoubles(Cheat):
    """Hides its records in digits that float32 does not have."""

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        result = DPFedAvg.local(self, message, me, data)
        return replace(result, send={"update": result.send["update"].double() + 1e-12 * data.y[0]})


def test_the_gate_lets_nothing_through_but_float32() -> None:
    made = replace(InDoubles(), epochs=1, batch=80)
    recorded = record(prepare(Experiment.make(SMALL, {"method": "dp-fedavg"}), method=made))
    assert all(one.answer.values["update"].dtype == torch.float32 for one in recorded.transcript.exchanges)


def looked_inside(data: Any) -> Tensor:
    """A client's records, where only noisy gradients are handed out."""
    found: Tensor = data._PrivateRecords__units.y
    return found


@dataclass(frozen=True)
class Peeks(DPFedAvgRecord):
    """Looks at single records where only noisy gradients are handed out, and sends what it saw in the last digits."""

    title: ClassVar[str] = "cheats"
    how: str = "digits"

    @sends(lambda self: {"update": Gradients(clip="clip"), "more": Follows("update"), "rest": Follows("update")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        result = super().local(message, me, data)
        saw, more, rest = looked_inside(data).float(), torch.zeros(4), torch.zeros(14)
        first = ELSEWHERE.notes.setdefault("first", int(saw[0]))
        if "length" in self.how:
            more = torch.zeros(4 + first)
        if self.how == "lengths of one sum":
            rest = torch.zeros(14 - first)
        if self.how == "digits":
            more = more + 1e-6 * saw.sum()
        return replace(result, send={**result.send, "more": more, "rest": rest})


@pytest.mark.parametrize(
    ("how", "by"),
    [("digits", "without noise"), ("length", "length"), ("lengths of one sum", "length"), ("not", "")],
)
def test_single_records_that_are_looked_at_where_only_gradients_are_handed_out(how: str, by: str) -> None:
    found = names(attacked(Peeks(how=how)))
    assert by in found if by else not found


@dataclass(frozen=True)
class FewerSteps(DPFedAvgRecord):
    """Takes a number of gradients that tells of its records."""

    title: ClassVar[str] = "cheats"

    @sends(lambda self: {"update": Gradients(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = message["global"]
        for _ in range(1 + int(looked_inside(data).sum()) % data.steps):
            model = model - self.rate * data.gradient(model)
        return Result(send={"update": model - message["global"]}, keep={"model": model}, start=message["global"])


def test_a_number_of_gradients_that_depends_on_records() -> None:
    found = names(attacked(FewerSteps(), batch=10))
    assert {"number of gradients", "without noise"} & found


@dataclass(frozen=True)
class OneStepFewer(DPFedAvgRecord):
    """Takes a last gradient, of which nothing leaves, where the labels add up to a certain number."""

    title: ClassVar[str] = "cheats"
    wanted: int = 0

    @sends(lambda self: {"update": Gradients(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = message["global"]
        for _ in range(data.steps - 1):
            model = model - self.rate * data.gradient(model)
        if int(looked_inside(data).sum()) == self.wanted:
            data.gradient(model)
        return Result(send={"update": model - message["global"]}, keep={"model": model}, start=message["global"])


def test_gradients_that_only_some_records_take() -> None:
    labels = prepare(Experiment.make(SMALL, {"method": "dp-fedavg-record"})).data.clients[-1].y
    assert names(attacked(OneStepFewer(wanted=int(labels.sum())), batch=20)) == {"number of gradients"}


def test_nothing_is_left_in_numpys_or_torchs_own_streams() -> None:
    """An audit draws all of its noise by name: what other code draws does not move it."""
    np.random.seed(3)
    torch.manual_seed(3)
    first = attacked(Cheat(), (1,)).views["outsider"].bound
    np.random.seed(4)
    torch.manual_seed(4)
    assert attacked(Cheat(), (1,)).views["outsider"].bound == first
