"""What a method's script may ask of the server, and what it is refused before anything is charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers import QUICK_KEYS
from torch import Tensor

from sordino.api import resume, run
from sordino.errors import UserError
from sordino.federation import server
from sordino.federation.rounds import RoundReport
from sordino.method import Federation, Result
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.privacy.ledger import FIRST_LINK
from sordino.store.journal import rows_after
from sordino.store.store import Store

Script = Callable[[Any, Federation, Any, int], None]


@dataclass(frozen=True)
class Scripted(DPFedAvg):
    """DP-FedAvg whose rounds are written by a test."""

    title: ClassVar[str] = "scripted"
    script: ClassVar[Script]

    def run(self, fed: Federation, model: Tensor) -> None:
        state = fed.state(model=model)
        for number in fed.rounds(state):
            type(self).script(self, fed, state, number)

    def undeclared(self, message: Any, me: Any, data: Any) -> Result:
        """No step: nothing says what it sends."""
        return Result(send={"update": torch.zeros(10)})


@dataclass(frozen=True)
class ScriptedRecords(DPFedAvgRecord):
    """Its record-level twin."""

    title: ClassVar[str] = "scripted"
    script: ClassVar[Script]

    def run(self, fed: Federation, model: Tensor) -> None:
        state = fed.state(model=model)
        for number in fed.rounds(state):
            type(self).script(self, fed, state, number)


@dataclass(frozen=True)
class Hasty(DPFedAvg):
    """Asks before its loop."""

    def run(self, fed: Federation, model: Tensor) -> None:
        fed.ask(fed.everyone(), self.local, {"global": model, "clip": 0.5})


@dataclass(frozen=True)
class Sampling(DPFedAvg):
    """Wants to know whose turn it is before its loop."""

    def run(self, fed: Federation, model: Tensor) -> None:
        fed.sample()


KEYS: dict[str, Any] = QUICK_KEYS | {"noise_multiplier": 1.0}


def started(method: type, store: Path, **changes: Any) -> Any:
    return run(store=store, **(KEYS | {"method": f"{__name__}:{method.__name__}"} | changes))


def ask(method: Any, fed: Federation, state: Any, who: Sequence[int], step: Any = None) -> Any:
    return fed.ask(who, step or method.local, {"global": state.model, "clip": 0.5})


def charged(store: Path) -> int:
    """How many rows a run that has not been saved has charged."""
    (row,) = Store(store).all()
    return len(rows_after(store / "runs" / row.run, 0, FIRST_LINK, begun=True))


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 3], "asked a client twice in one question"),
        ([torch.tensor(3), 3, 1, 2, 4, 5, 6, 7], "asked a client twice in one question"),
        ([], "asked nobody"),
        ([0, 1, 2, 3, 4, 5, 6, 8], "asked the unknown client 8: clients are 0 to 7"),
        ([-1, 1, 2, 3, 4, 5, 6, 7], "asked the unknown client -1: clients are 0 to 7"),
        ([0, 1, 2], "Round 1 asks 3 clients, but the noise is shared out over at least 8"),
    ],
)
def test_whom_a_method_may_not_ask(
    who: Sequence[int], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Scripted, "script", lambda self, fed, state, number: ask(self, fed, state, who), raising=False)
    with pytest.raises(UserError, match=sentence):
        started(Scripted, tmp_path)
    assert charged(tmp_path) == 0


def test_a_step_that_declares_nothing_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def script(self: Any, fed: Federation, state: Any, number: int) -> None:
        ask(self, fed, state, fed.sample(), self.undeclared)

    monkeypatch.setattr(Scripted, "script", script, raising=False)
    with pytest.raises(UserError, match="undeclared cannot be asked: it is no step of the method"):
        started(Scripted, tmp_path)
    assert charged(tmp_path) == 0


@pytest.mark.parametrize("method", [Hasty, Sampling])
def test_nothing_is_asked_before_the_loop(method: type, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"asks clients within its loop over fed\.rounds"):
        started(method, tmp_path)
    assert charged(tmp_path) == 0


def test_nothing_is_asked_after_the_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Scripted, "script", lambda *known: held.append(known), raising=False)
    started(Scripted, tmp_path)
    method, fed, state, _ = held[0]
    with pytest.raises(UserError, match=r"asks clients within its loop over fed\.rounds"):
        ask(method, fed, state, fed.everyone())


RECORDS: dict[str, Any] = {"epsilon": 4, "noise_multiplier": None, "participation": 0.5, "rounds": 2}


def test_records_are_asked_as_often_as_was_planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four of eight clients a round for two rounds: everybody has one turn, and a second one is not paid for."""

    def script(self: Any, fed: Federation, state: Any, number: int) -> None:
        ask(self, fed, state, range(4))

    monkeypatch.setattr(ScriptedRecords, "script", script, raising=False)
    with pytest.raises(UserError, match="local asks client 0 for noisy gradients more often than the 1 times"):
        started(ScriptedRecords, tmp_path, **RECORDS)
    assert charged(tmp_path) == 1


