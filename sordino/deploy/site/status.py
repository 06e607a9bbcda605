"""Status of a site for its owner: what it has spent, what came of it, and which refusals it gave."""

from __future__ import annotations

import contextlib
import json
import math
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sordino.deploy.protocol import keys
from sordino.deploy.protocol.roster import fingerprint
from sordino.deploy.site.ledger import Book, Entry, noted_last
from sordino.deploy.site.rules import Allowed, RefusedError, read_rules
from sordino.deploy.site.spending import Spending
from sordino.errors import UserError
from sordino.privacy.unit import protection
from sordino.privacy.views import VIEWS
from sordino.trained.models import Models, models_in
from sordino.util.files import KeptFile

KIND = "misfit"


@contextlib.contextmanager
def telling(book: Book, allowed: Allowed, about: str) -> Iterator[None]:
    """Where something looks at the data; `about` is what was asked, so that the same question is counted once."""
    entries = book.entries()
    told = {entry.content["about"] for entry in entries if entry.kind == KIND}
    this = f"{about} {noted_last(entries, 'data')}"
    if this not in told and len(told) >= allowed.rules.max_misfits:
        raise RefusedError("misfits", f"max_misfits is {allowed.rules.max_misfits}")
    try:
        yield
    except Exception as error:
        if this not in told:
            with book.transaction():
                book.append([Entry(KIND, {"about": this})])
        if isinstance(error, RefusedError):
            raise
        raise RefusedError("failed", traceback.format_exc()) from error


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
        "misfits": sum(entry.kind == KIND for entry in entries),
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
