"""What was charged since the last checkpoint is on disk before anything is asked, and shows when it has changed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import QUICK_KEYS, command, refused
from killing import trace
from torch import Tensor

from sordino.api import resume, run
from sordino.errors import UserError
from sordino.federation import server
from sordino.federation.rounds import RoundReport
from sordino.method import Federation
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.privacy.ledger import FIRST_LINK, Ledger, Row
from sordino.privacy.release import Charge
from sordino.store import journal as journals
from sordino.store.journal import EARLIER_MARK, HEAD, DamagedJournalError, Journal, OtherValuesError, rows_after
from sordino.store.store import Store


def rows(count: int) -> list[Row]:
    """Rows of all kinds."""
    charge = Charge(np.array([1.0, 0.5]), np.array([[2.0, 1.0, 0.5], [3.0, 1.5, 0.75]]), reason="as it is — bare")
    sampled = Charge.of_records("training", [(0.1, 1.3, 7), (0.2, 1.1, 5)])
    return [
        Row.of((number, number, "step", "update"), [3, 70_000], sampled if number % 2 else charge)
        for number in range(count)
    ]


def written(folder: Path, chosen: list[Row]) -> tuple[Path, list[bytes]]:
    """A journal with these rows, and their links."""
    links = Ledger(70_001, rows=chosen).links
    journal = Journal(folder, 0, FIRST_LINK, begun=False)
    journal.write(chosen, links)
    journal.close()
    return journal.path, links


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    chosen = rows(4)
    _, links = written(tmp_path, chosen)
    assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen
    assert rows_after(tmp_path, 4, links[-1], begun=None) == []


def test_a_row_is_on_disk_when_it_has_been_written(tmp_path: Path) -> None:
    chosen = rows(1)
    journal = Journal(tmp_path, 0, FIRST_LINK, begun=False)
    assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == []
    journal.write(chosen, Ledger(70_001, rows=chosen).links)
    assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen
    journal.close()


def snapshots(folder: Path, chosen: list[Row], **given: Any) -> tuple[list[bytes], list[bytes]]:
    """Contents of a journal before the first row and after each, and the rows' links."""
    links = Ledger(70_001, rows=chosen).links
    journal = Journal(folder, 0, FIRST_LINK, begun=False, **given)
    found = [journal.path.read_bytes()]
    for row, link in zip(chosen, links, strict=True):
        journal.write([row], [link])
        found.append(journal.path.read_bytes())
    os.close(journal._file)  # type: ignore[arg-type]  # as a kill leaves it
    return found, links


def test_a_record_that_a_kill_interrupted_is_ignored_wherever_it_ends(tmp_path: Path) -> None:
    """It paid for nothing; writing goes on where the last whole one ends, which counts before the head says so."""
    chosen = rows(3)
    (_, second, third), (path,) = [*snapshots(tmp_path, chosen[:2])[0]], tmp_path.glob("ledger-*")
    links = Ledger(70_001, rows=chosen).links
    whole = second[:HEAD] + third[HEAD:]
    for place in range(len(second), len(whole) + 1):
        path.write_bytes(whole[:place])
        known = 2 if place == len(whole) else 1
        assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen[:known]
        if place % 100 and known == 1:
            continue
        journal = Journal(tmp_path, 0, FIRST_LINK, begun=True)
        journal.write(chosen, links)  # a resumed run charges everything again
        journal.close()
        assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen
        assert path.read_bytes()[HEAD:].startswith(whole[HEAD:])


@pytest.mark.parametrize("durable", [True, False])
def test_a_lost_tail_is_told_wherever_it_begins(durable: bool, tmp_path: Path) -> None:
    """Also at the end of a record, and of the head."""
    chosen = rows(3)
    *_, whole = snapshots(tmp_path, chosen, machine="here", durable=durable)[0]
    (path,) = tmp_path.glob("ledger-*")
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        with pytest.raises(DamagedJournalError, match="is damaged, its last rows are lost" if place >= HEAD else None):
            rows_after(tmp_path, 0, FIRST_LINK, begun=True)
        if place % 50 and place != HEAD:
            continue
        for machine, repeats in (("here", False), ("elsewhere", False), ("elsewhere", True)):
            with pytest.raises(DamagedJournalError):
                Journal(tmp_path, 0, FIRST_LINK, True, machine, durable=not repeats)
        assert path.read_bytes() == whole[:place]


