"""What an own method could do wrong by accident: each either is refused or pays the true price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch

from sordino.errors import UserError
from sordino.experiment.run import carry_on, register
from sordino.federation.message import Each
from sordino.federation.rounds import RoundWatch
from sordino.method import Method, Result
from sordino.methods.bases import RecordLevel
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.ledger import Ledger
from sordino.privacy.release import (
    Average,
    Derived,
    Follows,
    Gradients,
    Matrix,
    Number,
    Public,
    ReleaseError,
    Update,
    sends,
)
from sordino.privacy.release.base import Bounded, Charge, Release
from sordino.privacy.sealed import SealedError
from sordino.store.store import Store
from sordino.testing.case import CLIENTS, ROUNDS, Case, OneRound
from sordino.testing.records import observe_gradients, records_are_sampled_clipped_and_noised_as_charged

Z, DELTA = 2.0, 1e-5


def epsilons(method: Method, folder: Path, **keys: Any) -> dict[str, float]:
    """What a run of three rounds prints, with six clients and a noise multiplier of 2 for the outsider."""
    case = Case(method, folder)
    summary, _ = case.finished(case.prepared(noise_multiplier=Z, delta=DELTA, **keys), folder)
    found: dict[str, float] = summary["epsilon"]
    return found


def epsilon(mu2: float) -> float:
    return epsilon_of(math.sqrt(mu2), DELTA)


@dataclass(frozen=True)
class Plain(Method):
    """One clipped update of each client, and what a subclass adds to it."""

    title: ClassVar[str] = "an own method"
    paper: ClassVar[str] = "none"
    clip: float = 0.5

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            self.round(fed, server)

    def round(self, fed: Any, server: Any) -> None:
        got = fed.ask(fed.sample(), self.local, {"global": server.model})
        server.model = server.model + got.mean("update")

    @sends(lambda self: {"update": Update(clip=self.clip)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = self.descent(data).epoch(message["global"])
        return Result(send={"update": model - message["global"]}, keep={"model": model}, start=message["global"])


def test_the_plain_method_costs_what_was_planned(tmp_path: Path) -> None:
    found = epsilons(Plain(), tmp_path)
    assert found["outsider"] == pytest.approx(epsilon(ROUNDS / Z**2))
    assert found["server"] == pytest.approx(epsilon(ROUNDS * CLIENTS / Z**2))


class Numbers(Plain):
    """Keeps or sends a number that is no tensor."""

    keeps: bool = True

    @sends(lambda self: {"update": Update(clip=self.clip)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        kept = {"model": 1.0 if self.keeps else message["global"]}
        return Result(send={"update": message["global"] if self.keeps else 1.0}, keep=kept)


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_what_is_kept_and_sent_are_tensors(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="keeps model, which is no tensor"):
        epsilons(Numbers(), tmp_path / "kept", engine=engine)
    monkeypatch.setattr(Numbers, "keeps", False)
    with pytest.raises(UserError, match=r"must hand over a tensor, not 1\.0"):
        epsilons(Numbers(), tmp_path / "sent", engine=engine)


class Twice(Plain):
    """Asks the same step twice in a round."""

    def round(self, fed: Any, server: Any) -> None:
        for _ in range(2):
            super().round(fed, server)


def test_the_same_step_asked_twice_draws_and_pays_twice(tmp_path: Path) -> None:
    assert epsilons(Twice(), tmp_path / "run")["outsider"] == pytest.approx(epsilon(2 * ROUNDS / Z**2))
    case = Case(Twice(rate=1e-12), tmp_path)  # nothing is learned: what comes back is noise alone
    first, second = (asked.answer.values["update"] for asked in OneRound(case.prepared(), tmp_path).asked)
    matrix = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]).double())
    assert abs(float(matrix[0, 1])) < 0.1  # 3,900 pairs: beyond six standard deviations


class Many(Plain):
    """Sends ten numbers where one is declared."""

    @sends(lambda self: {"update": Update(clip=self.clip, share=0.5), "metrics": Number(0.0, 1.0, share=0.5)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = message["global"]
        return Result(send={"update": 0 * model, "metrics": model[:10]}, keep={"model": model})


def test_more_numbers_than_declared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="1 entries, but the step sent 10"):
        epsilons(Many(), tmp_path)


class Repeating(Plain):
    """Names a client twice."""

    def round(self, fed: Any, server: Any) -> None:
        fed.ask([0, 0, 1, 2, 3, 4], self.local, {"global": server.model})


class Nobody(Plain):
    """Asks nobody."""

    def round(self, fed: Any, server: Any) -> None:
        fed.ask([], self.local, {"global": server.model})


class Unknown(Plain):
    """Asks an unknown client."""

    def round(self, fed: Any, server: Any) -> None:
        fed.ask(range(1, 7), self.local, {"global": server.model})


class Undeclared(Plain):
    """Asks a function that declares nothing."""

    def round(self, fed: Any, server: Any) -> None:
        fed.ask(fed.sample(), self.secret, {})

    def secret(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"raw": data.x.mean()})


class Early(Plain):
    """Asks before its loop."""

    def run(self, fed: Any, model: Any) -> None:
        fed.ask(fed.everyone(), self.local, {"global": model})


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Repeating(), "twice in one question"),
        (Nobody(), "asked nobody"),
        (Unknown(), "clients are 0 to 5"),
        (Undeclared(), "no step of the method"),
        (Early(), "within its loop over fed.rounds"),
    ],
)
def test_a_senseless_question_is_refused(method: Method, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        epsilons(method, tmp_path)


class Unequal(Plain):
    """One client has ten times the threshold of the others."""

    def round(self, fed: Any, server: Any) -> None:
        clips = torch.full((CLIENTS,), 0.1)
        clips[0] = 1.0
        fed.ask(fed.sample(), self.local, {"global": server.model, "clip": Each(clips)})

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"update": 0 * message["global"]}, keep={"model": message["global"]})


def test_a_larger_threshold_than_the_others_pays_more(tmp_path: Path) -> None:
    """The sum's noise has the variance z^2 (1 + 5 x 0.01) / 6, so the first client's mu^2 is 6 / (1.05 z^2) a round."""
    found = epsilons(Unequal(), tmp_path)
    assert found["outsider"] == pytest.approx(epsilon(ROUNDS * CLIENTS / 1.05 / Z**2))


class MedianOfRows(Plain):
    """Publishes a function of single messages."""

    def round(self, fed: Any, server: Any) -> None:
        got = fed.ask(fed.sample(), self.local, {"global": server.model})
        server.model = server.model + got.rows("update").median(dim=0).values


def test_whoever_publishes_single_messages_pays_the_servers_price(tmp_path: Path) -> None:
    found = epsilons(MedianOfRows(), tmp_path)
    for view in ("outsider", "peer", "server"):
        assert found[view] == pytest.approx(epsilon(ROUNDS * CLIENTS / Z**2))


class Telling(Plain):
    """Sends what it learned from its own messages, in a step of its own."""

    def round(self, fed: Any, server: Any) -> None:
        super().round(fed, server)
        self.read(fed.ask(fed.sample(), self.tell, {}))

    def read(self, got: Any) -> None:
        got.mean("state")

    @sends(lambda self: {"state": Derived("state")})
    def tell(self, message: Any, me: Any, data: Any) -> Result:
        return Result()

    def public_memory(self, model: Any, layout: Any) -> dict[str, Any]:
        return {"state": torch.zeros_like(model)}

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> dict[str, Any]:
        return {"state": torch.sign(sent["update"])}


class Silent(Telling):
    """The same, but the server does not look at it."""

    def read(self, got: Any) -> None:
        return


@pytest.mark.parametrize(("method", "last"), [(Telling(), CLIENTS), (Silent(), 1)])
def test_what_follows_from_single_messages_is_paid_for_once_it_is_read(
    method: Method, last: int, tmp_path: Path
) -> None:
    """The server reads it in the round itself; a step may read it from the next round on, and the last has none."""
    paid = ((ROUNDS - 1) * CLIENTS + last) / Z**2
    assert epsilons(method, tmp_path)["outsider"] == pytest.approx(epsilon(paid))


class Moody(Telling):
    """Keeps its model, and so learns from its message, where its records say so."""

    def local(self, message: Any, me: Any, data: Any) -> Result:
        result = Plain.local(self, message, me, data)
        return result if float(data.y.float().mean()) > 4.5 else Result(result.send, start=result.start)

    local.releases = Plain.local.releases  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 2])
def test_whether_a_step_keeps_anything_does_not_depend_on_data(workers: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keeps something at one client and nothing at another"):
        epsilons(Moody(), tmp_path, engine="one-by-one", workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_nor_does_it_from_one_round_to_another(workers: int, tmp_path: Path) -> None:
    """One client is asked in each round: none keeps something beside another that does not."""
    keys: dict[str, Any] = {"participation": 1 / CLIENTS, "rounds": 2 * CLIENTS, "workers": workers}
    with pytest.raises(UserError, match="keeps something at one client and nothing at another"):
        epsilons(Moody(), tmp_path, engine="one-by-one", **keys)


class OwnThreshold(Telling):
    """Its clients' thresholds follow from their own messages; the server reads sums only."""

    def round(self, fed: Any, server: Any) -> None:
        Plain.round(self, fed, server)

    def public_memory(self, model: Any, layout: Any) -> dict[str, Any]:
        return {"mine": torch.tensor([0.5])}

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> dict[str, Any]:
        return {"mine": 0.5 + 0.1 * (sent["update"].sum() > 0).float().reshape(1)}

    @sends(lambda self: {"update": Update(clip="mine")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Plain.local(self, message, me, data)

    @sends(lambda self: {})
    def tell(self, message: Any, me: Any, data: Any) -> Result:
        return Result()


def test_bounds_that_tell_of_single_messages_are_paid_for(tmp_path: Path) -> None:
    """A client's own threshold shows in the noise of the next sum: all but the last round's messages are exposed."""
    found = epsilons(OwnThreshold(), tmp_path)
    assert found["outsider"] > epsilon((ROUNDS - 1) * CLIENTS / Z**2)
    assert found["server"] == pytest.approx(epsilon(ROUNDS * CLIENTS / Z**2))


class Writing(Telling):
    """A step that writes a public state."""

    def local(self, message: Any, me: Any, data: Any) -> Result:
        result = Plain.local(self, message, me, data)
        return Result(result.send, {**result.keep, "state": result.keep["model"]}, result.start)

    local.releases = Plain.local.releases  # type: ignore[attr-defined]


class Forgetting(Telling):
    """Learns less than it said."""

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> dict[str, Any]:
        return {}


class Array(Plain):
    """Sends an array, which clients would share."""

    def round(self, fed: Any, server: Any) -> None:
        fed.ask(fed.sample(), self.local, {"global": server.model, "odd": np.zeros(2)})


class Peeking(Plain):
    """Steers by raw accuracies."""

    def round(self, fed: Any, server: Any) -> None:
        super().round(fed, server)
        fed.shared_accuracies(fed.everyone())


class Misspelt(Plain):
    """Reads what nobody sends."""

    def round(self, fed: Any, server: Any) -> None:
        fed.ask(fed.sample(), self.local, {"global": server.model}).mean("updates")


class Unbounded(Plain):
    """Names a threshold that nobody knows."""

    @sends(lambda self: {"update": Update(clip="klip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return super().local(message, me, data)


@pytest.mark.parametrize(
    ("method", "error", "sentence"),
    [
        (Writing(), UserError, "only `learn` may write it"),
        (Forgetting(), UserError, "`learn` must give"),
        (Array(), UserError, "sent a ndarray as odd of the message"),
        (Peeking(), AttributeError, "shared_accuracies"),
        (Misspelt(), UserError, "did you mean 'update'"),
        (Unbounded(), ReleaseError, "neither in the message nor a public state"),
    ],
)
def test_slips_are_told(method: Method, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        epsilons(method, tmp_path)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_messages_in_other_formats_keep_their_bound(kind: torch.dtype) -> None:
    public = Public({}, [0], layers=[4_000])
    release = Update(1.0)
    rows = release.bounded(release.opened(torch.full((1, 4_000), 0.31, dtype=kind), public), public).rows
    assert rows.double().norm() <= 1.0


class Changing(Plain):
    """Its script is not a function of its seed: another message answers the same question after a resume."""

    def round(self, fed: Any, server: Any) -> None:
        self.rolls.append(len(self.rolls))
        got = fed.ask(fed.sample(), self.local, {"global": server.model, "roll": self.rolls[-1]})
        server.model = server.model + got.mean("update")

    rolls: ClassVar[list[int]] = []


def test_the_same_noise_never_answers_another_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.federation.server.SAVE_SECONDS", 0.0)
    case, store = Case(Changing(), tmp_path), Store(tmp_path)
    run = register(case.prepared(), store)

    def stop(report: Any) -> None:
        if report.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_on(case.prepared(), store, run, RoundWatch(stop))
    with pytest.raises(UserError, match="does not repeat itself"):
        carry_on(case.prepared(), store, run)


class Meddling(Plain):
    """A client's step lowers the others' thresholds once they were charged, and with them the noise in the sum."""

    clips: ClassVar[torch.Tensor] = torch.ones(CLIENTS, 1)

    def round(self, fed: Any, server: Any) -> None:
        fed.ask(fed.sample(), self.local, {"global": server.model, "clip": Each(self.clips)})

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        self.clips[1:] = 1e-9
        return Result(send={"update": 0 * message["global"]}, keep={"model": message["global"]})


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
def test_messages_cannot_be_changed_in_place(engine: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="or the server's message, by which others are bounded"):
        epsilons(Meddling(), tmp_path, engine=engine)


class Uncovered(Plain):
    """A vector of ten entries whose layers are the network's."""

    def round(self, fed: Any, server: Any) -> None:
        fed.ask(fed.sample(), self.local, {"global": server.model})

    @sends(lambda self: {"update": Update(clip=1.0, layered=True, entries=10)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"update": torch.ones(10)}, keep={"model": message["global"]})


def test_layers_that_are_not_the_messages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="650 entries, but a message has 10"):
        epsilons(Uncovered(), tmp_path)


class Altering(Plain):
    """Changes its client's records in place."""

    def local(self, message: Any, me: Any, data: Any) -> Result:
        data.x.mul_(2)
        return super().local(message, me, data)

    local.releases = Plain.local.releases  # type: ignore[attr-defined]


def test_records_cannot_be_changed_in_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="changed its client's records in place"):
        epsilons(Altering(), tmp_path, engine="one-by-one")


@dataclass(frozen=True)
class Records(RecordLevel):
    """Trains on noisy gradients, and sends what a subclass adds to it."""

    title: ClassVar[str] = "an own record-level method"
    paper: ClassVar[str] = "none"

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            server.model = server.model + fed.ask(fed.sample(), self.local, {"global": server.model}).mean("update")

    @sends(lambda self: {"update": Gradients(clip=self.clip)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return self.result(message, self.trained(message["global"], data), data)

    def result(self, message: Any, model: Any, data: Any) -> Result:
        return Result(send={"update": model - message["global"]}, keep={"model": model}, start=message["global"])


@dataclass(frozen=True)
class ByLayers(Records):
    """Has as many thresholds as it is told, the second of them twice the first."""

    thresholds: int = 2

    def run(self, fed: Any, model: Any) -> None:
        server, clip = fed.state(model=model), torch.arange(1.0, 1.0 + self.thresholds)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": clip})
            server.model = server.model + got.mean("update")

    @sends(lambda self: {"update": Gradients(clip="clip", layered=True)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return self.result(message, self.trained(message["global"], data), data)


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
def test_thresholds_of_layers_have_one_noise_and_cost_what_one_threshold_costs(engine: str, tmp_path: Path) -> None:
    """The root of 1^2 + 2^2 is the threshold of both layers together."""
    layers, whole = (Case(method, tmp_path, {"model": "mlp", "engine": engine}) for method in (ByLayers(), Records()))
    records_are_sampled_clipped_and_noised_as_charged(layers)
    with observe_gradients() as seen:
        paid = OneRound(layers.prepared(), tmp_path / "layers").ledger
    assert [passage.scale for passage in seen] == pytest.approx([math.sqrt(5)] * len(seen))
    assert paid.record_epsilons("server", DELTA) == OneRound(
        whole.prepared(), tmp_path / "whole"
    ).ledger.record_epsilons("server", DELTA)


def test_as_many_thresholds_as_layers_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="it needs 2 thresholds, but there are 3"):
        epsilons(ByLayers(thresholds=3), tmp_path, model="mlp")


class RawLosses(Records):
    """Hides single losses in its update."""

    def result(self, message: Any, model: Any, data: Any) -> Result:
        losses, _ = data.judged(model)
        return Result(send={"update": losses}, keep={"model": model})


class Computing(Records):
    """Adds a raw mean to its update."""

    def result(self, message: Any, model: Any, data: Any) -> Result:
        losses, _ = data.judged(model)
        return Result(send={"update": model - message["global"] + losses.mean()}, keep={"model": model})


class Projecting(Records):
    """Sends projected records as if they were noisy gradients."""

    def result(self, message: Any, model: Any, data: Any) -> Result:
        return Result(send={"update": data.projected(torch.eye(64, 2))}, keep={"model": model})


class Callback(Records):
    """Looks at raw logits through the loss."""

    def result(self, message: Any, model: Any, data: Any) -> Result:
        return Result(send={"update": data.gradient(model, lambda logits, batch: logits)}, keep={"model": model})


class Greedy(Records):
    """Takes one gradient more than was charged."""

    def result(self, message: Any, model: Any, data: Any) -> Result:
        return Result(send={"update": data.gradient(model)}, keep={"model": model})


class Looking(Records):
    """Asks for the records themselves."""

    def result(self, message: Any, model: Any, data: Any) -> Result:
        return Result(send={"update": data.raw()[0].mean()}, keep={"model": model})


class Stretching(Records):
    """Averages over a row that it has stretched, so that the mean would get less noise."""

    @sends(lambda self: {"update": Gradients(clip=self.clip), "loss": Average(0.0, 1.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = self.trained(message["global"], data)
        return Result(send={"update": model, "loss": torch.ones(10_000)}, keep={"model": model})


@pytest.mark.parametrize(
    ("method", "error", "sentence"),
    [
        (RawLosses(), ReleaseError, "raw records"),
        (Computing(), SealedError, "raw data"),
        (Projecting(), ReleaseError, "raw records"),
        (Callback(), TypeError, "positional argument"),
        (Greedy(), UserError, "more noisy gradients"),
        (Looking(), UserError, "without a bare release"),
        (Stretching(), ReleaseError, "sealed values of validation records"),
    ],
)
def test_raw_values_do_not_leave_at_record_level(
    method: Method, error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence):
        epsilons(method, tmp_path, engine="one-by-one")


@pytest.mark.parametrize("method", [RawLosses(), Computing(), Projecting(), Looking()])
def test_stacked_clients_show_no_records_at_all(method: Method, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="looked at single records"):
        epsilons(method, tmp_path, engine="stacked")


class Mixed(Records):
    """Client-level noise beside record-level noise."""

    @sends(lambda self: {"update": Gradients(clip=self.clip), "more": Update(clip=1.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


class Doubled(Records):
    """Two releases that each take the gradients which are charged once."""

    @sends(lambda self: {"update": Gradients(clip=self.clip), "more": Gradients(clip=10.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


class Unfounded(Records):
    """Follows what takes no gradients."""

    @sends(lambda self: {"update": Follows("nothing")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


class Extravagant(Plain):
    """Gives away twice a round's budget."""

    @sends(lambda self: {"update": Update(clip=1.0), "more": Update(clip=1.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


class Stateless(Plain):
    """Sends a state that clients do not have."""

    @sends(lambda self: {"state": Derived("state")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


@dataclass(frozen=True)
class Gift(Release):
    """Leaves as it is, and says that it costs nothing."""

    def charge(self, allowance: Any, public: Public) -> Charge:
        return Charge.nothing()

    def describe(self) -> str:
        return "a gift"


@dataclass(frozen=True)
class Louder(Update):
    """A hundred times as long as its bound."""

    def bounded(self, rows: Any, public: Public) -> Bounded:
        found = super().bounded(rows, public)
        return Bounded(100 * found.rows, found.rejected)


class Generous(Plain):
    """Sends raw means as a release of its own kind."""

    @sends(lambda self: {"update": Update(clip=1.0), "raw": Gift()})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


class Loud(Plain):
    """Bounds its update in its own way."""

    @sends(lambda self: {"update": Louder(clip=1.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


class Untimely(Plain):
    """Leaves every no rounds."""

    @sends(lambda self: {"update": Update(clip=1.0, share=0.5), "number": Number(0.0, 1.0, share=0.5, every=0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        raise AssertionError("it is refused before it runs")


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Generous(), "raw as Gift, a kind of release that is not Sordino's"),
        (Loud(), "update as Louder, a kind of release that is not Sordino's"),
        (Untimely(), "`every` is 0"),
        (Mixed(), "protects a client, but the method protects a record"),
        (Doubled(), "declare one, and the others as Follows"),
        (Unfounded(), "which is no release of gradients"),
        (Extravagant(), "shares must add up to one"),
        (Stateless(), "no public state 'state'"),
    ],
)
def test_declarations_whose_epsilon_could_not_be_true_are_refused(
    method: Method, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ReleaseError, match=sentence):
        Case(method, tmp_path).prepared()


class Overworked(Records):
    """Asks everybody twice a round, although each has been planned for once."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            for _ in range(2):
                fed.ask(fed.everyone(), self.local, {"global": server.model})


class Inquisitive(Records):
    """Asks for a mean five times a round."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            for _ in range(5):
                fed.ask(fed.sample(), self.judge, {"global": server.model})

    @sends(lambda self: {"loss": Average(0.0, 4.0)})
    def judge(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"loss": data.judged(message["global"])[0]})


class Describing(Records):
    """Asks in every round for what is released once."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            fed.ask(fed.sample(), self.describe, {"directions": torch.eye(64, 2)})

    @sends(lambda self: {"moments": Matrix(share=0.3)})
    def describe(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"moments": data.projected(message["directions"])})


class TwoNames(Records):
    """Takes gradients in two steps, which call them differently."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            fed.ask(fed.sample(), self.local, {"global": server.model})
            fed.ask(fed.sample(), self.more, {"global": server.model})

    @sends(lambda self: {"another": Gradients(clip=self.clip)})
    def more(self, message: Any, me: Any, data: Any) -> Result:
        model = self.trained(message["global"], data)
        return Result(send={"another": model - message["global"]}, keep={"model": model})


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Overworked(), "noisy gradients more often than the 3 times"),
        (TwoNames(), "noisy gradients more often than the 3 times"),
        (Inquisitive(), "loss more often than the 3 times"),
        (Describing(), "moments more often than the 1 times"),
    ],
)
def test_records_are_not_asked_beyond_their_budget(method: Method, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        epsilons(method, tmp_path)


def test_what_follows_from_single_messages_is_paid_for_by_everybody_who_sent_it(tmp_path: Path) -> None:
    """Reading everybody's state exposes everybody's messages: each pays the server's price, not only the first."""
    case = Case(Telling(), tmp_path)
    once = OneRound(case.prepared(noise_multiplier=Z), tmp_path)
    outsider, server = once.ledger.spent[0], once.ledger.spent[-1]
    assert server == pytest.approx(np.full(CLIENTS, CLIENTS / Z**2))
    assert outsider == pytest.approx(server)


def test_what_noise_could_not_cover_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    """Noise that eats the signal of whole numbers: nothing is charged, and nobody is asked."""
    prepared = Case(Plain(), tmp_path).prepared(noise="integers", noise_multiplier=1e6)
    with (
        mock.patch.object(Ledger, "charge", side_effect=AssertionError("it was charged")),
        pytest.raises(UserError, match="rounding to whole numbers would eat the signal"),
    ):
        OneRound(prepared, tmp_path)
