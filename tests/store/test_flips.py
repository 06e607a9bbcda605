"""A damaged store is refused in a sentence, or what was damaged is nothing that is read: never another result.

Stores of a stopped, of a killed and of a finished run are damaged at random places of all their files, by seeds.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import command
from killing import die_at, killed, trace

from sordino.api import load_models, run
from sordino.errors import UserError
from sordino.federation import server
from sordino.federation.rounds import RoundReport
from sordino.store.database import Database
from sordino.store.store import Store

KEYS: dict[str, Any] = {
    **{"method": "dp-fedavg", "model": "logistic", "clients": 4, "rounds": 3, "partition": "iid", "workers": 1},
    **{"records": 200, "engine": "stacked", "set": {"epochs": 1, "batch": 64, "clipping": "quantile"}},
}


class Stopped(Exception):  # noqa: N818
    """Ends a run early."""


def stop(report: RoundReport) -> None:
    if report.round == 2:
        raise Stopped


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store of each kind, each with one run."""
    folder = tmp_path_factory.mktemp("stores")
    before, threads = server.SAVE_SECONDS, torch.get_num_threads()
    server.SAVE_SECONDS = 0
    torch.set_num_threads(1)  # a copied process has no others

    def victim() -> None:
        die_at(Database, "seal", 4, "after")  # within the transaction: SQLite's journal is there
        run(store=folder / "killed", **KEYS)

    assert killed(victim)
    run(store=folder / "finished", **KEYS)
    with pytest.raises(Stopped):
        run(store=folder / "stopped", watch=stop, **KEYS)
    server.SAVE_SECONDS = before
    torch.set_num_threads(threads)
    assert (folder / "killed" / "sordino.db-journal").stat().st_size > 0
    return {kind: folder / kind for kind in ("stopped", "killed", "finished")}


def flip_a_bit(content: bytearray, place: int, chance: random.Random) -> None:
    content[place] ^= 1 << chance.randrange(8)


def change_a_byte(content: bytearray, place: int, chance: random.Random) -> None:
    content[place] = (content[place] + chance.randrange(1, 256)) % 256


def cut_off(content: bytearray, place: int, chance: random.Random) -> None:
    del content[place:]


def lose_a_sector(content: bytearray, place: int, chance: random.Random) -> None:
    begin = place // 512 * 512
    content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))


def repeat_a_sector(content: bytearray, place: int, chance: random.Random) -> None:
    begin, other = place // 512 * 512, chance.randrange(len(content)) // 512 * 512
    content[begin : begin + 512] = content[other : other + 512]


DAMAGES: tuple[Callable[[bytearray, int, random.Random], None], ...] = (
    *(flip_a_bit, flip_a_bit, change_a_byte, cut_off, lose_a_sector, repeat_a_sector),
)


def damage(store: Path, chance: random.Random, which: str) -> str:
    """Damage one file of a store, and say where and how; `which` is the pattern of their names."""
    files = sorted(path for path in store.rglob(which) if path.is_file() and path.stat().st_size)
    file = chance.choice(files)
    content = bytearray(file.read_bytes())
    reach = len(content) if chance.random() < 0.7 else min(len(content), 200)  # headers are small and matter most
    place, how = chance.randrange(reach), chance.choice(DAMAGES)
    how(content, place, chance)
    file.write_bytes(content)
    return f"{how.__name__} of {file.relative_to(store)} at {place}"


def whole_sentence(arguments: tuple[object, ...]) -> bool:
    """Whether a command succeeds; if not it must end with code 2 and one sentence."""
    outcome = command(*arguments)
    if outcome.code == 0:
        return True
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("Error: ")
    assert len(outcome.err.splitlines()) == 1, outcome.err
    return False


def read_all(store: Path, name: str) -> dict[str, Any] | None:
    """All that can be read of a finished run; None if any of it is refused."""
    try:
        found = load_models(name, store)
        opened = Store(store)
        rows = (opened.curve(name), opened.clients(name), opened.ledger(name), opened.get(name).summary)
    except UserError:
        return None
    models = [tensor for network in found.personal.values() for tensor in network.state_dict().values()]
    return {"rows": rows, "models": [tensor.tolist() for tensor in models]}


def survives(kind: str, pristine: Path, store: Path, whole: dict[str, Any]) -> bool:
    """Whether nothing that is read was damaged. What is read must then be what was written."""
    name = "dp-fedavg-digits-1"
    listed = whole_sentence(("runs", "--json", "--store", store))
    if not whole_sentence(("resume", name, "--json", "--store", store)):
        return False
    assert listed
    assert trace(store, name) == whole
    if kind == "finished":
        found = read_all(store, name)
        assert found is None or found == read_all(pristine, name)
    return True


def trials(kind: str, seeds: range, stores: dict[str, Path], scratch: Path, which: str = "*") -> list[bool]:
    """Damage a store once for each seed; for each, whether the run could still be read or resumed."""
    whole = trace(stores["finished"], "dp-fedavg-digits-1")
    outcomes = []
    for seed in seeds:
        store = scratch / f"{kind}-{seed}"
        shutil.copytree(stores[kind], store)
        what = damage(store, random.Random(f"{kind} {seed}"), which)
        try:
            outcomes.append(survives(kind, stores[kind], store, whole))
        except BaseException as error:
            error.add_note(f"{kind}, seed {seed}: {what}")
            raise
        shutil.rmtree(store)
    return outcomes


@pytest.mark.parametrize("kind", ["stopped", "killed", "finished"])
def test_damage_is_told_or_changes_nothing(kind: str, stores: dict[str, Path], tmp_path: Path) -> None:
    outcomes = trials(kind, range(10), stores, tmp_path)
    assert False in outcomes


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_a_damaged_journal_is_told_or_changes_nothing(kind: str, stores: dict[str, Path], tmp_path: Path) -> None:
    outcomes = trials(kind, range(100, 110), stores, tmp_path, "ledger-*")
    assert False in outcomes  # what is cut off is charged again here; what is changed is told


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("kind", ["stopped", "killed", "finished"])
def test_much_damage_is_told_or_changes_nothing(kind: str, block: int, stores: dict[str, Path], tmp_path: Path) -> None:
    outcomes = trials(kind, range(1000 + 50 * block, 1050 + 50 * block), stores, tmp_path)
    assert False in outcomes
