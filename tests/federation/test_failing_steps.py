"""A step that fails at a client tells of its records: a simulation ends with its error and states no epsilon."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sordino.errors import Stopped, UserError
from sordino.experiment.prepare import Prepared
from sordino.experiment.run import carry_on, register
from sordino.federation.execution import Alone
from sordino.method import Method, Result
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, Update, sends
from sordino.store import run_files
from sordino.store.journal import Journal
from sordino.store.spending import spending_of_run
from sordino.store.store import RunRow, Store, unfinished
from sordino.testing.case import Case


class BrokenError(Exception):
    """Error of a step."""


HERE = os.getpid()
FAILS = {"step": True}
"""Whether the step fails this time: what no method could know, as memory that is short."""


@dataclass(frozen=True)
class Failing(Method):
    """Its step fails in the second round, at the clients with the last record of class 0."""

    title: ClassVar[str] = "fails"
    paper: ClassVar[str] = "none"
    clip: float = 0.5
    error: ClassVar[type[Exception]] = BrokenError

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for t in fed.rounds(server):
            self.round(fed, server, t)

    def round(self, fed: Any, server: Any, t: int) -> None:
        got = fed.ask(fed.sample(), self.local, {"global": server.model, "round": t})
        server.model = server.model + got.mean("update")

    @sends(lambda self: {"update": Update(clip=self.clip)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        if message["round"] == 1 and FAILS["step"]:
            raise self.error("label 7 at client 3")
        return Result(send={"update": 0 * message["global"]}, keep={"model": message["global"]})


class Catching(Failing):
    """Asks one client after the other, and publishes whose step failed."""

    def round(self, fed: Any, server: Any, t: int) -> None:
        try:
            super().round(fed, server, t)
        except Exception:
            server.model = server.model + 1


class CatchingAll(Failing):
    """The same, whatever is raised, wherever."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        while True:
            try:
                for t in fed.rounds(server):
                    self.round(fed, server, t)
                return
            except BaseException:
                server.model = server.model + 1
                if float(server.model.max()) > 5:
                    return


class InAThread(Failing):
    """Asks in another thread, whose errors reach nobody."""

    def round(self, fed: Any, server: Any, t: int) -> None:
        def ask() -> None:
            with contextlib.suppress(BaseException):
                super(InAThread, self).round(fed, server, t)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()


class InFinally(Failing):
    """Returns from a `finally`, which drops what was raised."""

    def round(self, fed: Any, server: Any, t: int) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(lambda *error: True)
            super().round(fed, server, t)


class ByGenerator(Failing):
    """Goes on with another loop over the rounds where the first one broke."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in range(3):
            rounds = iter(fed.rounds(server))
            with contextlib.suppress(Exception):
                while True:
                    self.round(fed, server, next(rounds))


class Leaving(Failing):
    """Leaves its loop where a step failed, and has no model that anybody would test."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(weights=model)
        for t in fed.rounds(server):
            try:
                got = fed.ask(fed.sample(), self.local, {"global": server.weights, "round": t})
                server.weights = server.weights + got.mean("update")
            except Exception:
                break


class AndAnother(Failing):
    """Hides the error behind one of its own."""

    def round(self, fed: Any, server: Any, t: int) -> None:
        try:
            super().round(fed, server, t)
        except BrokenError:
            raise ValueError("nothing of interest") from None


def prepared_run(method: Method, folder: Path, **keys: Any) -> tuple[Prepared, Store, str]:
    prepared = Case(method, folder).prepared(store=folder, engine="one-by-one", personal="own", **keys)
    store = Store(folder)
    return prepared, store, register(prepared, store)


def failed(method: Method, folder: Path, error: type[Exception] = BrokenError, **keys: Any) -> tuple[RunRow, Store]:
    """Row and store of a run in which a step failed."""
    prepared, store, run = prepared_run(method, folder, **keys)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (an interrupt would end all tests)
        carry_on(prepared, store, run)
    assert isinstance(caught.value, error), caught.value
    assert "states no epsilon" in "".join(caught.value.__notes__)
    return store.get(run), store


SCRIPTS = [Failing(), Catching(), CatchingAll(), InAThread(), InFinally(), ByGenerator(), Leaving()]


