"""The contract battery on users' methods: what it must find, what it must let be, and what it must not stumble over."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.method import Method, Result
from sordino.methods.bases import RecordLevel
from sordino.privacy.release import Average, Follows, GradientSum, RecordSum, ReleaseError, Update, sends
from sordino.privacy.sealed import SealedError, open_sealed
from sordino.testing import CHECKS, exits, sums
from sordino.testing.case import Case, OneRound


@dataclass(frozen=True)
class Own(Method):
    """A user's method, whose message and what clients keep can be replaced."""

    title: ClassVar[str] = "an own method"
    paper: ClassVar[str] = "none"

    def message(self, server: Any) -> dict[str, Any]:
        return {"global": server.model, "clip": 0.5}

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, self.message(server))
            server.model = server.model + got.mean("update")[: len(server.model)]

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = self.descent(data).epoch(message["global"])
        return Result(send={"update": model - message["global"]}, keep=self.kept(model), start=message["global"])

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        return self.kept(model)

    def kept(self, model: Tensor) -> dict[str, Tensor]:
        return {"model": model}


class Whole(Own):
    """Its messages hold whole numbers and truth values, alone and in lists."""

    def message(self, server: Any) -> dict[str, Any]:
        mask = torch.ones(len(server.model), dtype=torch.bool)
        numbers = torch.arange(3)
        return {**super().message(server), "mask": mask, "numbers": numbers, "one": torch.tensor(7, dtype=torch.uint8)}

    def local(self, message: Any, me: Any, data: Any) -> Result:
        result = Own.local(self, message, me, data)
        update = result.send["update"] * message["mask"] * message["numbers"][1] * (message["one"] > 0)
        return Result({"update": update}, result.keep, result.start)

    local.releases = Own.local.releases  # type: ignore[attr-defined]


OF_EXITS = [check for check in CHECKS if check.__module__ == exits.__name__]


@pytest.mark.parametrize("check", OF_EXITS, ids=lambda one: one.__name__)
def test_messages_of_whole_numbers_pass_the_battery(check: Callable[[Case], None], tmp_path: Path) -> None:
    check(Case(Whole(), tmp_path))


# ---- private state in messages


