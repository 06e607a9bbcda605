"""How a site stands: what it has spent, and what came of it, for its owner."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sordino.deploy import keys, misfits
from sordino.deploy.book import Book
from sordino.deploy.entries import noted_last
from sordino.deploy.roster import fingerprint
from sordino.deploy.rules import read_rules
from sordino.deploy.spending import Spending
from sordino.errors import UserError
from sordino.experiment.trained import Models, models_in
from sordino.files import KeptFile
from sordino.privacy.views import VIEWS, protection


def status(folder: Path) -> dict[str, Any]:
    """What a site has spent and what came of it, for its owner."""
    allowed = read_rules(folder)
    rules = allowed.rules
    with Book(folder) as book:
        entries, head = book.entries(), book.head()
        identity = keys.public_identity(book.known("identity"))
        rules_now = allowed.digest(book.known("secret"))
        runs = [_run_status(book, one) for one in book.runs()]
    spent = {view: Spending.of(entries, view) for view in VIEWS}
    figures = {view: one.epsilon(rules.unit, rules.max_delta) for view, one in spent.items()}
    return {
        "name": rules.name,
        "identity": identity.hex(),
        "fingerprint": fingerprint(identity),
        **protection(rules.unit),
        "max_epsilon": _finite(rules.max_epsilon),
        "max_delta": rules.max_delta,
        "promised": allowed.view,
        "roster": None if allowed.roster is None else {one.name: fingerprint(one.identity) for one in allowed.roster},
        "spent": {view: _finite(figure) for view, figure in figures.items()},
        "spoiled": next((entry.content["why"] for entry in entries if entry.kind == "spoiled"), None),
        "doubtful": spent[allowed.view].doubtful,
        "misfits": sum(entry.kind == misfits.KIND for entry in entries),
        "max_misfits": rules.max_misfits,
        "rules_changed": noted_last(entries, "rules") not in (None, rules_now),
        "rules_changes": max(0, sum("rules" in entry.content for entry in entries) - 1),
        "runs": runs,
        "package": keys.package_hash(),
        "ledger": {"rows": head.position, "head": head.link.hex()},
    }


def models_at(folder: Path) -> Models:
    """What a site predicts with, of the last of its runs that is over."""
    with Book(folder) as book:
        runs = [run for run in book.runs() if run["model"] is not None]
    if not runs:
        raise UserError(f"The site in {folder} has no model yet: no run that it took part in is over.")
    file = KeptFile(runs[-1]["model"], runs[-1]["digest_of_model"])
    return models_in(file.check(folder, "The site's model"), _name(runs[-1]["run"]))


def _name(run: str) -> str:
    """What the server calls a run."""
    return "".join(one if one.isprintable() else "?" for one in run.rpartition(" ")[0] or run)


def _run_status(book: Book, run: Mapping[str, Any]) -> dict[str, Any]:
    curve = book.curve(run["run"])
    last = curve[-1] if curve else {"personal": None, "start": None}
    return {
        "run": run["run"],
        "name": _name(run["run"]),
        "method": json.loads(run["experiment"])["method"],
        "client": run["number"],
        "state": run["state"],
        "rounds": len(curve),
        "personal": last["personal"] if run["state"] == "open" else run["personal"],
        "start": last["start"],
        "global": run["shared"],
        "model": run["model"],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
