"""Parts of the board's page, each as HTML that is made anew when what it shows has changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sordino.board.look import StoreLook
from sordino.deploy.server.status import WORDS
from sordino.experiment.defaults import in_store
from sordino.report.html import charts, render
from sordino.report.html.charts import Line
from sordino.report.run_list import auc_of, describe_run
from sordino.report.wording import bound_words, epsilon_words, percent
from sordino.store.store import RunRow
from sordino.util.formatting import delta_text

if TYPE_CHECKING:
    from sordino.board.budgets import Budgets

PACKAGE = "sordino.board"
Link = Callable[..., str]
"""Address of a page of the board, by its path and what it is asked for."""
CURVES = {"personal": "personal models", "start": "at the start of a round", "global": "global model"}
"""Accuracies of a run under way, with their names."""
ORDER = ("running", "stopped", "failed", "done", "removed", "imported")
STATES = {"running": "under way", "done": "done", "stopped": "stopped", "failed": "failed"}


def template(name: str, /, **values: Any) -> Markup:
    """Render a template of the board."""
    return Markup(render(name, PACKAGE, **values))


def version_of(html: str) -> str:
    """Digest of a part, by which a page knows whether it has it already."""
    return hashlib.blake2b(html.encode(), digest_size=8).hexdigest()


def store_parts(look: StoreLook, budgets: Budgets | None, current: bool, link: Link) -> dict[str, Markup]:
    """Parts of the page of a store, by their identifiers.

    Args:
        look: The store.
        budgets: Sums over its runs; None where they are not known yet.
        current: Whether these are sums over the runs of this look.
        link: Makes addresses.
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(look.read)) if look.read else None
    return {
        "head": template("head.html", counts=_counts(look), problem=look.problem, when=when),
        "now": template("now.html", runs=[run_under_way(row, look, link) for row in look.running]),
        "budgets": template("budgets.html", budgets=_bars(budgets), current=current, rows=len(look.rows)),
        "studies": template("studies.html", studies=look.studies, link=link),
        "runs": template("runs_list.html", runs=[_listed(row, link) for row in look.rows], binary=_binary(look.rows)),
    }


def _counts(look: StoreLook) -> list[str]:
    found = {state: sum(row.state == state for row in look.rows) for state in ORDER}
    told = [f"{number:,} {STATES.get(state, state)}" for state, number in found.items() if number]
    return [f"{len(look.rows):,} run{'' if len(look.rows) == 1 else 's'}: {told[0]}", *told[1:]] if told else []


def run_under_way(row: RunRow, look: StoreLook, link: Link) -> dict[str, Any]:
    """Template values of an unfinished run: progress, curves, what it has cost so far, and its sites."""
    rounds = look.curves.get(row.run, [])
    key = f"epsilon_{row.configuration.get('protect_from')}"
    charged = [one[key] for one in rounds if one.get(key) is not None]
    left = (row.rounds - row.rounds_done) * row.seconds / row.rounds_done if row.rounds_done else None
    planned = (row.planned or {}).get("epsilon")
    return {
        "run": row.run,
        "href": link("run", name=row.run),
        "method": row.method,
        "data": row.configuration.get("data"),
        "done": row.rounds_done,
        "rounds": row.rounds,
        "left": None if left is None or row.state != "running" else _duration(left),
        "curve": _curve(rounds),
        "charged": bound_words(charged[-1]) if charged else None,
        "planned": None if planned is None else epsilon_words(planned),
        "view": row.configuration.get("protect_from"),
        "unit": str(row.unit),
        "sites": _sites(look.deployed.get(row.run), row),
    }


def _curve(rounds: Sequence[Mapping[str, Any]]) -> Markup:
    drawn = []
    for place, (key, name) in enumerate(CURVES.items()):
        points = [(one["round"] + 1, one[key]) for one in rounds if one[key] is not None]
        drawn.append(Line.through(points, name, place))
    return charts.lines(
        [line for line in drawn if line.x], "Accuracy so far", "round", charts.percent, lambda v: f"{100 * v:.1f}"
    )


def _sites(status: Mapping[str, Any] | None, row: RunRow) -> dict[str, Any] | None:
    """Template values of a deployment's sites and of the question that they are asked."""
    if status is None:
        return None
    asked = status["question"]
    rows = [
        {**one, "words": WORDS.get(one["standing"], one["standing"])}
        for one in status["sites"]  # type: ignore[call-overload]
    ]
    answered = sum(one["standing"] == "answered" for one in rows)
    words = "No question has been asked yet."
    if asked is not None:
        again = f", attempt {asked['attempt']}" if asked["attempt"] > 1 else ""
        words = (
            f"Round {asked['round']} of {row.rounds} ({asked['step']}{again}): {answered} of {len(rows)} sites have "
            f"answered, and at least {status['least']} must."
        )
    return {"rows": rows, "words": words, "live": row.state == "running"}


def _bars(budgets: Budgets | None) -> dict[str, Any] | None:
    """Template values of the sums over runs."""
    if budgets is None:
        return None
    found = [
        {
            "title": f"{one.data}: epsilon {epsilon_words(one.epsilon)} for one {one.unit}",
            "bar": charts.budget(
                one.epsilon, one.limit, f"{one.data}: epsilon {epsilon_words(one.epsilon)} for one {one.unit}"
            ),
            "sentences": one.sentences,
        }
        for one in budgets.found
    ]
    return {"found": found, "problem": budgets.problem}


