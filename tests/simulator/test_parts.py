"""Memory, checkpoints and the division of work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.data.dataset import Split
from sordino.errors import UserError
from sordino.federation.transport import MemorySnapshot
from sordino.simulator.memory import Memory
from sordino.store import checkpoint


def memory(path: Path) -> Memory:
    return Memory(path, {"model": torch.zeros(3), "extra": torch.ones(2, 2)}, clients=4)


def remembered(kept: Memory, client: int) -> dict[str, torch.Tensor]:
    return {name: rows[0] for name, rows in kept.states([client]).items()}


def test_memory_keeps_what_was_written(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    assert remembered(kept, 2)["extra"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    state = {"model": torch.tensor([1.0, 2.0, 3.0]), "extra": torch.arange(4.0).reshape(2, 2)}
    (target,) = kept.targets([2])
    kept.write([2], [target], {name: value.unsqueeze(0) for name, value in state.items()})
    assert remembered(kept, 2)["participations"] == 0
    kept.advance([2], [target])
    found = remembered(kept, 2)
    assert torch.equal(found["model"], state["model"])
    assert torch.equal(found["extra"], state["extra"])
    assert found["participations"] == 1
    assert kept.states([1, 2])["model"].tolist() == [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]


def test_what_a_checkpoint_points_to_is_not_overwritten_before_the_next(tmp_path: Path) -> None:
    kept = memory(tmp_path)

    def put(value: float) -> None:
        (target,) = kept.targets([0])
        kept.write([0], [target], {"model": torch.full((1, 3), value), "extra": torch.zeros(1, 2, 2)})
        kept.advance([0], [target])

    put(1.0)
    snapshot = kept.commit()
    put(2.0)
    put(3.0)
    assert remembered(kept, 0)["model"][0] == 3.0
    again = memory(tmp_path)  # another process, after a crash
    again.take_over(tmp_path, snapshot)
    assert remembered(again, 0)["model"][0] == 1.0


def recorded(kept: Memory, clients: int) -> MemorySnapshot:
    """Let the first clients take part, client i with the values i, and return what a checkpoint records of it."""
    who = list(range(clients))
    rows = {"model": torch.arange(float(clients)).repeat(3, 1).T, "extra": torch.zeros(clients, 2, 2)}
    targets = kept.targets(who)
    kept.write(who, targets, rows)
    kept.advance(who, targets)
    return kept.commit()


def test_what_the_old_process_writes_does_not_reach_the_one_that_took_over(tmp_path: Path) -> None:
    old, new = memory(tmp_path), memory(tmp_path)
    new.take_over(tmp_path, recorded(old, 3))
    for slot in (0, 1):
        old.write([0, 1, 2], [slot] * 3, {"model": torch.full((3, 3), 9.0), "extra": torch.ones(3, 2, 2)})
    assert new.states([0, 1, 2, 3])["model"][:, 0].tolist() == [0.0, 1.0, 2.0, 0.0]
    assert recorded(new, 3).checksums.tolist() == recorded(memory(tmp_path), 3).checksums.tolist()


def test_a_memory_file_belongs_to_one_session(tmp_path: Path) -> None:
    old = memory(tmp_path)
    new = Memory(tmp_path, old.blank, clients=4)
    recorded(old, 3)
    assert new.path != old.path
    assert new.path.stat().st_size == 0


def test_a_changed_row_is_not_taken_over(tmp_path: Path) -> None:
    """Client 2's row has 7 floats; each client has two slots, each with 8 bytes of checksum."""
    old = memory(tmp_path)
    known = recorded(old, 3)
    whole = old.path.read_bytes()
    row = (2 * 2 + int(known.slots[2])) * (7 * 4 + 8)
    unread = (2 * 2 + 1 - int(known.slots[2])) * (7 * 4 + 8)
    for place, client in ((row, 2), (row + 27, 2), (unread, None)):
        old.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if client is None:
            memory(tmp_path).take_over(tmp_path, known)
            continue
        with pytest.raises(UserError, match="has lost what client 2 remembered"):
            memory(tmp_path).take_over(tmp_path, known)
    old.path.write_bytes(whole[:row])
    with pytest.raises(UserError, match="has lost what client 2 remembered"):
        memory(tmp_path).take_over(tmp_path, known)
    new = memory(tmp_path)
    old.path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        new.take_over(tmp_path, known)


def test_memory_is_read_when_it_is_looked_at(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    recorded(kept, 3)
    states = kept.states([2, 3])
    assert list(states) == ["model", "extra", "participations"]
    kept.close()
    assert states["participations"].tolist() == [1.0, 0.0]
    with pytest.raises(OSError, match="Bad file descriptor"):
        states["model"]


def test_memory_wants_exactly_what_it_was_laid_out_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must keep exactly"):
        memory(tmp_path).write([0], [0], {"model": torch.zeros(1, 3)})


def test_checkpoints_come_back(tmp_path: Path) -> None:
    server = {"model": torch.arange(3.0), "clip": 0.5, "agent": {"second": torch.ones(2), "first": {"steps": 4}}}
    slots, participations = np.array([1, 0], np.uint8), np.array([2, 3], np.int32)
    checksums = np.array([2**64 - 1, 1], "<u8")
    remembered = MemorySnapshot("memory-3.bin", slots, participations, checksums)
    saved = checkpoint.Checkpoint(7, 9, server, torch.ones(2, 3), True, remembered)
    kept = checkpoint.save(saved, tmp_path / "round.safetensors")
    found = checkpoint.load(kept, tmp_path)
    assert (found.round, found.questions, found.over) == (7, 9, True)
    assert torch.equal(found.averaged, torch.ones(2, 3))
    assert list(found.server["agent"]) == ["second", "first"]
    assert torch.equal(found.server["agent"]["second"], torch.ones(2))
    assert found.memory is not None
    assert found.memory.file == "memory-3.bin"
    assert found.memory.slots.tolist() == [1, 0]
    assert found.memory.participations.tolist() == [2, 3]
    assert found.memory.checksums.tolist() == [2**64 - 1, 1]


def test_a_checkpoint_without_clients_memory_comes_back(tmp_path: Path) -> None:
    kept = checkpoint.save(checkpoint.Checkpoint(1, 2, {"a": 1}, None, False, None), tmp_path / "c.safetensors")
    found = checkpoint.load(kept, tmp_path)
    assert (found.round, found.questions, found.server, found.memory) == (1, 2, {"a": 1}, None)


def test_a_checkpoint_with_one_other_bit_is_refused(tmp_path: Path) -> None:
    kept = checkpoint.save(checkpoint.Checkpoint(1, 1, {"a": 1}, None, False, None), tmp_path / "c.safetensors")
    whole = (tmp_path / kept.name).read_bytes()
    for place in range(len(whole)):
        (tmp_path / kept.name).write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(UserError, match="is damaged"):
            checkpoint.load(kept, tmp_path)


def test_records_of_uneven_clients_are_padded() -> None:
    split = Split.of([(torch.full((count, 3), float(count)), torch.full((count,), count)) for count in (2, 1, 2)])
    x, y, valid = split.stacked([0, 1])
    assert x.shape == (2, 2, 3)
    assert valid is not None
    assert valid.tolist() == [[1, 1], [1, 0]]
    assert (x.sum(dim=2) * valid).tolist() == [[6, 6], [3, 0]]
    assert y[1, 0] == 1
    assert split.stacked([0, 2])[2] is None
    assert [part.tolist() for part in split.part(1)] == [[[1, 1, 1]], [1]]
