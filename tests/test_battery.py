"""The contract battery on users' methods: what it must find, what it must let be, and what it must not stumble over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.method import Method, Result
from sordino.privacy.release import Update, sends
from sordino.testing import CHECKS, exits
from sordino.testing.case import Case


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
