"""Values as TOML, which Python reads but does not write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def toml_value(value: Any) -> str:
    """A text, path, number, truth value, list or table as TOML. A table's keys without a value are left out; tables in
    a list have a line each."""
    if isinstance(value, Mapping):
        known = [f"{toml_value(key)} = {toml_value(one)}" for key, one in value.items() if one is not None]
        return "{" + ", ".join(known) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        gap = ",\n  " if any(isinstance(one, Mapping) for one in value) else ", "
        return "[" + gap.join(toml_value(one) for one in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    # What JSON writes, TOML reads; but one character that JSON leaves as it is must be escaped.
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False).replace("\x7f", "\\u007f")