def test_a_run_that_repeats_itself_goes_on_after_a_loss_but_nowhere_else(tmp_path: Path) -> None:
    """Whoever comes later, behind a checkpoint too, knows that questions were asked that no row tells of."""
    chosen = rows(3)
    *_, whole = snapshots(tmp_path, chosen, machine="here", durable=False)[0]
    (path,) = tmp_path.glob("ledger-*")
    path.write_bytes(whole[:-1])
    links = Ledger(70_001, rows=chosen).links
    journal = Journal(tmp_path, 0, FIRST_LINK, True, "here", durable=False)
    journal.write(chosen[:1], links[:1])
    after = journal.following(1, links[0])
    after.write(chosen[1:2], links[1:2])
    for one in (journal, after):
        one.close()
    for position, previous in ((0, FIRST_LINK), (1, links[0])):
        with pytest.raises(DamagedJournalError, match="may have lost its last rows"):
            Journal(tmp_path, position, previous, True, "elsewhere", durable=False)
        Journal(tmp_path, position, previous, True, "here", durable=False)
    assert rows_after(tmp_path, 1, links[0], begun=True) == chosen[1:2]


def test_after_a_power_cut_a_run_goes_on_only_where_it_repeats_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither rows nor the head that told of them may have come to the disk; one that was closed is whole."""
    chosen = rows(2)
    contents = snapshots(tmp_path, chosen, machine="here", durable=False)[0]
    (path,) = tmp_path.glob("ledger-*")
    monkeypatch.setattr(journals, "_boot", lambda: bytes(31) + b"1")
    for place, content in enumerate(contents):
        path.write_bytes(content)
        with pytest.raises(DamagedJournalError, match="may have lost its last rows"):
            Journal(tmp_path, 0, FIRST_LINK, True, "elsewhere", durable=False)
        with pytest.raises(DamagedJournalError, match="may have lost its last rows"):
            Journal(tmp_path, 0, FIRST_LINK, True, "here", durable=True)
        if place:
            assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen[:place]
        else:
            with pytest.raises(DamagedJournalError, match="may have lost its last rows"):
                rows_after(tmp_path, 0, FIRST_LINK, begun=True)
        journal = Journal(tmp_path, 0, FIRST_LINK, True, "here", durable=False)
        journal.close()
        with pytest.raises(DamagedJournalError, match="may have lost its last rows"):
            Journal(tmp_path, 0, FIRST_LINK, True, "elsewhere", durable=False)


@pytest.mark.parametrize("written", [0, 2])
def test_a_journal_that_was_closed_is_whole_under_any_boot(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, synced = rows(2), []
    links = Ledger(70_001, rows=chosen).links
    monkeypatch.setattr(os, "fsync", lambda file, original=os.fsync: (synced.append(file), original(file)))
    Journal(tmp_path, 0, FIRST_LINK, False, "here", durable=False)
    journal = Journal(tmp_path, 0, FIRST_LINK, True, "here", durable=False)
    synced.clear()
    journal.write(chosen[:written], links[:written])
    assert not synced
    journal.close()
    assert len(synced) == 2, "first what it says, then that it says so"
    monkeypatch.setattr(journals, "_boot", lambda: bytes(31) + b"1")
    assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen[:written]
    moved = Journal(tmp_path, 0, FIRST_LINK, True, "elsewhere", durable=False)
    assert [row for row, _ in moved.given_up] == chosen[:written]


def test_where_values_do_not_repeat_every_record_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the head says that it is there."""
    chosen, seen = rows(2), []
    links = Ledger(70_001, rows=chosen).links
    journal = Journal(tmp_path, 0, FIRST_LINK, begun=False)
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(journal.path.read_bytes()))
    journal.write(chosen, links)
    journal.answered(1, 7)
    sizes = [len(content) for content in seen]
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes))
    assert all(content[:HEAD] != journal._head.encode() for content in seen)
    journal.close()


def test_a_changed_byte_is_told_wherever_it_is(tmp_path: Path) -> None:
    path, _ = written(tmp_path, rows(2))
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(UserError, match=f"The journal {path} is damaged"):
            rows_after(tmp_path, 0, FIRST_LINK, begun=True)
    with pytest.raises(UserError, match=f"The journal {path} is damaged"):
        Journal(tmp_path, 0, FIRST_LINK, begun=True)


def test_a_head_that_tells_of_another_end_is_told(tmp_path: Path) -> None:
    """Whoever writes a sound head of their own cannot make rows before its end count as another run's."""
    path, _ = written(tmp_path, rows(2))
    whole = path.read_bytes()
    head = journals._Head.decode(whole)
    assert head is not None
    path.write_bytes(replace(head, tail=bytes(len(head.tail))).encode() + whole[HEAD:])
    with pytest.raises(DamagedJournalError):
        rows_after(tmp_path, 0, FIRST_LINK, begun=True)


