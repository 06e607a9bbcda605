"""A step that fails on a site's records contributes noise alone, and nobody but the site learns that it did."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, Recorder, federation, kind
from torch import Tensor

from sordino.deploy.protocol import wire
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.session import Session
from sordino.deploy.site.status import status
from sordino.privacy.gradients import BlankRecords, Units
from sordino.privacy.sealed import open_sealed

CASES: dict[str, dict[str, Any]] = {
    "summed": {"method": "dp-fedavg"},
    "single": {"method": "dp-fedavg", "protect_from": "server"},
    "numbers": {"method": "dp-fedavg", "metrics_share": 0.2},
    "layers": {"method": "feddpa", "protect_from": "server"},
    "gradients": {"method": "dp-fedavg-record", "records": 300},
    "means": {"method": "acdp-pfsd", "public": "holdout:0.1", "records": 400},
    "matrix": {"method": "adadp-cfl", "records": 300, "set": {"cluster_share": 0.3}},
    "followers": {"method": "dp-scaffold", "records": 300},
}
"""Together they have every kind of release that can be deployed."""


class LabelError(Exception):
    """Error of a step, with words that tell of records."""


class Blind:
    """An execution that fails wherever the site's own records are looked at, and nowhere else."""

    def __init__(self, of: Any, error: BaseException) -> None:
        self._of, self._error = of, error

    def run(self, clients: Any, *arguments: Any) -> Any:
        if clients._kind is not BlankRecords:
            raise self._error
        return self._of.run(clients, *arguments)

    def fail(self, *arguments: Any) -> Any:
        raise self._error

    judged = outputs = trained = fail


def blinding(made: Federation, error: BaseException) -> tuple[Recorder, Callable[..., Any]]:
    """Record what the server sees of a run in which everything fails at the first site; and the fault that makes it
    so."""
    seen = Recorder()

    def fault(node: int, request: bytes, answer: Callable[[], bytes]) -> Any:
        if node == 0 and kind(request) == "work":
            (session,) = made.sites[0].context.sessions.values()
            if not isinstance(session.clients.execution, Blind):
                session.clients.execution = Blind(session.clients.execution, error)
        return seen(node, request, answer)

    return seen, fault


def shape(value: Any) -> Any:
    """A message without its contents."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()} if all(isinstance(k, str) for k in value) else len(value)
    if isinstance(value, Tensor | np.ndarray):
        return (str(value.dtype), tuple(value.shape))
    return type(value)


@pytest.mark.parametrize("case", CASES)
def test_a_failing_site_sends_an_ordinary_message_and_pays(case: str, tmp_path: Path) -> None:
    with federation(tmp_path, personal="blend" if case == "summed" else "own", **CASES[case]) as made:
        seen, fault = blinding(made, LabelError("label 7"))
        summary = made.run(fault)
        assert summary.rounds_done == 2
        replies: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
        for node, _, reply in seen.of("work"):
            replies.setdefault(node, []).append(wire.unpack(reply))
        assert [shape(one) for one in replies[0]] == [shape(one) for one in replies[1]]
        for reply in replies[0]:
            assert reply["ok"] is True
            for value in reply.get("values", {}).values():
                assert bool(value.any()), "noise alone, and not nothing"
        entries = []
        for number in (0, 1):
            with SiteLedger(made.folders[number]) as ledger:
                entries.append(
                    [one.content for one in ledger.entries() if one.kind in ("release", "reserve", "misfit")]
                )
        assert len(entries[0]) == len(entries[1]), "it pays what the others pay, and nothing was refused"
        assert status(made.folders[0])["misfits"] == 0
        assert list((made.folders[0] / "models").iterdir()), "the run has ended here as everywhere"
        log = (made.folders[0] / "site.log").read_text()
        assert "label 7" in log
        assert "noise alone" in log
        assert "label" not in "".join(made.told)
        if case != "matrix":
            assert not any(b"label" in reply for _, _, reply in seen.of("work"))


@pytest.mark.parametrize(
    "error", [SystemExit(3), MemoryError(), GeneratorExit(), KeyboardInterrupt()], ids=lambda one: type(one).__name__
)
def test_whatever_a_step_raises_stays_at_the_site(error: BaseException, tmp_path: Path) -> None:
    with federation(tmp_path, rounds=1) as made:
        _, fault = blinding(made, error)
        try:
            assert made.run(fault).rounds_done == 1
        except type(error):  # which would end the tests, too, and not fail one
            pytest.fail(f"{type(error).__name__} left the site")


class Untidy:
    """An execution in which one function changes the method, as a user's network could."""

    def __init__(self, of: Any, name: str) -> None:
        self._of, self._name = of, name

    def __getattr__(self, name: str) -> Any:
        def run(clients: Any, *arguments: Any) -> Any:
            if name == self._name:
                object.__setattr__(clients.method, "clip", 2.0)
            return getattr(self._of, name)(clients, *arguments)

        return run


