"""Page of a judgement: how well a site's models do on its own test records, for the site's owner alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sordino.report.statement_blocks import Block, Bullets, Section, StatementPage, Table
from sordino.report.terminal.metrics import JUDGED, figure_with_interval, figures_of, metric_words
from sordino.util.formatting import split_part
from sordino.version import VERSION

if TYPE_CHECKING:  # what sites need may not be installed
    from sordino.deploy.site.judging import SiteJudgement

STAYS = (
    "Nobody but the owner of the site. The figures are of raw test records, and no noise is on them: they must stay "
    "here."
)
TOO_FEW = "too few"


@dataclass(frozen=True)
class JudgementReport:
    """A judgement in the formats of statements (`sordino.report.statement_pages`)."""

    found: SiteJudgement

    def page(self) -> StatementPage:
        """Page for people."""
        found, own = self.found, self.found.own.to_dict()
        models = {"own": own} | ({} if found.shared is None else {"shared": found.shared.to_dict()})
        about = f"Run {found.run}; {own['records']} test records; Sordino {VERSION}"
        sections = [
            Section("All figures", [_figures(models), *([] if found.shared is None else [BOTH])]),
            *([Section("Who is taken for what", _confusion(own))] if own["classes"] else []),
            *_groups(own),
            *([Section("Attention", [Bullets(own["notes"])])] if own["notes"] else []),
        ]
        return StatementPage(
            f"How well the models of {found.site} predict", about, _glance(found.site, own), None, sections
        )

    def document(self) -> dict[str, Any]:
        """Document for machines."""
        return self.found.to_dict()


MOST_NAMED = 4
"""Most classes whose columns are named in full."""
BOTH = (
    "Own: what the site predicts with. Shared: the model of the server, which all sites have; of classes it predicts "
    "the most probable one."
)


def _glance(site: str, own: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Summary that is read in half a minute."""
    records, positive = own["records"], own["positive"]
    known = ", ".join(f"{count} {name!r}" for name, count in own["classes"].items())
    looked = f"What {site} predicts with, on {records} records that were not trained on"
    told = [("What was looked at.", f"{looked}{': ' + known if known else ''}.")]
    if own["classes"]:
        told.append(("How often it is right.", _share(own, "accuracy", "of the records")))
    else:
        told.append(("How well it predicts.", _predicts(own["figures"])))
    if positive is not None:
        told += [
            (f"Who is found ({positive!r}).", _share(own, "recall", f"of the records with {positive!r}")),
            ("How many false alarms.", _alarms(own, positive)),
        ]
    return [*told, ("Who may see this.", STAYS)]


def _predicts(figures: Mapping[str, Any]) -> str:
    """Sentences on the first figure of what is predicted; of several outcomes, on that of each."""
    words = metric_words(figures, JUDGED)
    first = split_part(next(iter(words)))[0]
    found = []
    for name in (name for name in words if split_part(name)[0] == first):
        value, interval = figure_with_interval(name, figures[name])
        within = f"; among many more records anything from {interval} would be no surprise" if interval else ""
        found.append(f"{words[name][:1].upper()}{words[name][1:]}: {value}{within}.")
    return " ".join(found)


def _share(own: Mapping[str, Any], name: str, of: str) -> str:
    """Sentences on a share of records, with its interval in words."""
    figure = own["figures"][name]
    if figure is None:
        return "Too few test records to say."
    return (
        f"In {figure['value']:.0%} {of}. So many records tell it only roughly: among many more, anything from "
        f"{figure['low']:.0%} to {figure['high']:.0%} would be no surprise."
    )


def _alarms(own: Mapping[str, Any], positive: str) -> str:
    """Sentence on the records that are wrongly taken for the class that is looked for."""
    place = list(own["classes"]).index(positive)
    named = [row[place] for row in own["confusion"]]
    wrong = sum(named) - named[place]
    if not sum(named):
        return f"None: it takes no record for {positive!r}."
    return f"Of {sum(named)} records that it takes for {positive!r}, {wrong} are something else."


def _figures(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """Table of all figures of each model, with 95 % intervals."""
    first = next(iter(models.values()))
    head = ["figure", *(column for name in models for column in (name, f"{name}: 95 % interval"))]
    told = metric_words(first["figures"], JUDGED, first["positive"])
    return Table(head, [[words, *figures_of(name, models)] for name, words in told.items()])


def _confusion(own: Mapping[str, Any]) -> list[Block]:
    """Number of records of each class by prediction, and the threshold."""
    names = list(own["classes"])
    rows = [[name, *map(str, row)] for name, row in zip(names, own["confusion"], strict=True)]
    few = len(names) <= MOST_NAMED
    table = Table(["what it is", *(f"taken for {name}" if few else name for name in names)], rows)
    if own["threshold"] is None:
        return [
            *([] if few else ["A row is what records are, a column what they are taken for."]),
            table,
            "The most probable class is predicted. `sordino site report` with `--operating-point` changes that.",
        ]
    return [table, f"{own['positive']!r} is predicted from a probability of {own['threshold']:.3f} on."]


def _groups(own: Mapping[str, Any]) -> list[Section]:
    """Figures of the groups by the columns that are categories, the worst first."""
    if not own["groups"]:
        return []
    worst = own["worst"]
    rows = [
        [
            f"{one['column']} = {one['value']}" + (" (worst)" if one == worst else ""),
            str(one["records"]),
            *(" (".join(figure_with_interval(name, one[name])) + ")" if one[name] else TOO_FEW for name in GROUPED),
        ]
        for one in sorted(own["groups"], key=lambda one: one != worst)
    ]
    return [Section("Groups", [Table(["group", "records", *GROUPED.values()], rows)])]


GROUPED = {"accuracy": "accuracy", "auc": "AUC", "recall": "recall"}
