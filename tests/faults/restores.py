"""Sites of a deployment that are put back from backups: none spends its budget twice."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from faults.trials import Check, Part, kept

ONCE = "a site that is restored spends nothing twice"


def _trial(chance: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """One of those that `python -m restored` makes."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "deploy"))
    from restored import trial

    about, found = trial(folder / "trial", chance.getrandbits(32))
    yield kept(ONCE, not found, f"{about}: {found}")


RESTORES = Part("restores", (ONCE,), 20, _trial)