@pytest.mark.parametrize("method", SCRIPTS, ids=lambda one: type(one).__name__)
def test_a_step_that_raises_ends_the_run_whatever_the_script_does(method: Method, tmp_path: Path) -> None:
    row, store = failed(method, tmp_path)
    assert (row.state, row.summary, row.models) == ("failed", None, None)
    assert row.failed == "local failed at a client in round 2 (BrokenError)"
    assert "7" not in row.failed, "the error's own words may tell of records"
    told = str(unfinished(row, tmp_path))
    assert told.endswith(f"{row.failed}. Correct the code, and start a new run."), "the same code fails again"
    assert row.planned is not None
    counted = spending_of_run(row, store)
    assert counted.items() <= row.planned.items(), "when it ended may follow from records: it counts as planned"


def test_an_error_of_the_scripts_own_does_not_hide_it(tmp_path: Path) -> None:
    assert failed(AndAnother(), tmp_path, ValueError)[0].state == "failed"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_is_the_steps_own_with_any_number_of_processes(workers: int, tmp_path: Path) -> None:
    assert failed(Catching(), tmp_path, workers=workers)[0].state == "failed"


def test_a_run_that_failed_once_says_so_if_it_ever_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, store, run = prepared_run(Catching(), tmp_path)
    for _ in range(2):  # the same code fails again
        with pytest.raises(BrokenError):
            carry_on(prepared, store, run)
    monkeypatch.setitem(FAILS, "step", False)
    summary = carry_on(prepared, store, run)
    assert any("local failed at a client in round 2" in sentence for sentence in summary.not_covered)
    assert store.get(run).state == "done"


def test_what_failed_first_stays(tmp_path: Path) -> None:
    _, store, run = prepared_run(Failing(), tmp_path)
    store.fail(run, "one")
    store.fail(run, "other")
    assert store.get(run).failed == "one"


class Mistaken(Failing):
    """Makes mistakes of its own, catches the refusals and goes on: nothing was asked, and nothing told."""

    def round(self, fed: Any, server: Any, t: int) -> None:
        for who in ([], [0, 0], [99]):
            with pytest.raises(UserError, match="A method asked"):
                fed.ask(who, self.local, {"global": server.model})
        with pytest.raises(UserError, match="raw test records"):  # accuracies on them, which no client would send
            fed.end()
        super().round(fed, server, 0)


def test_a_scripts_own_mistakes_are_ordinary_errors(tmp_path: Path) -> None:
    prepared, store, run = prepared_run(Mistaken(), tmp_path)
    assert carry_on(prepared, store, run).rounds_done == 3
    assert store.get(run).state == "done"