@pytest.mark.parametrize("name", ["judged", "outputs"])
def test_what_an_evaluation_leaves_behind_is_not_worked_with(name: str, tmp_path: Path) -> None:
    with federation(tmp_path, personal="own") as made:

        def fault(node: int, request: bytes, answer: Callable[[], bytes]) -> Any:
            if node == 0 and kind(request) == "work":
                (session,) = made.sites[0].context.sessions.values()
                if not isinstance(session.clients.execution, Untidy):
                    session.clients.execution = Untidy(session.clients.execution, name)  # type: ignore[assignment]
            return answer()

        assert made.run(fault).rounds_done == 2
        log = (made.folders[0] / "site.log").read_text()
        assert "The evaluation changed self.clip" in log
        assert ("local of round 2 failed on these records and contributes noise alone" in log) == (name == "judged")
        with SiteLedger(made.folders[0]) as ledger:
            (run,) = ledger.runs()
        assert run["personal"] is run["shared"] is None, "nothing is kept of an evaluation that was refused"


def test_an_owner_can_stop_a_site_in_a_step(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it
    with federation(tmp_path, rounds=1) as made:
        context = made.sites[0].context
        with pytest.raises(KeyboardInterrupt), context.log_errors("a step"):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit()], ids=lambda one: type(one).__name__)
def test_a_step_that_always_ends_the_program_leaves_the_site_open(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise error

    with federation(tmp_path, rounds=1) as made:
        monkeypatch.setattr(Session, "answer_with_noise_alone", broken)
        seen, fault = blinding(made, error)
        made.run(fault)
        assert "failed" in {wire.unpack(reply).get("code") for node, _, reply in seen.of("work") if node == 0}


def test_the_noise_of_a_null_contribution_is_all_that_was_declared(tmp_path: Path) -> None:
    with federation(tmp_path, protect_from="server", epsilon=2.0) as made:
        seen, fault = blinding(made, LabelError())
        made.run(fault)
        sent = [wire.unpack(reply)["values"]["update"] for node, _, reply in seen.of("work") if node == 0]
        rows = torch.cat(sent).double()
        # Whole numbers whose deviation is a number of grid steps: two messages of 650, each with the same noise.
        first, second = rows.std(dim=1)
        assert 0.85 < float(first / second) < 1 / 0.85
        assert abs(float(rows.mean() / rows.std())) < 5 / rows.numel() ** 0.5


def test_records_that_say_nothing_give_null_contributions() -> None:
    blank = BlankRecords.__new__(BlankRecords)
    losses, right = BlankRecords._judged(blank, torch.zeros(3), Units(torch.ones(4, 2), torch.ones(4)))
    assert bool(losses.isnan().all() and right.isnan().all())
    assert not BlankRecords._clipped_sum(blank, torch.ones(3), torch.tensor([0, 1])).any()
    made = BlankRecords(Units(torch.ones(4, 2), torch.ones(4)), torch.zeros(4, dtype=torch.bool), None, None)  # type: ignore[arg-type]
    assert not open_sealed(made.projected(torch.ones(2, 3))).any()