def test_records_are_not_asked_twice_in_one_round_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def script(self: Any, fed: Federation, state: Any, number: int) -> None:
        for _ in range(2):
            ask(self, fed, state, fed.sample())

    monkeypatch.setattr(ScriptedRecords, "script", script, raising=False)
    with pytest.raises(UserError, match=r"than the 1 times that its budget allows: ask those whom fed\.sample"):
        started(ScriptedRecords, tmp_path, **RECORDS)
    assert charged(tmp_path) == 1


def test_whom_the_plan_has_given_no_turn_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Client 0's budget is too small for a single round at this noise."""
    monkeypatch.setattr(
        ScriptedRecords, "script", lambda self, fed, state, number: ask(self, fed, state, [0]), raising=False
    )
    settings = {**KEYS["set"], "budgets": ",".join(["0.01", *["60"] * 7])}
    with pytest.raises(UserError, match="client 0 for noisy gradients more often than the 0 times"):
        started(ScriptedRecords, tmp_path, **(RECORDS | {"epsilon": None, "noise_multiplier": 2.0, "set": settings}))
    assert charged(tmp_path) == 0


def test_a_charge_is_written_before_its_question_is_put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sordino.simulator.workers import Workers

    seen: list[int] = []
    original = Workers.work

    def watched(workers: Workers, *arguments: Any) -> Any:
        seen.append(charged(tmp_path))
        return original(workers, *arguments)

    monkeypatch.setattr(Workers, "work", watched)
    monkeypatch.setattr(
        Scripted, "script", lambda self, fed, state, number: ask(self, fed, state, fed.sample()), raising=False
    )
    started(Scripted, tmp_path)
    assert seen == [1, 2]


def test_single_messages_are_charged_before_they_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []

    def script(self: Any, fed: Federation, state: Any, number: int) -> None:
        got = ask(self, fed, state, fed.sample())
        seen.append(charged(tmp_path))
        got.mean("update")
        seen.append(charged(tmp_path))
        got.rows("update")
        seen.append(charged(tmp_path))
        got.rows("update")
        seen.append(charged(tmp_path))

    monkeypatch.setattr(Scripted, "script", script, raising=False)
    result = started(Scripted, tmp_path, rounds=1)
    assert seen == [1, 1, 2, 2]
    assert result["epsilon"]["outsider"] == pytest.approx(result["epsilon"]["server"])


@dataclass(frozen=True)
class Preparing(DPFedAvg):
    """Makes a costly value before the first round, given as a function, and one that is given as it is."""

    made: ClassVar[list[str]] = []

    def run(self, fed: Federation, model: Tensor) -> None:
        def costly() -> Tensor:
            self.made.append("costly")
            return model + 1

        state = fed.state(model=model, shift=costly, seen=0)
        assert torch.equal(state.shift, model + 1)
        for number in fed.rounds(state):
            assert state.seen == number
            state.seen += 1
            got = fed.ask(fed.sample(), self.local, {"global": state.model, "clip": 0.5})
            state.model = state.model + got.mean("update") + 0 * state.shift


def test_state_given_as_functions_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Preparing, "made", [])
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)

    def stop(report: RoundReport) -> None:
        if report.round == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop, **(KEYS | {"method": f"{__name__}:Preparing", "rounds": 4}))
    (row,) = Store(tmp_path).all()
    assert (row.rounds_done, Preparing.made) == (1, ["costly"])
    resume(row.run, tmp_path)
    assert Preparing.made == ["costly"]


def test_a_name_that_the_state_lacks_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Scripted, "script", lambda self, fed, state, number: state.teacher, raising=False)
    with pytest.raises(AttributeError, match=r"no 'teacher'; name it in fed\.state"):
        started(Scripted, tmp_path)


def test_public_records_that_are_not_there_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Scripted, "script", lambda self, fed, state, number: fed.judge(state.model), raising=False)
    with pytest.raises(UserError, match="there are none: name some with the key `public`"):
        started(Scripted, tmp_path)


def test_the_servers_randomness_is_another_in_each_round_and_for_each_purpose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[float] = []

    def script(self: Any, fed: Federation, state: Any, number: int) -> None:
        drawn.extend(float(torch.rand((), generator=fed.random(purpose))) for purpose in ("a", "b"))

    monkeypatch.setattr(Scripted, "script", script, raising=False)
    for store in ("one", "other"):
        started(Scripted, tmp_path / store)
    assert drawn[:4] == drawn[4:]
    assert len(set(drawn)) == 4


def test_the_noise_of_a_message_is_known_before_it_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Multiplier 3 and threshold 0.5 over six clients: 1.5 on the sum, 1.5 / sqrt(6) in each message."""
    found: list[Tensor] = []

    def script(method: Any, fed: Federation, state: Any, number: int) -> None:
        message = {"global": state.model, "clip": 0.5}
        found.append(fed.deviation(method.local, "update", message))
        found.append(fed.ask(fed.sample(), method.local, message).deviation("update"))

    monkeypatch.setattr(Scripted, "script", script, raising=False)
    started(Scripted, tmp_path, clients=6, noise_multiplier=3.0, rounds=1)
    assert float(found[0]) == pytest.approx(1.5 / 6**0.5)
    assert float(found[1]) == pytest.approx(1.5)