class OtherLengths(Failing):
    """Sends what one client has in another shape: the gate raises, and the script catches it."""

    def round(self, fed: Any, server: Any, t: int) -> None:
        with contextlib.suppress(UserError):
            super().round(fed, server, 0)

    @sends(lambda self: {"update": Update(clip=self.clip)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        sent = message["global"][: len(message["global"]) - int(data.y[0] == 1)]
        return Result(send={"update": 0 * sent}, keep={"model": message["global"]})


def test_what_the_gate_refuses_ends_the_run_too(tmp_path: Path) -> None:
    assert failed(OtherLengths(), tmp_path, UserError)[0].state == "failed"


@dataclass(frozen=True)
class Swallowing(DPFedAvgRecord):
    """Protects records, and tells by what it sends that something failed on them."""

    title: ClassVar[str] = "swallows"

    @sends(lambda self: {"update": Gradients(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        try:
            update = data.gradient(message["global"])
        except BrokenError:
            update = message["global"]
        return Result(send={"update": update}, keep={"model": message["global"]})


def test_what_fails_on_protected_records_cannot_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise BrokenError

    monkeypatch.setattr(PrivateRecords, "_sum", broken)
    assert failed(Swallowing(), tmp_path, partition="iid", records=300)[0].state == "failed"


class HaltError(BaseException):
    """An error that is no `Exception`."""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, HaltError])
@pytest.mark.parametrize("method", [Failing(), InAThread()], ids=["script", "thread"])
def test_a_step_that_ends_the_program_has_failed(
    method: Method, error: Any, workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Failing, "error", error)
    row, _ = failed(method, tmp_path, UserError, workers=workers)
    assert (row.state, row.failed) == ("failed", f"local failed at a client in round 2 ({error.__name__})")


class Interrupted(Failing):
    """Ctrl-C reaches the program while its step runs."""

    @sends(lambda self: {"update": Update(clip=self.clip)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        if message["round"] == 1 and FAILS["step"]:
            signal.raise_signal(signal.SIGINT)
        return Result(send={"update": 0 * message["global"]}, keep={"model": message["global"]})


def test_ctrl_c_in_a_step_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it
    prepared, store, run = prepared_run(Interrupted(), tmp_path)
    with pytest.raises(Stopped, match="takes the run up"):
        carry_on(prepared, store, run)
    row = store.get(run)
    assert (row.state, row.failed) == ("stopped", None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setitem(FAILS, "step", False)
    assert carry_on(prepared, store, run).rounds_done == 3


class Leaving(Failing):
    """Its script ends the program in the second round."""

    def round(self, fed: Any, server: Any, t: int) -> None:
        if t == 1:
            raise self.error(0)
        super().round(fed, server, t)

    def pictures(self, state: Any, folder: Path) -> None:
        raise self.error(0)


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
def test_a_script_that_ends_the_program_has_failed(error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "error", error)
    monkeypatch.setitem(FAILS, "step", False)
    prepared, store, run = prepared_run(Leaving(), tmp_path)
    with pytest.raises(
        UserError, match=rf"The script Leaving\.run raised {error.__name__}\(0\) before its run was over"
    ):
        carry_on(prepared, store, run)
    assert store.get(run).summary is None
    monkeypatch.setattr(Leaving, "round", Failing.round)
    done = carry_on(prepared, store, run)
    assert f"The method's pictures could not be drawn: {error.__name__}: 0." in done.notes


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, BrokenError])
def test_an_evaluation_that_ends_the_program_has_failed(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise error(7)

    monkeypatch.setattr(Alone, "outputs", broken)
    monkeypatch.setitem(FAILS, "step", False)
    row, _ = failed(Failing(), tmp_path, BrokenError if error is BrokenError else UserError)
    assert (row.state, row.failed) == ("failed", f"Evaluation failed at a client ({error.__name__})")


class Moody(Failing):
    """Fails at random, by no seed of the run's."""

    @sends(lambda self: {"update": Update(clip=self.clip)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        if os.getpid() != HERE:
            raise BrokenError
        return Result(send={"update": 0 * message["global"]}, keep={"model": message["global"]})


def test_what_fails_in_one_process_and_not_in_another_is_a_failure(tmp_path: Path) -> None:
    row, _ = failed(Moody(), tmp_path, UserError, workers=2, clients=40)
    assert row.state == "failed"


@pytest.mark.parametrize("error", [FileNotFoundError, MemoryError])
def test_an_own_step_cannot_blame_the_machine(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A table that is missed for some records alone tells of them; once it is there, the result says so."""
    monkeypatch.setattr(Failing, "error", error)
    row, store = failed(Failing(), tmp_path, UserError)
    assert (row.state, row.failed) == ("failed", f"local failed at a client in round 2 ({error.__name__})")
    monkeypatch.setitem(FAILS, "step", False)
    prepared = Case(Failing(), tmp_path).prepared(store=tmp_path, engine="one-by-one", personal="own")
    done = carry_on(prepared, store, row.run)
    assert any("failed at a client in round 2" in sentence for sentence in done.not_covered)


def test_own_code_cannot_blame_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Failing, "error", MemoryError)
    row, _ = failed(Failing(), tmp_path, UserError)
    assert (row.state, row.failed) == ("failed", "local failed at a client in round 2 (MemoryError)")


def test_charges_of_own_code_are_on_disk_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[bool] = []

    class Noted(Journal):
        def __init__(self, *arguments: Any) -> None:
            made.append(arguments[5])
            super().__init__(*arguments)

    monkeypatch.setattr(run_files, "Journal", Noted)
    monkeypatch.setitem(FAILS, "step", False)
    prepared, store, run = prepared_run(Failing(), tmp_path)
    carry_on(prepared, store, run)
    assert made == [True]
