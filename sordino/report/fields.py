"""What stands under a class's fields: their docstrings, which Python itself forgets."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """The docstring of each field of a dataclass or model, its bases' included; none where the source is not here."""
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        if dataclasses.is_dataclass(part) or hasattr(part, "model_fields"):
            found |= _own(part)
    return found


def _own(kind: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, below in itertools.pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = " ".join(below.value.value.split())
    return found