def test_a_changed_byte_of_an_answer_is_told(tmp_path: Path) -> None:
    """Also where a run was given up; cut short, it is as if it had not been written."""
    chosen = rows(2)
    links = Ledger(70_001, rows=chosen).links
    journal = Journal(tmp_path, 0, FIRST_LINK, begun=False)
    sizes, heads = [], []
    for row, link, drawn in zip(chosen, links, (2**191, 7), strict=True):
        journal.write([row], [link])
        journal.answered(row.question, drawn)
        sizes.append(journal.path.stat().st_size)
        heads.append(journal.path.read_bytes()[:HEAD])
    journal.close()
    again = Journal(tmp_path, 0, FIRST_LINK, begun=True)
    again.write(chosen[:1], links[:1])
    again.answered(0, 2**191)
    again.write(chosen[1:], links[1:])
    with pytest.raises(OtherValuesError):
        again.answered(1, 8)
    again.close()
    whole = again.path.read_bytes()
    assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen
    assert [row for row, _ in Journal(tmp_path, 0, FIRST_LINK, begun=True).given_up] == chosen
    for place in range(sizes[0] - 60, len(whole)):
        again.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(DamagedJournalError):
            rows_after(tmp_path, 0, FIRST_LINK, begun=True)
    for place in range(sizes[1], len(whole)):
        again.path.write_bytes(heads[1] + whole[HEAD:place])
        assert Journal(tmp_path, 0, FIRST_LINK, begun=True).given_up == []


@pytest.mark.parametrize("count", [0, 2])
def test_one_that_was_begun_is_told_when_it_is_gone_or_has_lost_its_beginning(count: int, tmp_path: Path) -> None:
    path, _ = written(tmp_path, rows(count))
    whole = path.read_bytes()
    contents = [*(whole[:place] for place in range(HEAD)), bytes(len(whole)), whole[HEAD:]]
    for content in contents:
        path.write_bytes(content)
        for read in (rows_after, Journal):
            with pytest.raises(DamagedJournalError, match=f"The journal {path} is damaged"):
                read(tmp_path, 0, FIRST_LINK, begun=True)
        assert path.read_bytes() == content
    path.unlink()
    for read in (rows_after, Journal):
        with pytest.raises(DamagedJournalError, match=f"The journal {path} is gone: put it back from a copy"):
            read(tmp_path, 0, FIRST_LINK, begun=True)
    assert not path.exists()


def test_one_that_was_not_begun_has_nothing_to_lose(tmp_path: Path) -> None:
    path, _ = written(tmp_path, [])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert rows_after(tmp_path, 0, FIRST_LINK, begun=False) == []
    Journal(tmp_path, 0, FIRST_LINK, begun=False)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("begun", "has_head"), [(None, False), (True, True)])
def test_one_of_an_earlier_version_goes_on_with_a_beginning(begun: bool | None, has_head: bool, tmp_path: Path) -> None:
    """It had none, and nobody wrote down that it was there, or one without a length; what was being written last is
    dropped."""
    chosen = rows(3)
    path, links = written(tmp_path, chosen)
    whole = path.read_bytes()
    head = EARLIER_MARK + FIRST_LINK + hashlib.sha256(tmp_path.name.encode()).digest()
    path.write_bytes((head if has_head else b"") + whole[HEAD:-1])
    assert rows_after(tmp_path, 0, FIRST_LINK, begun) == chosen[:2]
    for _ in range(2):  # its writer may be killed before it is written down
        journal = Journal(tmp_path, 0, FIRST_LINK, begun)
        assert rows_after(tmp_path, 0, FIRST_LINK, begun=True) == chosen[:2]
    journal.write(chosen, links)
    journal.close()
    assert path.read_bytes() == whole


def test_a_journal_of_another_run_is_told(tmp_path: Path) -> None:
    written(tmp_path, rows(2))
    with pytest.raises(UserError, match="is damaged"):
        Journal(tmp_path, 0, bytes([1]) * 32, begun=True)


def test_what_is_yet_to_be_charged_again_goes_over_into_the_next_journal(tmp_path: Path) -> None:
    chosen = rows(4)
    _, links = written(tmp_path, chosen)
    first = Journal(tmp_path, 0, FIRST_LINK, begun=True)
    first.write(chosen[:1], links[:1])
    second = first.following(1, links[0])
    assert second.path != first.path
    assert rows_after(tmp_path, 1, links[0], begun=True) == chosen[1:]
    second.write(chosen[1:3], links[1:3])
    with pytest.raises(UserError, match="does not repeat itself: step of round 4 charges otherwise for update"):
        second.check_settled()
    second.write(chosen[3:], links[3:])
    second.check_settled()
    second.close()
    assert rows_after(tmp_path, 1, links[0], begun=True) == chosen[1:]


