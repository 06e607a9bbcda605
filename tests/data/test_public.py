"""Public records belong to nobody: where records have owners, they must be named and be other data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare

READERS: dict[str, dict[str, Any]] = {
    "acdp-pfsd": {"method": "acdp-pfsd"},
    "a hot start": {"method": "pac-dp", "set": {"hot_start": True}},
    "any method with a learned threshold": {"method": "dp-fedavg", "set": {"clipping": "ppo"}},
}


def hospital(path: Path, shift: int, features: int = 4) -> None:
    """Thirty records of one client."""
    random = np.random.default_rng(shift)
    np.savez(path, x=random.normal(size=(30, features)), y=np.arange(30) % 2)


def own_folder(folder: Path) -> dict[str, Any]:
    (folder / "own").mkdir()
    for shift, name in enumerate(("athens", "berlin", "cairo")):
        hospital(folder / "own" / f"{name}.npz", shift)
    return {"data": str(folder / "own")}


def heart_disease(folder: Path) -> dict[str, Any]:
    (folder / "heart-disease").mkdir()
    for centre in ("cleveland", "hungarian", "switzerland", "va"):
        rows = [f"{40 + k},1,{1 + k % 4},120,200,0,{k % 3},150,0,1.5,?,?,?,{k % 2}" for k in range(20)]
        (folder / "heart-disease" / f"processed.{centre}.data").write_text("\n".join(rows) + "\n")
    return {"data": "heart-disease", "data_dir": folder}


def femnist(folder: Path) -> dict[str, Any]:
    (folder / "femnist").mkdir()
    random = np.random.default_rng(0)
    np.savez(
        folder / "femnist" / "femnist.npz",
        X=random.integers(0, 256, (12, 28, 28), dtype=np.uint8),
        y=np.arange(12, dtype=np.uint8),
        writer=np.repeat([0, 1], 6).astype(np.int16),
        is_test=np.arange(12) % 3 == 0,
        writer_ids=np.array(["f1", "f2"]),
    )
    return {"data": "femnist", "data_dir": folder, "model": "logistic"}


def test_public_records_that_equal_a_clients_are_told(tmp_path: Path) -> None:
    keys = own_folder(tmp_path)
    theirs = np.load(tmp_path / "own" / "cairo.npz")["x"][:12]
    for name, known in (("others", 12), ("strangers", 0)):
        (tmp_path / name).mkdir()
        x = np.concatenate([theirs[:known], np.random.default_rng(9).normal(size=(40 - known, 4))])
        np.savez(tmp_path / name / "all.npz", x=x, y=np.arange(40) % 2)
        made = prepared(tmp_path, keys, READERS["acdp-pfsd"], {"public": str(tmp_path / name)})
        assert any("12 of the 40 public records equal a client's" in one for one in made.disclosed) == bool(known)


def prepared(folder: Path, *keys: dict[str, Any]) -> Any:
    return prepare(Experiment.make({"rounds": 2, "store": folder / "store"}, *keys))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("owned", [own_folder, heart_disease, femnist])
def test_records_of_owners_are_not_taken_for_public(
    owned: Callable[[Path], dict[str, Any]], reader: str, tmp_path: Path
) -> None:
    keys = owned(tmp_path)
    with pytest.raises(UserError, match="belongs to somebody, so none can be public: name other data") as refused:
        prepared(tmp_path, keys, READERS[reader])
    assert len(str(refused.value).splitlines()) == 1
    for held_out in ("holdout", "holdout:0.2", "default"):
        with pytest.raises(UserError, match="belongs to somebody"):
            prepared(tmp_path, keys, READERS[reader], {"public": held_out})


def test_how_records_are_dealt_does_not_make_them_public(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="belongs to somebody"):
        prepared(tmp_path, own_folder(tmp_path), {"method": "acdp-pfsd", "partition": "iid", "clients": 3})


@pytest.mark.parametrize("reader", READERS)
def test_other_data_can_be_public(reader: str, tmp_path: Path) -> None:
    keys = own_folder(tmp_path)
    (tmp_path / "survey").mkdir()
    hospital(tmp_path / "survey" / "anybody.npz", 77)
    made = prepared(tmp_path, keys, READERS[reader], {"public": str(tmp_path / "survey")})
    assert len(made.public.y) == 30
    assert made.data.train.sizes.sum() + made.data.test.sizes.sum() == 90, "the clients keep all of theirs"


def test_methods_that_read_no_public_records_need_none(tmp_path: Path) -> None:
    assert prepared(tmp_path, own_folder(tmp_path), {"method": "dp-fedavg"}).public is None


@pytest.mark.parametrize("files", [("athens", "berlin", "cairo"), ("berlin",)], ids=["all of them", "one client's"])
def test_the_clients_own_data_under_another_name_are_refused(files: tuple[str, ...], tmp_path: Path) -> None:
    keys = own_folder(tmp_path)
    (tmp_path / "copy").mkdir()
    for place, name in enumerate(files):
        shutil.copy(tmp_path / "own" / f"{name}.npz", tmp_path / "copy" / f"anybody-{place}.npz")
    for public in {keys["data"], str(tmp_path / "copy")}:
        with pytest.raises(UserError, match="are the clients' own"):
            prepared(tmp_path, keys, {"method": "acdp-pfsd", "public": public})


def test_a_data_set_is_not_its_own_public_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="are the clients' own"):
        prepared(tmp_path, {"method": "acdp-pfsd", "data": "digits", "public": "digits", "clients": 4})


def test_public_data_must_fit(tmp_path: Path) -> None:
    keys = own_folder(tmp_path)
    (tmp_path / "wide").mkdir()
    hospital(tmp_path / "wide" / "anybody.npz", 77, features=5)
    with pytest.raises(UserError, match="do not fit: their records have shape"):
        prepared(tmp_path, keys, {"method": "acdp-pfsd", "public": str(tmp_path / "wide")})


def test_records_that_are_taken_for_public_are_told_as_not_covered() -> None:
    made = prepare(Experiment.make({"data": "digits", "clients": 5, "rounds": 1, "method": "acdp-pfsd"}))
    assert any("180 of the records were set aside and are taken for public" in one for one in made.disclosed)
    made = prepare(Experiment.make({"data": "digits", "clients": 5, "rounds": 1, "method": "dp-fedavg"}))
    assert not any("taken for public" in one for one in made.disclosed)
