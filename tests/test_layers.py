"""Who may import whom: every module from its own layer and those below it, and of other packages what is declared."""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    "errors version util federation.message federation.__init__",
    "tasks",
    "data models",
    "learning",
    "privacy federation.schedule",
    "method",
    "parts",
    "methods",
    "federation",
    "simulator",
    "terms experiment features store study planning trained assembly",
    "testing deploy cluster",
    "auditing flower",
    "report",
    "api papers board",
    "cli __init__ __main__",
)
"""The parts of the package from the lowest to the highest. The audit, which attacks whole runs, stands apart from what
it attacks."""
PLACES = {part: place for place, layer in enumerate(LAYERS) for part in layer.split()}
MODULES = {
    ".".join(path.relative_to(ROOT / "sordino").with_suffix("").parts): path
    for path in sorted((ROOT / "sordino").rglob("*.py"))
}


def part_of(module: str) -> str:
    """The longest known name that a module's begins with."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next(name for name in names if name in PLACES)


@functools.cache
def imports_of(path: Path) -> list[str]:
    """Everything that a file imports, in functions too."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            found += [f"{node.module}.{one.name}" for one in node.names]
    return found


def test_nothing_is_imported_from_above() -> None:
    above = [
        (module, name)
        for module, path in MODULES.items()
        for name in imports_of(path)
        if name.startswith("sordino.") and PLACES[part_of(name[len("sordino.") :])] > PLACES[part_of(module)]
    ]
    assert above == []


def test_no_method_imports_another() -> None:
    bases = ("sordino.methods.bases", "sordino.methods.bases")
    shared = {"methods.bases", "methods.record_clipped", "methods.__init__"}
    for module, path in MODULES.items():
        if module.startswith("methods.") and module not in shared:
            others = [name for name in imports_of(path) if name.startswith("sordino.methods.")]
            assert [name for name in others if not name.startswith(bases)] == [], module


@pytest.mark.parametrize(
    ("library", "importers"),
    [("flwr", {"flower"}), ("dp_accounting", {"privacy", "auditing"}), ("ray", {"cluster"})],
)
def test_a_library_has_one_importer(library: str, importers: set[str]) -> None:
    found = {
        module.split(".")[0]
        for module, path in MODULES.items()
        if any(name.split(".")[0] == library for name in imports_of(path))
    }
    assert found == importers


CALLED = {"absl": "absl-py", "dp_accounting": "dp-accounting", "sklearn": "scikit-learn"}
"""Distributions that are not called as what is imported of them."""
OTHERS = {
    "anyio": "flwr",
    "httpx": "flwr",
    "starlette": "flwr",
    "IPython": "a notebook",
    "pandas": "a user who wants its tables",
}
"""What is imported and not declared, and who brings it."""


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    written = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    declared = {Requirement(one).name for one in written}
    imported = {name.split(".")[0] for path in MODULES.values() for name in imports_of(path)}
    others = imported - sys.stdlib_module_names - {"sordino", *OTHERS}
    assert sorted(name for name in others if CALLED.get(name, name) not in declared) == []


RIDDLES = ("What ", "Of ", "The same ", "How ")
"""Beginnings of docstrings that name nothing."""


def test_docstrings_begin_with_what_they_define() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds):
                told = ast.get_docstring(node) or ""
                assert not told.startswith(RIDDLES), f"{name}: {told.splitlines()[0]}"
