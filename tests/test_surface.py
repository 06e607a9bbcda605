"""The public surface: names of `sordino` and of its packages, who imports from where, and paths that have moved."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sordino
from sordino import UserError
from sordino.util.moved import MOVED

ROOT = Path(__file__).resolve().parent.parent
INITS = sorted((ROOT / "sordino").rglob("__init__.py"))
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

EXPERIMENTS = "audit compare load_models make_report partition plan resume run"
RESULTS = "ComparisonResult Models Plan RoundReport RunResult Summary UserError"
METHODS = "Budget Clipped Each Federation Message Method RecordClipped RecordLevel Replies Result Schedule State"
LEARNING = "Descent Layout PrivateRecords Records"
HYPERPARAMETERS = "Count NotNegative Positive Share"
RELEASES = "Average Bare Derived Follows Gradients GradientSum Matrix Number RecordSum Update sends"
ACCOUNTING = "attack_accuracy delta_of epsilon_of mu_of rdp_epsilon"
OTHERS = "__version__ adapt check_method"
PUBLIC = " ".join((EXPERIMENTS, RESULTS, METHODS, LEARNING, HYPERPARAMETERS, RELEASES, ACCOUNTING, OTHERS)).split()
"""Names that users may rely on: a name that is added or removed is written down here and in CHANGELOG.md."""


def checked_imports() -> dict[str, list[str]]:
    """The names that type checkers see, by module."""
    tree = ast.parse(INITS[0].read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert all(isinstance(node, ast.ImportFrom) for node in block.body)
    return {str(node.module): [one.name for one in node.names] for node in block.body}  # type: ignore[attr-defined]


def test_exported_names() -> None:
    assert sorted(PUBLIC) == sorted(sordino.__all__) == dir(sordino)
    for name in PUBLIC:
        assert getattr(sordino, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sordino.nothing  # type: ignore[attr-defined]


def test_type_checkers_see_what_is_imported() -> None:
    assert checked_imports() == {module: list(names) for module, names in sordino._MODULES.items()}
    assert sorted([*sordino._HOMES, "__version__"]) == sorted(sordino.__all__)


def test_public_names_are_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    listed = re.findall(r"sordino\.(\w+)$|^\s*- `(\w+)`", page, re.MULTILINE)
    assert {first or second for first, second in listed} == set(PUBLIC) - {"__version__"}
    for name in PUBLIC:
        value = getattr(sordino, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name} has no docstring"


def test_importing_sordino_is_quick() -> None:
    code = "import sys, sordino; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def sources() -> dict[str, str]:
    """The Python that users read, by where it stands. What builds the pages (docs/conf.py, docs/made.py) is not."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {path.name: "\n".join(PYTHON.findall(path.read_text("utf-8"))) for path in pages}
    return found | {path.name: path.read_text("utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}


@pytest.mark.parametrize("name", sources())
def test_users_import_from_sordino_alone(name: str) -> None:
    for node in ast.walk(ast.parse(sources()[name])):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "sordino":
            assert node.module == "sordino", f"{name} imports from {node.module}"
            assert {one.name for one in node.names} <= set(PUBLIC)
        elif isinstance(node, ast.Import):
            assert not any(one.name.startswith("sordino.") for one in node.names), name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sordino":
            assert node.attr in PUBLIC, f"{name} uses sordino.{node.attr}"


@pytest.mark.parametrize("init", INITS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_packages_list_their_names(init: Path) -> None:
    package = ".".join(init.parent.relative_to(ROOT).parts)
    module = importlib.import_module(package)
    names = module.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(module, name) or importlib.util.find_spec(f"{package}.{name}"), f"{package} has no {name}"
    if len(ast.parse(init.read_text("utf-8")).body) == 2:  # a docstring and `__all__`
        files = {path.stem for path in init.parent.glob("*.py")} | {
            path.parent.name for path in init.parent.glob("*/__init__.py")
        }
        assert sorted(names) == sorted(files - {"__init__"})


@pytest.mark.parametrize("name", EXPERIMENTS.split())
def test_no_module_hides_a_function(name: str) -> None:
    """Importing a package binds its name in `sordino`: a function of that name can still be called."""
    for module in ("sordino.cli", "sordino.auditing.suite", "sordino.planning.plan"):
        importlib.import_module(module)
    with pytest.raises((UserError, TypeError), match=r"nonsense|'methods'"):
        getattr(sordino, name)(nonsense=1)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in MOVED.items() for name in names])
def test_moved_names_warn_and_work(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} has moved: import {name} from sordino") as told:
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(sordino, name)
    assert told[0].filename == __file__, "the warning names the line that imports"


def test_names_that_were_never_shown_have_not_moved() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from sordino.privacy.accountant import nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sordino.privacy.audit")


def test_old_paths_end_in_time() -> None:
    """The table goes with the version that it names."""
    from sordino.util.moved import LAST
    from sordino.version import VERSION

    assert [int(part) for part in VERSION.split(".")[:2]] < [int(part) for part in LAST.split(".")]
