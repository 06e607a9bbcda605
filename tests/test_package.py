"""The package as it is installed: a wheel with all of its files, in an environment that has no extra."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, as `pip install .` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("sordino", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    built = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--quiet", "-w", "dist"]
    done = subprocess.run(built, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "dist").glob("sordino-*.whl")
    return found


def core(requirements: list[str]) -> set[str]:
    """The distributions that an installation without extras brings, by name."""
    found: set[str] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        name = one.name.lower().replace("_", "-")
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += [Requirement(more) for more in metadata.distribution(name).requires or []]
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with the wheel and what it requires, linked from here: there is no network in a test."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
        about = email.message_from_bytes(packed.read(next(n for n in packed.namelist() if n.endswith("/METADATA"))))
    for name in core(about.get_all("Requires-Dist") or []):
        one = metadata.distribution(name)
        for top in {file.parts[0] for file in one.files or []} - {"..", "__pycache__"}:
            (folder / top).symlink_to(Path(str(one.locate_file(top))))
    return folder


def sordino(installed: Path, folder: Path, *arguments: str) -> str:
    """`sordino ARGUMENTS` of the wheel, which sees nothing but its own requirements."""
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from sordino.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SORDINO_DATA": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    kept = [path for path in (ROOT / "sordino").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in kept} <= packed
    assert "sordino/py.typed" in packed
    assert any(name.endswith("LICENSE") for name in packed)


def test_what_needs_no_extra_works_without_any(installed: Path, tmp_path: Path) -> None:
    assert not (installed / "matplotlib").exists()
    assert not (installed / "pyarrow").exists()
    quick = ("--clients=8", "--rounds=2", "--partition=iid", "--workers=1")
    assert "feddpa" in sordino(installed, tmp_path, "methods")
    assert "dp-fedavg-digits-1" in sordino(installed, tmp_path, "run", "--method=dp-fedavg", *quick)
    sordino(installed, tmp_path, "run", "--method=dp-fedavg-record", *quick)
    sordino(installed, tmp_path, "report", "dp-fedavg-digits-1", "-o", "page.html")
    assert "Epsilon over the rounds" in (tmp_path / "page.html").read_text("utf-8")
    assert "2" in sordino(installed, tmp_path, "runs")