class Zeros(Own):
    """Sends zeros, and keeps zeros; and a constant of both."""

    constant: ClassVar[float] = 0.0

    @sends(lambda self: {"update": Update(clip=100.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        flat = torch.full_like(message["global"], self.constant)
        return Result(send={"update": flat}, keep={**self.kept(message["global"]), "other": flat})

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        return {**self.kept(model), "other": torch.zeros_like(model)}


class Constants(Zeros):
    """A method that sends ones instead."""

    constant: ClassVar[float] = 1.0


class Small(Zeros):
    """Sends and keeps little, and not the same."""

    @sends(lambda self: {"update": Update(clip=100.0)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        sent = 1e-5 * message["global"]
        return Result(send={"update": sent}, keep={**self.kept(message["global"]), "other": 1e-5 * torch.cos(sent)})


@pytest.mark.parametrize("method", [Zeros(), Constants(), Small()], ids=lambda one: type(one).__name__)
def test_what_tells_nothing_is_no_alarm(method: Method, tmp_path: Path) -> None:
    exits.private_state_is_in_no_message(Case(method, tmp_path))


@dataclass(frozen=True)
class Sends(Own):
    """Sends what it keeps to itself, between other entries or with some of them left out."""

    before: int = 0
    behind: int = 0
    without: int = 0

    @sends(
        lambda self: {"update": Update(clip=100.0, entries=650 + self.before + self.behind - self.without)},
    )
    def local(self, message: Any, me: Any, data: Any) -> Result:
        model = self.descent(data).epoch(message["global"])
        parts = [torch.ones(self.before), model[: len(model) - self.without], torch.ones(self.behind)]
        return Result(send={"update": torch.cat(parts)}, keep={"model": model})

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            fed.ask(fed.sample(), self.local, self.message(server))


LEAKING = [Sends(), Sends(behind=1), Sends(before=1), Sends(before=3, behind=7), Sends(without=1), Sends(without=600)]


@pytest.mark.parametrize("method", LEAKING, ids=lambda one: f"{one.before}+{one.behind}-{one.without}")
def test_private_state_is_found_in_a_message_wherever_it_stands(method: Method, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="model left as update"):
        exits.private_state_is_in_no_message(Case(method, tmp_path))


# ---- what ends without `return`


class NoResult(Own):
    """Forgets its `return`."""

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Any:
        self.descent(data).epoch(message["global"])


class Loose(Own):
    """Returns what it sends, and no Result."""

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Any:
        return {"update": message["global"]}


class NothingSent(Own):
    """A Result without a table."""

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Any:
        return Result(send=None, keep={"model": message["global"]})  # type: ignore[arg-type]


class NothingLearned(Own):
    """Learns nothing where something is declared."""

    def public_memory(self, model: Any, layout: Any) -> dict[str, Tensor]:
        return {"state": torch.zeros(1)}

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> Any:
        return None


class NoMemory(Own):
    """Remembers nothing."""

    def memory(self, model: Any) -> Any:
        return None


class NoPublicMemory(Own):
    """Remembers nothing publicly, and does not say so."""

    def public_memory(self, model: Any, layout: Any) -> Any:
        return None


class NoDeclaration(Own):
    """Declares nothing."""

    @sends(lambda self: None)  # type: ignore[arg-type, return-value]
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result()


class NoSettling(Own):
    """Is nothing once the number of clients is known."""

    def settled(self, clients: int) -> Any:
        return None


class NoNotes(Own):
    """Has nothing to say, and does not say that."""

    def notes(self, schedule: Any, budget: Any) -> Any:
        return None


class NoMessage(Own):
    """Sends nothing."""

    def message(self, server: Any) -> Any:
        return None


FORGETFUL = {
    NoResult(): "local must return a Result, but returned nothing",
    Loose(): "local must return a Result, but returned a dict",
    NothingSent(): "as what it shall send, must return a dictionary",
    NothingLearned(): "learn must return a dictionary, but returned nothing",
    NoMemory(): "NoMemory: memory must return a dictionary",
    NoPublicMemory(): "public_memory must return a dictionary",
    NoDeclaration(): "@sends of local must return a dictionary",
    NoSettling(): "settled must return a Method",
    NoNotes(): "notes must return a list",
    NoMessage(): "a message is a dictionary",
}


@pytest.mark.parametrize(("method", "sentence"), FORGETFUL.items(), ids=lambda one: type(one).__name__)
def test_a_function_that_ends_without_return_is_told_by_name(method: Method, sentence: str, tmp_path: Path) -> None:
    def checked() -> None:
        for number, check in enumerate(OF_EXITS):
            check(Case(method, tmp_path / str(number)))

    with pytest.raises(UserError, match=sentence):
        checked()


# ---- sums over all clients' records: nothing but the sum leaves, and nothing comes back


@dataclass(frozen=True)
class Summed(RecordLevel):
    """Distributed DP-SGD, whose step can be replaced."""

    title: ClassVar[str] = "an own sum"
    paper: ClassVar[str] = "none"

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model})
            server.model = server.model - self.read(got)

    def read(self, got: Any) -> Any:
        return got.mean("gradient")

    @sends(lambda self: self.declared())
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return self.step(message["global"], data)

    def declared(self) -> dict[str, Any]:
        return {"gradient": GradientSum(0.5, 0.5)}

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(model)})


class SummedWithBits(Summed):
    """Sends bits of the same batch too."""

    def declared(self) -> dict[str, Any]:
        return {"gradient": GradientSum(0.5, 0.5, share=0.9), "bits": RecordSum(0.5, 0.1, drawn=True)}

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(model), "bits": data.batch_within(model)})


OF_SUMS = [check for check in CHECKS if check.__module__ in (exits.__name__, sums.__name__)]


@pytest.mark.parametrize("check", OF_SUMS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("method", [Summed(), SummedWithBits()], ids=lambda one: type(one).__name__)
def test_own_sums_pass_the_battery(method: Method, check: Callable[[Case], None], tmp_path: Path) -> None:
    check(Case(method, tmp_path))


class LearnsFromMessage(Summed):
    """Remembers the thinly noised message that it sent."""

    def public_memory(self, model: Any, layout: Any) -> dict[str, Tensor]:
        return {"sent": torch.zeros_like(model)}

    def learn(self, public: Any, message: Any, sent: Any, layout: Any) -> Any:
        return {"sent": sent["gradient"]}


class KeepsSum(Summed):
    """Keeps the sum of its records' gradients."""

    def step(self, model: Any, data: Any) -> Result:
        total = data.gradient_sum(model)
        return Result(send={"gradient": total}, keep={"model": total})


class SendsMore(Summed):
    """Sends one number more than it declares."""

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(model), "norm": model.norm()})


class Follower(Summed):
    """Sends something that is made of the same sum."""

    def declared(self) -> dict[str, Any]:
        return {**super().declared(), "second": Follows("gradient")}


class OwnNoise(Summed):
    """Sends a mean of its own beside the sum, for which no noise is planned."""

    def declared(self) -> dict[str, Any]:
        return {"gradient": GradientSum(0.5, 0.5, share=0.9), "loss": Average(0.0, 1.0)}


class ReadsRows(Summed):
    """Reads single messages."""

    def read(self, got: Any) -> Any:
        return got.rows("gradient").mean(dim=0)


class SecondStep(Summed):
    """Takes a step along its own sum and sends the sum there."""

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(model - 0.1 * data.gradient_sum(model))})


class Normed(Summed):
    """Sends its sum where that is long, and zeros where it is not."""

    def step(self, model: Any, data: Any) -> Result:
        total = data.gradient_sum(model)
        return Result(send={"gradient": total if total.norm() > 1 else 0 * model})


