"""One page for those who must answer for data: what was trained on whose, what left, who could see it, what that means.

Plain words, and no figure that does not follow from the run's ledger.
"""

from __future__ import annotations

import contextlib
import html
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from sordino.errors import UserError
from sordino.experiment.account import Account
from sordino.experiment.config import Experiment
from sordino.experiment.lifetime import over_runs, sentence
from sordino.experiment.store import RunRow, Store
from sordino.experiment.trained import load_models
from sordino.privacy.accountant import rounded_up
from sordino.report.page import page

WHO = {
    "outsider": "anybody who sees the trained models that are published, and sums over clients",
    "peer": "another client, which also knows its own part of the noise",
    "server": "whoever runs the server, and sees every message of every client",
}
NAMED = 12
"""How many clients are named."""
BAR = 40
"""Characters of a bar in plain text."""


@dataclass(frozen=True)
class Observer:
    """What somebody could have learned."""

    name: str
    who: str
    epsilon: float | None
    """None where there is no bound."""
    attack: float
    """How often the best attack guesses right, of a coin's 0.5."""


@dataclass(frozen=True)
class Leaving:
    """One kind of thing that left clients."""

    name: str
    what: str
    clients: int
    most: int
    """How often from the client that sent it most often."""
    covered: bool


@dataclass(frozen=True)
class Statement:
    """Everything that stands on the page."""

    run: str
    date: str
    version: str
    method: str
    data: str
    clients: list[str]
    others: int
    """Clients beside those that are named."""
    records: int | None
    network: str
    parameters: int
    rounds: int
    classes: list[str]
    simulated: bool
    unit: str
    delta: float
    planned_for: str
    observers: list[Observer]
    leaving: list[Leaving]
    replaced: float | None
    """At record level, the epsilon of a record that is exchanged for another."""
    not_covered: list[str]
    notes: list[str]
    together: str | None
    """What all runs on the same people have come to."""
    head: str
    rows: int


def statement_of(store: Store, run: str) -> Statement:
    """The statement on a finished run."""
    account = Account.of(store, run)
    row, summary = account.row, account.row.summary
    if summary is None:
        raise UserError(f"The run {run!r} is not finished: take it up with `sordino resume {run}`.")
    models = load_models(run, store.folder)
    names = list(models.about.clients)
    total = over_runs(store, row.people, row.unit, summary["delta"])
    return Statement(
        run=run,
        date=datetime.fromtimestamp(row.created, UTC).strftime("%d %B %Y, %H:%M UTC"),
        version=models.about.version,
        method=row.method,
        data=str(row.configuration["data"]),
        clients=names[:NAMED],
        others=max(0, len(names) - NAMED),
        records=summary.get("records"),
        network=models.about.network,
        parameters=summary["parameters"],
        rounds=summary["rounds_done"],
        classes=list(models.about.meaning.classes),
        simulated=not summary.get("deployed", False),
        unit=row.unit,
        delta=summary["delta"],
        planned_for=summary["protect_from"],
        observers=[
            Observer(view, who, summary["epsilon"][view], summary["attack_accuracy"][view]) for view, who in WHO.items()
        ],
        leaving=_leaving(account),
        replaced=summary.get("epsilon_replace_one"),
        not_covered=[one.rstrip(".") + "." for one in summary["not_covered"]],
        notes=summary["notes"],
        together=sentence(total, summary["protect_from"]),
        head=account.head,
        rows=len(account.ledger.rows),
    )


def _leaving(account: Account) -> list[Leaving]:
    """What left, each kind once, in the order in which it first did."""
    described = _described(account.row)
    rows = [row for row in account.ledger.rows if not row.exposed]
    found = []
    for name in dict.fromkeys(row.release for row in rows):
        mine = [row for row in rows if row.release == name]
        each = Counter(client for row in mine for client in row.clients().tolist())
        covered = not any(row.reason for row in mine)
        found.append(Leaving(name, described.get(name, ""), len(each), max(each.values(), default=0), covered))
    return found


def _described(row: RunRow) -> dict[str, str]:
    """What a method says of what it sends; nothing where the method is not there any more."""
    with contextlib.suppress(UserError):
        method = Experiment.make(row.configuration).build_method()
        return {name: release.describe() for step in method.steps().values() for name, release in step.items()}
    return {}


