"""Turns, memory, checkpoints and the division of work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.data.dataset import Split
from sordino.errors import UserError
from sordino.privacy.noise import Seeded
from sordino.simulator import checkpoint
from sordino.simulator.federation import Turns
from sordino.simulator.memory import Memory


@given(clients=st.integers(1, 40), part=st.floats(0.01, 1), rounds=st.integers(1, 60), seed=st.integers(0, 5))
def test_turns_are_equal(clients: int, part: float, rounds: int, seed: int) -> None:
    cohort = max(1, round(clients * part))
    turns = Turns(clients, cohort, Seeded(seed))
    counts = np.zeros(clients, dtype=int)
    for number in range(rounds):
        who = turns.of(number)
        assert len(set(who)) == cohort
        counts[who] += 1
    assert counts.max() <= -(-rounds * cohort // clients)
    assert counts.max() - counts.min() <= 2


def test_turns_can_be_taken_up_anywhere() -> None:
    first, later = Turns(20, 7, Seeded(1)), Turns(20, 7, Seeded(1))
    schedule = [first.of(number) for number in range(30)]
    assert later.of(29) == schedule[29]
    assert [Turns(20, 7, Seeded(2)).of(number) for number in range(30)] != schedule


def memory(path: Path) -> Memory:
    return Memory(path / "memory.bin", {"model": torch.zeros(3), "extra": torch.ones(2, 2)}, clients=4)


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
    kept.commit()
    slots, participations = kept.slots.copy(), kept.participations.copy()
    put(2.0)
    put(3.0)
    assert remembered(kept, 0)["model"][0] == 3.0
    again = memory(tmp_path)  # another process, after a crash
    again.restore(slots, participations)
    assert remembered(again, 0)["model"][0] == 1.0


def test_memory_wants_exactly_what_it_was_laid_out_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must keep exactly"):
        memory(tmp_path).write([0], [0], {"model": torch.zeros(1, 3)})


def test_checkpoints_hold_nested_state(tmp_path: Path) -> None:
    path = tmp_path / "round.safetensors"
    server = {"model": torch.arange(3.0), "clip": 0.5, "agent": {"actor": torch.ones(2), "deep": {"steps": 4}}}
    saved = checkpoint.Checkpoint(7, "abc", server, np.array([1, 0], np.uint8), np.array([2, 3], np.int32))
    checkpoint.save(saved, path)
    found = checkpoint.load(path, "abc")
    assert found.round == 7
    assert found.server["clip"] == 0.5
    assert found.server["agent"]["deep"] == {"steps": 4}
    assert torch.equal(found.server["agent"]["actor"], torch.ones(2))
    assert found.participations.tolist() == [2, 3]
    with pytest.raises(UserError, match="another experiment"):
        checkpoint.load(path, "other")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(path, "abc")


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