@dataclass(frozen=True)
class Wavering(DPFedAvg):
    """DP-FedAvg that is not a function of its seed, messages and data."""

    title: ClassVar[str] = "wavers"
    whims: ClassVar[dict[str, Any]] = {}

    def run(self, fed: Federation, model: Tensor) -> None:
        state = fed.state(model=model)
        for number in fed.rounds(state):
            if number == self.whims.get("last"):
                break
            message = {"global": state.model, "clip": self.whims.get("clip", 0.5)}
            state.model = state.model + fed.ask(fed.sample(), self.local, message).mean("update")


KEYS: dict[str, Any] = QUICK_KEYS | {"rounds": 6, "method": f"{__name__}:Wavering", "noise_multiplier": 1.0}


def stopped(store: Path, after: int, name: str | None = None) -> str:
    """A run that was stopped, or stopped again, after so many rounds."""

    def stop(report: RoundReport) -> None:
        if report.round + 1 == after:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=store, watch=stop, **KEYS) if name is None else resume(name, store, watch=stop)
    return Store(store).all()[0].run


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("whim", [{"clip": 0.6}, {"last": 3}, {"last": 0}])
def test_a_run_whose_charges_differ_is_refused(
    whim: dict[str, Any], saves: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rounds 1 to 4 were asked and charged; after the resumption another threshold is used, or fewer rounds are."""
    name = stopped(tmp_path, after=4)
    monkeypatch.setattr(server, "SAVE_SECONDS", 0 if saves else 1e9)
    monkeypatch.setattr(Wavering, "whims", whim)
    sentence = refused("resume", name, "--store", tmp_path, "--json")
    assert "The run does not repeat itself: local of round" in sentence
    assert "start the run anew with `sordino run`" in sentence
    assert Store(tmp_path).get(name).state == "stopped"


@pytest.mark.usefixtures("one_nonce")
def test_a_run_whose_charges_are_the_same_goes_on(tmp_path: Path) -> None:
    name = stopped(tmp_path / "stopped", after=4)
    assert command("resume", name, "--store", tmp_path / "stopped", "--json").code == 0
    assert trace(tmp_path / "stopped", name) == trace(tmp_path / "whole", run(store=tmp_path / "whole", **KEYS)["run"])


def charged(store: Path, name: str) -> int:
    """How many rows a stopped run has in its database and its journal."""
    known = Store(store).ledger(name)
    return len(known) + len(rows_after(store / "runs" / name, len(known), Ledger(8, rows=known).head, begun=True))


@pytest.mark.usefixtures("one_nonce")
def test_what_was_asked_stays_charged_however_often_a_run_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Five rounds were asked; resumed sessions come less far, with and without checkpoints on the way."""
    name = stopped(tmp_path / "stopped", after=5)
    assert charged(tmp_path / "stopped", name) == 5
    for seconds, after in ((0, 2), (1e9, 3), (0, 4)):
        monkeypatch.setattr(server, "SAVE_SECONDS", seconds)
        stopped(tmp_path / "stopped", after, name)
        assert charged(tmp_path / "stopped", name) == 5
    assert len(Store(tmp_path / "stopped").ledger(name)) == 3
    resume(name, tmp_path / "stopped")
    assert trace(tmp_path / "stopped", name) == trace(tmp_path / "whole", run(store=tmp_path / "whole", **KEYS)["run"])


@pytest.mark.parametrize("left", [HEAD, -1])
def test_own_code_is_not_resumed_when_its_last_charges_are_lost(left: int, tmp_path: Path) -> None:
    """It may not repeat what was asked: that would be released twice, and charged once."""
    name = stopped(tmp_path, after=3)
    (journal,) = (tmp_path / "runs" / name).glob("ledger-*")
    journal.write_bytes(journal.read_bytes()[:left])
    assert f"The journal {journal} is damaged, its last rows are lost" in refused("resume", name, "--store", tmp_path)
    assert Store(tmp_path).get(name).state == "stopped"


def test_a_damaged_journal_is_told_when_its_run_is_taken_up(tmp_path: Path) -> None:
    name = stopped(tmp_path, after=2)
    (journal,) = (tmp_path / "runs" / name).glob("ledger-*")
    whole = journal.read_bytes()
    journal.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    assert f"The journal {journal} is damaged" in refused("resume", name, "--store", tmp_path)
    journal.write_bytes(whole)
    assert command("resume", name, "--store", tmp_path, "--json").code == 0
    assert not journal.exists()
