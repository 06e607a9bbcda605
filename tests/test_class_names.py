"""Names of classes: one word, one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RULES = "a clipping rule, of updates or of records: run identities hold these names"
SHARED = {
    "Fixed": RULES,
    "Median": RULES,
    "Quantile": RULES,
    "Normalised": "a clipping rule, and a schema beside the method `Moments`: identities hold the source of its file",
}
"""Names that two classes may have, and why. A name that runs' identities or stored files hold cannot be changed."""


def homes_of_classes(package: Path) -> dict[str, list[str]]:
    """Files that define each public class name; a name that one file defines twice has it twice."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(package)))
    return homes


def test_a_class_name_has_one_meaning() -> None:
    homes = homes_of_classes(ROOT / "sordino")
    assert len(homes) > 500, "the package's classes were not found"
    doubles = {name: places for name, places in homes.items() if len(places) > 1 and name not in SHARED}
    assert doubles == {}, f"Name one of each otherwise, by a word of the field: {doubles}"


@pytest.mark.parametrize("name", SHARED)
def test_shared_names_are_still_shared(name: str) -> None:
    assert len(homes_of_classes(ROOT / "sordino")[name]) > 1, f"{name} has one class: take it out of SHARED"


def test_doubles_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Page: ...\nclass _Own: ...\n", "utf-8")
    (tmp_path / "other.py").write_text("def make():\n    class Page: ...\nclass _Own: ...\n", "utf-8")
    assert homes_of_classes(tmp_path) == {"Page": ["one.py", "other.py"]}
