"""A run that is resumed where values are rounded otherwise pays again, with other noise, for what it asks again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import QUICK_KEYS
from killing import die_at, killed, stopped, trace
from torch import Tensor

from sordino.api import resume, run
from sordino.experiment import identity
from sordino.experiment import run as running
from sordino.experiment.identity import describe_machine
from sordino.federation import server
from sordino.privacy.ledger import split_attempt
from sordino.privacy.noise import Seeded
from sordino.store import journal
from sordino.store.journal import DamagedJournalError, Journal, rows_after
from sordino.store.spending import spending_of_run
from sordino.store.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS = 5
CLIENTS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg", "noise_multiplier": 1.0, "rounds": ROUNDS, "workers": 1}
RECORDS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg-record", "epsilon": 8.0, "rounds": ROUNDS, "workers": 1}
METHODS = {"clients": CLIENTS, "records": RECORDS}
Places = list[tuple[int, int]]
"""Each row's question, and how often it had been asked before."""


@pytest.fixture(autouse=True)
def no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 1e9)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Go on at a machine that is described so."""

    def go(machine: str) -> None:
        monkeypatch.setattr(running, "describe_machine", lambda device: machine)

    go("here")
    return go


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> set[object]:
    """The rows of noise that are drawn, and the purposes of coins."""
    found: set[object] = set()
    rows, normals, coins = Seeded.rows, Seeded.normals, Seeded.coins

    def note(drawn: Tensor) -> Tensor:
        found.update(row.numpy().tobytes() for row in drawn)
        return drawn

    def toss(self: Seeded, count: int, rate: float, *purpose: object) -> Tensor:
        found.add(purpose)
        return coins(self, count, rate, *purpose)

    monkeypatch.setattr(Seeded, "rows", lambda self, *given: note(rows(self, *given)))
    monkeypatch.setattr(Seeded, "normals", lambda self, *given: note(normals(self, *given)))
    monkeypatch.setattr(Seeded, "coins", toss)
    return found


def places(store: Path, name: str) -> Places:
    return [split_attempt(row.question) for row in Store(store).ledger(name)]


def asked(questions: Sequence[int], attempt: int = 0) -> Places:
    return [(question, attempt) for question in questions]


@pytest.mark.parametrize("keys", METHODS.values(), ids=METHODS)
def test_a_run_resumed_on_another_machine_pays_again_for_other_noise(
    keys: dict[str, Any], at: Callable[[str], None], draws: set[object], tmp_path: Path
) -> None:
    whole = run(store=tmp_path / "whole", **keys)
    draws.clear()
    name = stopped(tmp_path, 3, **keys)
    first = set(draws)
    draws.clear()
    at("elsewhere")
    result = resume(name, tmp_path)
    assert first
    assert draws
    assert not first & set(draws), "neither noise nor coins were used before"
    assert places(tmp_path, name) == asked(range(3)) + asked(range(3), 1) + asked([3, 4])
    assert result["epsilon"]["server"] > 1.1 * whole["epsilon"]["server"]
    (note,) = (one for one in result["notes"] if one.startswith("This run was resumed on another kind of processor"))
    assert note.endswith("3 questions were asked, and charged, again.")


@pytest.mark.parametrize("keys", METHODS.values(), ids=METHODS)
def test_a_run_resumed_on_the_same_machine_repeats_itself(
    keys: dict[str, Any], at: Callable[[str], None], draws: set[object], tmp_path: Path
) -> None:
    at("here")
    whole = run(store=tmp_path / "whole", **keys)["run"]
    every = set(draws)
    name = stopped(tmp_path, 3, **keys)
    resume(name, tmp_path)
    assert set(draws) == every
    assert trace(tmp_path, name) == trace(tmp_path / "whole", whole)


def test_only_what_was_asked_since_the_checkpoint_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None], tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)
    name = stopped(tmp_path, 4, **CLIENTS)
    assert Store(tmp_path).get(name).rounds_done == 3
    at("elsewhere")
    resume(name, tmp_path)
    assert places(tmp_path, name) == [*asked(range(4)), (3, 1), (4, 0)]


def test_what_is_still_to_be_repeated_is_given_up_beyond_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None], tmp_path: Path
) -> None:
    """Four rounds were asked; a session here repeats three and saves two of them, the next one is elsewhere."""
    name = stopped(tmp_path, 4, **CLIENTS)
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)
    stopped(tmp_path, 3, name)
    at("elsewhere")
    resume(name, tmp_path)
    assert places(tmp_path, name) == [*asked(range(4)), (2, 1), (3, 1), (4, 0)]


def test_every_change_of_machine_is_charged(at: Callable[[str], None], tmp_path: Path) -> None:
    """Whoever comes back finds what was asked elsewhere in the meantime."""
    name = stopped(tmp_path, 2, **CLIENTS)
    at("elsewhere")
    stopped(tmp_path, 1, name)
    stopped(tmp_path, 2, name)  # repeats itself
    assert len(rows_after(tmp_path / "runs" / name, 0, bytes(32), begun=True)) == 4
    at("here")
    resume(name, tmp_path)
    assert places(tmp_path, name) == asked([0, 1]) + asked([0, 1], 1) + asked([0, 1], 2) + asked([2, 3, 4])


@pytest.mark.parametrize(
    ("moment", "more"),
    [
        ((journal, "replace_file", 1, "before"), 0),
        ((journal, "replace_file", 1, "after"), 0),
        ((Journal, "write", 1, "before"), 0),
        ((Journal, "write", 1, "after"), 1),
    ],
    ids=["when it is half given up", "when it is given up", "before it is charged again", "when it is charged again"],
)
@pytest.mark.parametrize("last", ["elsewhere", "here"])
def test_killed_on_another_machine(
    moment: tuple[Any, str, int, str], more: int, last: str, at: Callable[[str], None], tmp_path: Path
) -> None:
    name = stopped(tmp_path, 2, **CLIENTS)
    at("elsewhere")

    def victim() -> None:
        die_at(*moment)
        resume(name, tmp_path)

    assert killed(victim)
    half = moment[1:] == ("replace_file", 1, "before")
    assert len(rows_after(tmp_path / "runs" / name, 0, bytes(32), begun=True)) == 2 + more
    at(last)
    resume(name, tmp_path)
    if half and last == "here":  # nothing was asked elsewhere
        assert places(tmp_path, name) == asked(range(ROUNDS))
    elif more and last == "here":
        assert places(tmp_path, name) == [*asked([0, 1]), (0, 1), (0, 2), (1, 1), *asked([2, 3, 4])]
    else:
        assert places(tmp_path, name) == asked([0, 1]) + asked([0, 1], 1) + asked([2, 3, 4])


def test_where_nobody_wrote_down_the_machine_what_was_charged_is_given_up(
    at: Callable[[str], None], tmp_path: Path
) -> None:
    at("")
    name = stopped(tmp_path, 2, **CLIENTS)
    at("here")
    resume(name, tmp_path)
    assert places(tmp_path, name) == asked([0, 1]) + asked([0, 1], 1) + asked([2, 3, 4])


@pytest.mark.parametrize("before", ["", "elsewhere"])
def test_where_nothing_was_charged_nothing_is_given_up(before: str, at: Callable[[str], None], tmp_path: Path) -> None:
    at(before)

    def victim() -> None:
        die_at(Journal, "write", 1, "before")
        run(store=tmp_path, **CLIENTS)

    assert killed(victim)
    at("here")
    (row,) = Store(tmp_path).all()
    stopped(tmp_path, 2, row.run)
    result = resume(row.run, tmp_path)  # it is known from then on where it is
    assert places(tmp_path, row.run) == asked(range(ROUNDS))
    assert not any("charged, again" in note for note in result["notes"])


def test_a_run_stopped_on_another_machine_counts_as_planned_and_what_was_asked_again(
    at: Callable[[str], None], tmp_path: Path
) -> None:
    name = stopped(tmp_path, 3, **RECORDS)
    at("elsewhere")
    stopped(tmp_path, 2, name)
    store = Store(tmp_path)
    row = store.get(name)
    assert row.planned is not None
    most, counted = (
        max(sum(part[2] for part in recipe) for recipe in spent["recipes"])
        for spent in (row.planned, spending_of_run(row, store))
    )
    assert counted > most


@pytest.mark.parametrize("keys", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("again", [1, 2])
def test_a_journal_that_is_lost_after_questions_were_asked_again_counts_the_plan_for_each_attempt(
    keys: dict[str, Any], again: int, at: Callable[[str], None], tmp_path: Path
) -> None:
    """Nobody knows how far each came."""
    name = stopped(tmp_path, 3, **keys)
    for attempt in range(again):
        at(f"elsewhere {attempt}")
        stopped(tmp_path, 2, name)
        stopped(tmp_path, 1, name)  # repeats itself
    for path in (tmp_path / "runs" / name).glob("ledger-*"):
        path.unlink()
    store = Store(tmp_path)
    row, times = store.get(name), 1 + again
    assert row.planned is not None
    counted = spending_of_run(row, store)
    assert counted["mu"] == pytest.approx([math.sqrt(times) * mu for mu in row.planned["mu"]])
    planned = [[[rate, noise, times * count] for rate, noise, count in one] for one in row.planned["recipes"]]
    assert counted["recipes"] == [recipe for recipe in counted["recipes"] if recipe in planned or not recipe]
    assert all(recipe in counted["recipes"] for recipe in planned)


def test_after_a_power_cut_on_another_machine_nobody_knows_what_was_asked_again(
    at: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = stopped(tmp_path, 3, **CLIENTS)
    at("elsewhere")

    def victim() -> None:
        die_at(Journal, "write", 2, "after")
        resume(name, tmp_path)

    assert killed(victim)
    monkeypatch.setattr(journal, "_boot", lambda: bytes(31) + b"1")
    with pytest.raises(DamagedJournalError, match="may have lost its last rows"):
        rows_after(tmp_path / "runs" / name, 0, bytes(32), begun=True)
    store = Store(tmp_path)
    row = store.get(name)
    assert row.planned is not None
    assert spending_of_run(row, store)["mu"][0] == pytest.approx(math.sqrt(2) * row.planned["mu"][0])


def test_an_altered_description_shows(at: Callable[[str], None], tmp_path: Path) -> None:
    name = stopped(tmp_path, 1, **CLIENTS)
    (path,) = (tmp_path / "runs" / name).glob("ledger-*")
    whole = path.read_bytes()
    assert whole.count(b"machinehere") == 1
    path.write_bytes(whole.replace(b"machinehere", b"machinethat"))
    with pytest.raises(DamagedJournalError):
        resume(name, tmp_path)


# ---- what is described


INFO = """processor\t: 0
vendor_id\t: Maker
model name\t: One
cpu MHz\t\t: {speed}
flags\t\t: fpu {flags}

processor\t: 1
model name\t: Two
"""


def test_a_machine_is_described_by_all_that_decides_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(INFO.format(speed=1000, flags="sse"))
    monkeypatch.setattr(identity, "CPUINFO", file)
    found = [describe_machine("cpu")]
    file.write_text(INFO.format(speed=2000, flags="sse"))
    assert describe_machine("cpu") == found[0], "its speed decides nothing"
    for text in (INFO.format(speed=2000, flags="sse avx2"), INFO.replace("One", "Other"), INFO.replace("Maker", "Who")):
        file.write_text(text)
        found.append(describe_machine("cpu"))
    file.unlink()
    found.append(describe_machine("cpu"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANCIENT")
    found.append(describe_machine("cpu"))
    monkeypatch.setattr(torch, "__version__", "0.1")
    found.append(describe_machine("cpu"))
    monkeypatch.setattr(np, "__version__", "0.1")
    found.append(describe_machine("cpu"))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    found.append(describe_machine("cpu"))
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    found.append(describe_machine("cpu"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    found.append(describe_machine("cpu"))
    found.append(describe_machine("mps"))
    assert len(set(found)) == len(found)
    assert describe_machine("mps") == found[-1]
