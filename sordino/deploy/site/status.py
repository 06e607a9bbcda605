"""A site's status for its owner: budget spent, runs and their accuracies, refusals that depended on its data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.deploy.protocol import keys
from sordino.deploy.protocol.roster import fingerprint
from sordino.deploy.site.judging import judge_site, run_name, stored_models, stored_point
from sordino.deploy.site.ledger import SiteLedger, last_noted
from sordino.deploy.site.rules import read_rules
from sordino.deploy.site.session import MISMATCH
from sordino.deploy.site.spending import SiteSpending
from sordino.deploy.site.witness import Witness, WitnessError
from sordino.errors import UserError
from sordino.privacy.unit import protection
from sordino.privacy.views import VIEWS
from sordino.trained.models import Models, metrics_in
from sordino.util.files import KeptFile
from sordino.util.package import package_hash


def status(folder: Path, judged: bool = False) -> dict[str, Any]:
    """Status of the site in `folder`, as `sordino site status` shows it; `runs` has one table for each run. Where it is
    to be `judged`, `judgement` is that of the site's model on its test records, with intervals; None where it cannot be
    made, since there is no model, or the site's file is not there.

    Nothing is written, and the site may be open in another process. Where the ledger does not agree with its witness,
    `unwitnessed` says why, and no epsilon is stated: the folder may not know everything that left.
    """
    policy = read_rules(folder)
    rules = policy.rules
    with SiteLedger(folder) as ledger, ledger.snapshot():
        private = ledger.fact("identity")
        identity = keys.public_identity(private)
        unwitnessed = _find_doubt(Witness.of(folder, rules, private), ledger)
        entries, head = ledger.entries(), ledger.head()
        rules_now = policy.digest(ledger.fact("secret"))
        runs = [_run_status(folder, ledger, one) for one in ledger.runs()]
    spent = {view: SiteSpending.of(entries, view) for view in VIEWS}
    figures = {view: one.by_rules(rules) if unwitnessed is None else math.inf for view, one in spent.items()}
    return {
        "name": rules.name,
        "identity": identity.hex(),
        "fingerprint": fingerprint(identity),
        **protection(rules.unit),
        "max_epsilon": _finite(rules.max_epsilon),
        "max_delta": rules.max_delta,
        "promised": policy.view,
        "roster": None if policy.roster is None else {one.name: fingerprint(one.identity) for one in policy.roster},
        "spent": {view: _finite(figure) for view, figure in figures.items()},
        "spoiled": next((entry.content["why"] for entry in entries if entry.kind == "spoiled"), None),
        "unwitnessed": unwitnessed,
        "doubtful": spent[policy.view].doubtful,
        "misfits": sum(entry.kind == MISMATCH for entry in entries),
        "max_misfits": rules.max_misfits,
        "rules_changed": last_noted(entries, "rules") not in (None, rules_now),
        "rules_changes": max(0, sum("rules" in entry.content for entry in entries) - 1),
        "runs": runs,
        "judgement": _judgement(folder) if judged else None,
        "package": package_hash(),
        "ledger": {"rows": head.position, "head": head.link.hex()},
    }


def _find_doubt(witness: Witness, ledger: SiteLedger) -> str | None:
    """Sentence on why the ledger does not agree with its witness; None where it does."""
    try:
        witness.check(ledger)
    except WitnessError as error:
        return str(error)
    return None


def models_at(folder: Path) -> Models:
    """Models that the site in `folder` predicts with, at its operating point: those of the last run that is over."""
    stored = stored_models(folder)
    point = stored_point(folder, stored.digest)
    return stored.models if point is None else replace(stored.models, threshold=point.threshold)


def _judgement(folder: Path) -> dict[str, Any] | None:
    try:
        return judge_site(folder).own.to_dict()
    except UserError:
        return None


def _run_status(folder: Path, ledger: SiteLedger, run: Mapping[str, Any]) -> dict[str, Any]:
    curve = ledger.curve(run["run"])
    last = curve[-1] if curve else {"personal": None, "start": None}
    return {
        "run": run["run"],
        "name": run_name(run["run"]),
        "method": json.loads(run["experiment"])["method"],
        "client": run["number"],
        "state": run["state"],
        "rounds": len(curve),
        "personal": last["personal"] if run["state"] == "open" else run["personal"],
        "start": last["start"],
        "global": run["shared"],
        "model": run["model"],
        **_metrics(folder, run),
    }


def _metrics(folder: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of what the site predicts with since a run, on its own test records, and the class that recall is about;
    None while the run goes on, and where its file of models is gone or damaged."""
    if run["model"] is None:
        return {"metrics": None, "positive": None}
    try:
        path = KeptFile(run["model"], run["digest_of_model"]).check(folder, "The site's model")
        about, figures = metrics_in(path, run["run"])
    except UserError:
        return {"metrics": None, "positive": None}
    task, figures = about.meaning.task, figures[int(run["number"])]
    known = {name: _finite(float(value)) for name, value in zip(task.metrics, figures, strict=True)}
    return {"metrics": known, "positive": task.positive_name}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