def sentences(found: Statement) -> dict[str, list[str]]:
    """The page as paragraphs, by heading; figures and lists apart."""
    unit = "one client as a whole" if found.unit == "client" else "one record of a client"
    whom = ", ".join(found.clients) + (f" and {found.others} more" if found.others else "")
    records = f" They hold {found.records:,} training records together." if found.records else ""
    how = (
        "This run was a simulation: all data lay on one machine, and this page says what would have left each client."
        if found.simulated
        else "This run was made on the clients' own machines: their records never left them."
    )
    return {
        "What was done": [
            f"A model of the kind {found.network} with {found.parameters:,} parameters was trained to tell "
            f"{_listed(found.classes)} apart, with the method {found.method}, in {found.rounds} rounds, on "
            f"{found.data}, the data of {len(found.clients) + found.others} clients: {whom}.{records}",
            how,
        ],
        "What left each client": [
            "Records never leave a client. What does leave passes one gate and is written into a ledger before it is "
            "sent. What is covered by noise was bounded there, and the noise added."
            if found.leaving
            else "Nothing left any client."
        ],
        "What somebody could learn from it": [
            f"The figures protect {unit}, at delta = {found.delta:.3g}, which is the probability with which more than "
            "epsilon may show. Each observer is taken to know everything else about everybody. The best attack is the "
            f"highest share of right guesses whether {_question(found.unit)}, for whoever can be told best; a coin is "
            f"right in 50 % of cases. The noise was planned against the {found.planned_for}.",
            *_replaced(found),
            *([found.together] if found.together else []),
        ],
    }


def _question(unit: str) -> str:
    return "a client took part" if unit == "client" else "a record was among those trained on"


def _replaced(found: Statement) -> list[str]:
    """What neighbours the figures are for."""
    if found.unit == "client":
        return [
            "They compare the run with one in which that client sends nothing but noise, under the same schedule: who "
            "takes part is not hidden."
        ]
    return [
        "They compare the run with one in which that record is missing. Somebody who must tell one record from another "
        f"in its place sees one removed and one added: epsilon is then at most {_epsilon(found.replaced)}."
    ]


def _epsilon(value: float | None) -> str:
    return "without bound" if value is None else rounded_up(value)


def _attack(accuracy: float) -> str:
    return f"{math.ceil(round(accuracy * 1000, 8)) / 10:.1f} %"


def _listed(names: list[str]) -> str:
    shown = names[:NAMED]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 and not more else ", ".join(shown) + more


def _times(one: Leaving) -> str:
    return f"{one.most} times" if one.most != 1 else "once"


def markdown(found: Statement) -> str:
    """The page as Markdown."""
    parts = [f"# Privacy statement: {found.run}", ""]
    for heading, paragraphs in sentences(found).items():
        parts += [f"## {heading}", ""]
        for paragraph in paragraphs:
            parts += [paragraph, ""]
        if heading.startswith("What left") and found.leaving:
            parts += [
                "| what | how it is made | from a client at most | clients | covered by noise |",
                "|---|---|---|---|---|",
            ]
            parts += [
                f"| {one.name} | {one.what} | {_times(one)} | {one.clients} | {'yes' if one.covered else 'no'} |"
                for one in found.leaving
            ] + [""]
        if heading.startswith("What somebody"):
            parts += ["| observer | who that is | epsilon | best attack |", "|---|---|---:|---:|"]
            parts += [f"| {o.name} | {o.who} | {_epsilon(o.epsilon)} | {_attack(o.attack)} |" for o in found.observers]
            parts += ["", "```", *_bars(found), "```", ""]
    parts += ["## What these figures do not cover", ""]
    parts += [f"- {one}" for one in found.not_covered + _always(found)] + [""]
    if found.notes:
        parts += ["## Notes", "", *(f"- {note}" for note in found.notes), ""]
    parts += ["## How to check it", "", *_check(found), ""]
    return "\n".join(parts)


def _bars(found: Statement) -> list[str]:
    """The best attacks as bars between a coin and certainty."""
    lines = [f"{'':10}50 % (a coin){'100 % (certainty)':>{BAR - 13}}"]
    for one in found.observers:
        length = math.ceil((one.attack - 0.5) * 2 * BAR)
        lines.append(f"{one.name:10}{'#' * length}{'.' * (BAR - length)} {_attack(one.attack)}")
    return lines


