"""How a site stands: what it has spent, and what came of it, for its owner."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sordino.deploy import keys, misfits
from sordino.deploy.book import Book
from sordino.deploy.roster import fingerprint
from sordino.deploy.rules import read_rules
from sordino.deploy.spending import Spending
from sordino.privacy.views import VIEWS


def status(folder: Path) -> dict[str, Any]:
    """What a site has spent and what came of it, for its owner."""
    allowed = read_rules(folder)
    rules = allowed.rules
    with Book(folder) as book:
        entries, head = book.entries(), book.head()
        identity = keys.public_identity(book.known("identity"))
        runs = [_run_status(book, one) for one in book.runs()]
    spent = {view: Spending.of(entries, view) for view in VIEWS}
    figures = {view: one.epsilon(rules.unit, rules.max_delta) for view, one in spent.items()}
    return {
        "name": rules.name,
        "identity": identity.hex(),
        "fingerprint": fingerprint(identity),
        "unit": rules.unit,
        "max_epsilon": _finite(rules.max_epsilon),
        "max_delta": rules.max_delta,
        "promised": allowed.view,
        "spent": {view: _finite(figure) for view, figure in figures.items()},
        "spoiled": next((entry.content["why"] for entry in entries if entry.kind == "spoiled"), None),
        "misfits": sum(entry.kind == misfits.KIND for entry in entries),
        "max_misfits": rules.max_misfits,
        "runs": runs,
        "ledger": {"rows": head.position, "head": head.link.hex()},
    }


def _run_status(book: Book, run: Mapping[str, Any]) -> dict[str, Any]:
    curve = book.curve(run["run"])
    last = curve[-1] if curve else {"personal": None, "start": None}
    return {
        "run": run["run"],
        "method": json.loads(run["experiment"])["method"],
        "client": run["number"],
        "state": run["state"],
        "rounds": len(curve),
        "personal": last["personal"],
        "start": last["start"],
        "global": run["final"],
        "model": run["model"],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