def _binary(rows: Sequence[RunRow]) -> bool:
    return any(auc_of(row) is not None for row in rows)


def _listed(row: RunRow, link: Link) -> dict[str, Any]:
    """Template values of a run in the list."""
    told = describe_run(row, {})
    settings = [f"{key}={value}" for key, value in (told["set"] or {}).items()]
    settings += [f"personal={told['personal']}"] if told["personal"] not in (None, "own") else []
    finished = "epsilon" in (row.summary or {})
    cost = epsilon_words(told["epsilon"]) if finished else "–"
    if not finished and told["epsilon"] is not None:
        cost = f"{epsilon_words(told['epsilon'])} as planned"
    elif finished and told["budget"] is not None:
        cost += f" of {told['budget']:g}"
    return {
        **{key: told[key] for key in ("run", "method", "state", "data", "seed")},
        "words": STATES.get(row.state, row.state)
        + (f" after {row.rounds_done} of {row.rounds} rounds" if row.state in ("stopped", "failed") else ""),
        "settings": ", ".join(settings),
        "accuracy": percent(told["accuracy"]) if told["accuracy"] is not None else "",
        "auc": "" if told["auc"] is None else f"{told['auc']:.3f}",
        "cost": cost,
        "date": told["date"].replace("T", " ")[:16],
        "href": link("run", name=row.run),
        "pages": [] if row.gone else [(page, link(page, name=row.run)) for page in ("statement", "ledger")],
    }


def run_parts(row: RunRow, look: StoreLook, folder: Path, link: Link) -> dict[str, Markup]:
    """Parts of the page of a run that has no result yet."""
    again = f"sordino resume {row.run}{in_store(folder)}"
    if row.run in look.deployed:
        again = f"sordino serve --resume {row.run}{in_store(folder)}"
    state = STATES.get(row.state, row.state)
    told = run_under_way(row, look, link)
    return {"run": template("one_run.html", one=told, state=state, again=again, failed=row.failed, link=link)}


def _duration(seconds: float) -> str:
    """Duration in words, rounded so that it does not change with every look."""
    if seconds < 90:
        return "less than two minutes"
    if seconds < 5400:
        return f"about {round(seconds / 60):d} minutes"
    return f"about {seconds / 3600:.1f} hours"


RULES = {
    "data": "records",
    "label": "column that is predicted",
    "unit": "unit that is protected",
    "max_epsilon": "most that all runs may cost together (epsilon)",
    "max_delta": "delta of that epsilon",
    "min_cohort": "fewest sites in a sum",
    "colluders": "sites presumed to work with the server",
    "methods": "methods that may run",
    "models": "networks that may be trained",
    "features": "extractors that may run",
    "max_rounds": "most rounds of a run",
    "max_sampling": "most that records are sampled with",
    "clip": "clipping thresholds that are accepted",
    "witnesses": "other sites that must confirm the ledger",
    "allow_trusted_server": "experiments that trust the server",
    "max_misfits": "refusals that may depend on the data",
}
"""Rules that a site's page shows, in words."""


def site_parts(
    status: Mapping[str, Any], rules: Mapping[str, Any], warnings: Sequence[str], link: Link
) -> dict[str, Markup]:
    """Parts of the page of a site.

    Args:
        status: What `sordino site status` shows.
        rules: The site's rules as a document.
        warnings: Sentences on what is wrong.
        link: Makes addresses.
    """
    spent, limit, view = status["spent"][status["promised"]], status["max_epsilon"], status["promised"]
    unknown = status["unwitnessed"] is not None
    figure = "unknown" if unknown else epsilon_words(spent)
    title = f"Epsilon {figure} of {epsilon_words(limit)} for one {status['unit']}"
    wrong = unknown or status["spoiled"] or status["doubtful"] or status["rules_changed"]
    words = (
        f"This site's runs have cost one {status['unit']} an epsilon of {figure} for the {view}, spent or reserved, "
        f"of at most {epsilon_words(limit)} at delta = {delta_text(status['max_delta'])}."
    )
    if unknown:
        words = "What this site's runs have cost is unknown, and it takes part in none."
    bar = "" if unknown else charts.budget(spent, limit, title)
    runs = [{**run, "figures": [percent(run[key]) for key in ("personal", "global")]} for run in status["runs"]]
    rules = {**rules, "clip": " to ".join(f"{one:g}" for one in rules["clip"])}
    shown = [(words, _rule(rules[key])) for key, words in RULES.items() if rules.get(key) is not None]
    observers = {name: "unknown" if unknown else epsilon_words(value) for name, value in status["spent"].items()}
    return {
        "head": template(
            "site_head.html", status=status, warnings=warnings, kind="bad" if wrong else "warn", words=words, bar=bar
        ),
        "observers": template("site_observers.html", observers=observers, view=view),
        "runs": template("site_runs.html", runs=list(reversed(runs))),
        "rules": template("site_rules.html", rules=shown, roster=status["roster"]),
        "ledger": template("site_ledger.html", status=status, statement=link("statement")),
    }


def _rule(value: Any) -> str:
    if isinstance(value, bool):
        return "allowed" if value else "refused"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