def _always(found: Statement) -> list[str]:
    """What no epsilon covers in any run."""
    shown = "Accuracies were measured by the simulation on the clients' raw test records; no client would send them."
    return [
        "A personal model stays at its client; whoever is given it may learn more about that client's records.",
        *([shown] if found.simulated else []),
    ]


def _check(found: Statement) -> list[str]:
    return [
        f"Sordino {found.version}; the run was begun on {found.date}. Its ledger has {found.rows} rows and ends with",
        "",
        f"`{found.head}`",
        "",
        f"`sordino ledger {found.run} --verify` checks that the chain of rows is unbroken and that the figures above "
        "follow from them; `--csv` prints the rows.",
    ]


def hypertext(found: Statement) -> str:
    """The page as one HTML file that needs no network and prints well."""
    parts = [f"<h1>Privacy statement: {_html(found.run)}</h1>"]
    for heading, paragraphs in sentences(found).items():
        parts += [f"<h2>{_html(heading)}</h2>", *(f"<p>{_html(paragraph)}</p>" for paragraph in paragraphs)]
        if heading.startswith("What left") and found.leaving:
            head = ["what", "how it is made", "from a client at most", "clients", "covered by noise"]
            rows = [
                [one.name, one.what, _times(one), str(one.clients), "yes" if one.covered else "no"]
                for one in found.leaving
            ]
            parts.append(_table(head, rows))
        if heading.startswith("What somebody"):
            rows = [[o.name, o.who, _epsilon(o.epsilon), _attack(o.attack)] for o in found.observers]
            parts += [_table(["observer", "who that is", "epsilon", "best attack"], rows), _picture(found)]
    parts += ["<h2>What these figures do not cover</h2>", _list(found.not_covered + _always(found))]
    parts += ["<h2>Notes</h2>", _list(found.notes)] if found.notes else []
    first, _, link, _, check = _check(found)
    parts += [
        "<h2>How to check it</h2>",
        f"<p>{_html(first)} <code>{_html(link.strip('`'))}</code>.</p>",
        f"<p>{_coded(check)}</p>",
        '<p style="margin-top: 3rem; border-top: 1px solid; width: 60%">Place, date, signature</p>',
    ]
    return page(f"Privacy statement: {found.run}", Markup("\n".join(parts)))


def _html(text: Any) -> str:
    return html.escape(str(text))


def _coded(text: str) -> str:
    """A text whose parts in backquotes are code."""
    parts = text.split("`")
    return "".join(f"<code>{_html(part)}</code>" if place % 2 else _html(part) for place, part in enumerate(parts))


def _table(head: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} class="text">{_html(cell)}</{tag}>' for cell in cells) + "</tr>"

    return '<div class="wide"><table>' + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table></div>"


def _list(items: list[str]) -> str:
    return '<ul class="words">' + "".join(f"<li>{_coded(item)}</li>" for item in items) + "</ul>"


def _picture(found: Statement) -> str:
    """The best attacks as bars between a coin and certainty."""
    left, width, row = 90, 420, 34
    height = 30 + row * len(found.observers)
    parts = [
        f'<svg viewBox="0 0 600 {height}" role="img" aria-label="The best attack of each observer" '
        'style="max-width: 38rem; width: 100%; font-size: 13px; fill: var(--ink)">',
        f'<text x="{left}" y="14">50 % (a coin)</text>',
        f'<text x="{left + width}" y="14" text-anchor="end">100 % (certainty)</text>',
    ]
    for place, one in enumerate(found.observers):
        top = 24 + row * place
        length = max(1.0, (one.attack - 0.5) * 2 * width)
        parts += [
            f'<text x="0" y="{top + 16}">{_html(one.name)}</text>',
            f'<rect style="fill: var(--rule)" x="{left}" y="{top}" width="{width}" height="22" rx="3"/>',
            f'<rect class="bar" style="fill: var(--s1)" x="{left}" y="{top}" width="{length:.1f}" height="22" rx="3"/>',
            f'<text x="{left + width + 10}" y="{top + 16}">{_attack(one.attack)}</text>',
        ]
    return "".join(parts) + "</svg>"


FORMATS: dict[str, Callable[[Statement], str]] = {".md": markdown, ".html": hypertext}
"""By the ending of the file."""
