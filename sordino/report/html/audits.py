"""Page of an audit: bounds beside claims, and how the attacks arrived at them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sordino.errors import UserError
from sordino.privacy.unit import Unit
from sordino.report.html import charts, render
from sordino.report.html.charts import Line, number
from sordino.report.wording import bound_words, epsilon_words, neighbour_words


def is_audit(document: Mapping[str, Any]) -> bool:
    """Whether a JSON document is what `sordino audit --json` prints."""
    return isinstance(document.get("views"), Mapping) and "findings" in document


def audit_page(document: Mapping[str, Any], path: Path) -> str:
    """Write an audit that was read from a file as one HTML page."""
    told = audit_context(document, path)
    return render("audit.html", title=told["title"], audit=told)


def audit_context(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Template values of an audit that was read from a file."""
    try:
        return _context(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{path} is not what `sordino audit --json` prints.") from error


def _context(document: Mapping[str, Any]) -> dict[str, Any]:
    variant = document.get("variant", "sound")
    name = document.get("called", document["method"])
    return {
        "title": f"Audit of {name}" + ("" if variant == "sound" else f" ({variant})"),
        "unit": document["unit"],
        "compared": " ".join(neighbour_words(Unit(document["unit"]))),
        "delta": document["delta"],
        "answer": _answer(document["views"]),
        "bars": Markup("").join(_bar(name, view) for name, view in document["views"].items()),
        "views": [_view(name, view) for name, view in document["views"].items()],
        "findings": [_finding(one) for one in document["findings"]],
        "refuted": any(view["refuted"] for view in document["views"].values()),
    }


def _answer(views: Mapping[str, Any]) -> str:
    """First sentence: whether a claim is refuted, or how near the attacks came."""
    wrong = [name for name, view in views.items() if view["refuted"]]
    if wrong:
        name = wrong[0]
        view, more = views[name], f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return (
            f"A claim is refuted: for the {name}{more} epsilon is at least {bound_words(view['bound'])}, and not at "
            f"most {epsilon_words(view['claimed'])} as claimed."
        )
    name, view = max(views.items(), key=lambda one: _shown(one[1]))
    return (
        f"The claims are consistent with every attack: the strongest, of the {name}, shows that epsilon is at least "
        f"{bound_words(_shown(view))}, where at most {epsilon_words(view['claimed'])} is claimed."
    )


def _shown(view: Mapping[str, Any]) -> float:
    """Bound on which a verdict rests: at the higher confidence where the usual one lies above a claim that stands."""
    return float((view["surely"]["bound"] if _surely(view) else view["bound"]) or 0.0)


def _bar(name: str, view: Mapping[str, Any]) -> Markup:
    """Bar from zero to what the attacks show, on an axis up to the claim."""
    title = f"{name}: at least {bound_words(_shown(view))}, claimed at most {epsilon_words(view['claimed'])}"
    return charts.budget(_shown(view), view["claimed"], title, "claimed", bool(view["refuted"]))


def _view(name: str, view: Mapping[str, Any]) -> dict[str, Any]:
    drawn = view.get("pictures") or {}
    found = [draw(drawn[key], name, view) for key, draw in DRAWN.items() if drawn.get(key)]
    return {
        "name": name,
        "claimed": epsilon_words(view["claimed"]),
        "true": epsilon_words(view["true"]) if "true" in view else None,
        "bound": bound_words(view["bound"]),
        "confidence": f"{100 * view['confidence']:g}%",
        "refuted": bool(view["refuted"]),
        "surely": _surely(view),
        "pictures": [picture for picture in found if picture],
    }


def _surely(view: Mapping[str, Any]) -> str:
    """Bound at the higher confidence that decides, where the bound at the usual one lies above a claim that is not
    refuted."""
    claimed, bound, surely = view["claimed"], view["bound"], view.get("surely")
    if view["refuted"] or not surely or claimed is None or bound is None or bound <= claimed:
        return ""
    return f"at {100 * surely['confidence']:g}%, where it is at least {bound_words(surely['bound'])}"


def _finding(one: str | Mapping[str, Any]) -> dict[str, Any]:
    """Template values of a finding: a sentence, or a table with one."""
    if isinstance(one, str):
        return {"sentence": one, "refuted": False, "found": ""}
    found = ", ".join(
        str(part) for part in (f"Tier {one['tier']}" if "tier" in one else "", one.get("name", "")) if part
    )
    return {"sentence": str(one.get("sentence", "")), "refuted": bool(one.get("refuted", False)), "found": found}


def _scores(drawn: Mapping[str, Any], name: str, view: Mapping[str, Any]) -> Markup:
    """Histogram of the attack's scores with its target and without."""
    counts = {"took part": drawn["in"], "did not": drawn["out"]}
    return charts.histogram(drawn["edges"], counts, f"Scores of the attack: {name}", "score")


def _tradeoff(drawn: Mapping[str, Any], name: str, view: Mapping[str, Any]) -> Markup:
    """Curve of false alarms against misses; no attack can come below the claimed curve if the claim is true."""
    attacked = sorted(drawn["attacked"])
    given = [
        Line("the claim permits no less", drawn["false_positives"], drawn["claimed"]),
        Line("the attack reached", [one[0] for one in attacked], [one[1] for one in attacked]),
    ]
    return charts.lines(
        given, f"Misses at a rate of false alarms: {name}", "false alarms", charts.percent, lambda _: ""
    )


def _trials(drawn: Mapping[str, Any], name: str, view: Mapping[str, Any]) -> Markup:
    """Lower bound on epsilon over the number of trials."""
    line = Line("", drawn["trials"], drawn["bound"])
    claimed = [] if view["claimed"] is None else [(float(view["claimed"]), "claimed")]
    return charts.lines([line], f"Epsilon is at least: {name}", "trials", number, bound_words, marks=claimed)


DRAWN = {"scores": _scores, "tradeoff": _tradeoff, "trials": _trials}
"""Function that draws each kind of picture."""
