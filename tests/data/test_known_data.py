from __future__ import annotations

from pathlib import Path

import pytest
from data_makers import write_idx

from sordino.data import catalogue, load, sources
from sordino.errors import UserError


def test_the_catalogue_says_what_is_here_and_where_it_was_looked_for(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", "", "t10k", True)
    entries = {entry.name: entry for entry in catalogue(tmp_path)}
    assert set(entries) == {
        *("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "femnist"),
        *("emnist", "emnist-letters", "emnist-digits", "emnist-bymerge", "emnist-byclass"),
        "heart-disease",
    }
    assert entries["mnist"].present
    assert entries["mnist"].found_at == tmp_path / "mnist"
    assert entries["digits"].present
    assert entries["digits"].found_at is None
    assert entries["digits"].looked_in == []
    assert not entries["cifar10"].present
    assert entries["cifar10"].looked_in == [tmp_path / "cifar10"]
    assert all(entry.home.startswith("http") and entry.licence for entry in entries.values())


def test_a_half_present_data_set_is_not_present(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", "", "t10k", True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert not next(entry for entry in catalogue(tmp_path) if entry.name == "mnist").present
    with pytest.raises(UserError, match=r"missing: t10k-labels-idx1-ubyte\)"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("name", [name for name in sources.SOURCES if name not in ("digits", "fashion-mnist")])
def test_a_missing_data_set_says_where_and_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path / name) in message
    assert f"sordino data get {name}" in message
    assert "--data-dir" in message


def test_the_folder_comes_from_the_argument_then_the_environment_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "named"))
    assert sources.places("mnist", tmp_path / "given") == [tmp_path / "given" / "mnist"]
    assert sources.places("mnist", None) == [tmp_path / "named" / "mnist"]
    monkeypatch.delenv("SORDINO_DATA")
    assert sources.places("mnist", None) == [tmp_path / "home" / ".cache" / "sordino" / "mnist"]


def test_debians_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources.places("fashion-mnist", tmp_path)[1] == Path("/usr/share/datasets/fashion-mnist")
    known = sources.SOURCES["fashion-mnist"]
    system = tmp_path / "system"
    monkeypatch.setitem(
        sources.SOURCES,
        "fashion-mnist",
        sources.DataSource(**{**known.__dict__, "system": (system,)}),
    )
    write_idx(system, "", "t10k", True)
    entry = next(entry for entry in catalogue(tmp_path) if entry.name == "fashion-mnist")
    assert entry.found_at == system
    assert len(load("fashion-mnist", tmp_path).y) == 8


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="There is no data set 'minst'; did you mean 'mnist'"):
        load("minst")


def test_label_and_shape_are_not_for_known_data_sets() -> None:
    with pytest.raises(UserError, match="'label' was given for the known data set 'digits'"):
        load("digits", label="y")
    with pytest.raises(UserError, match="'shape' was given for the known data set 'digits'"):
        load("digits", shape=(64,))