class Raw(Summed):
    """Hands over a tensor."""

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": 0 * model})


class AllRecords(SummedWithBits):
    """Hands over the labels of all records where a batch's bits are declared, which coins would hide."""

    def declared(self) -> dict[str, Any]:
        return {"gradient": GradientSum(0.5, 0.5, share=0.9), "bits": RecordSum(1.0, 0.1, 10, drawn=True)}

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(model), "bits": data.label_counts()})


class Projected(Summed):
    """Hands over records themselves where a sum of limited gradients is declared."""

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": data.projected(torch.ones(64, len(model)))})


elsewhere: Any = types.ModuleType("elsewhere")
"""A place that a method may write to, which no purity check looks at."""


class Borrowed(Summed):
    """Hands over the sum of the first client that was asked, or of an earlier round."""

    def step(self, model: Any, data: Any) -> Result:
        elsewhere.total = getattr(elsewhere, "total", None) or [data.gradient_sum(model)]
        return Result(send={"gradient": elsewhere.total[0]})


class Tries(Summed):
    """Catches a failure, by which it knows something of its records."""

    def step(self, model: Any, data: Any) -> Result:
        with contextlib.suppress(Exception):
            data.gradient_sum(model[:3])
        return super().step(model, data)


class LooksAtRecords(Summed):
    """Asks for the records as they are."""

    def step(self, model: Any, data: Any) -> Result:
        data.raw()
        return super().step(model, data)


class NoisyGradient(Summed):
    """Asks for a noisy gradient of its own."""

    def step(self, model: Any, data: Any) -> Result:
        return Result(send={"gradient": data.gradient_sum(model - data.gradient(model))})


class Weighted(Summed):
    """Weights that show a label: one of them is infinite."""

    def step(self, model: Any, data: Any) -> Result:
        weights = torch.ones(10)
        weights[3] = torch.inf
        return Result(send={"gradient": data.gradient_sum(model, weights)})


MORE_THAN_A_SUM: dict[Method, str] = {
    LearnsFromMessage(): "nothing may be learned from it",
    KeepsSum(): "keeps model, which is no tensor",
    SendsMore(): "tried to send norm, which @sends does not declare",
    Follower(): "follows gradient, which is no release of gradients",
    OwnNoise(): "it cannot have both",
    ReadsRows(): "a method may read its mean only",
    SecondStep(): "are raw data: send them as they are",
    Normed(): "are raw data: send them as they are",
    Raw(): "hand over the sealed sum that data.gradient_sum",
    AllRecords(): "hand over the sealed values of the batch that the question draws",
    Projected(): "hand over the sealed sum that data.gradient_sum",
    Borrowed(): "another question or of another client's records",
    Tries(): "shape|size",
    LooksAtRecords(): "without a bare release asked for its client's records",
    NoisyGradient(): "declare `Gradients` beside it",
    Weighted(): "Weights of records must be 10 numbers",
}
STACKABLE = (KeepsSum, SendsMore, SecondStep, Normed, Raw, NoisyGradient, Weighted)


@pytest.mark.parametrize(("method", "sentence"), MORE_THAN_A_SUM.items(), ids=lambda one: type(one).__name__)
def test_whoever_sends_or_keeps_more_than_the_sum_is_refused(method: Method, sentence: str, tmp_path: Path) -> None:
    vars(elsewhere).pop("total", None)
    for engine in ("one-by-one", "stacked") if isinstance(method, STACKABLE) else ("one-by-one",):
        with pytest.raises((UserError, SealedError, RuntimeError), match=sentence):
            OneRound(Case(method, tmp_path).prepared(engine=engine), tmp_path / engine, rounds=2)


def test_the_sum_of_an_earlier_round_is_refused_too(tmp_path: Path) -> None:
    """One client alone: the first round passes, the second would use its coins again."""
    vars(elsewhere).pop("total", None)
    prepared = Case(Borrowed(), tmp_path).prepared(clients=1)
    with pytest.raises(ReleaseError, match="another question or of another client's records"):
        OneRound(prepared, tmp_path, rounds=2)
    vars(elsewhere).pop("total", None)
    OneRound(prepared, tmp_path, rounds=1)


def test_the_battery_finds_what_is_kept_of_a_thin_message(tmp_path: Path) -> None:
    """Where the declaration does not show it: something of the records is in what clients remember."""

    class Opens(Summed):
        """Opens what is sealed, as no method may."""

        def step(self, model: Any, data: Any) -> Result:
            total = data.gradient_sum(model)
            return Result(send={"gradient": total}, keep={"model": open_sealed(total)[0]})

    with pytest.raises(AssertionError, match="something was learned of a thinly noised message"):
        exits.one_clients_data_do_not_touch_anothers_state(
            Case(Opens(), tmp_path, {"engine": "one-by-one"}),
        )
