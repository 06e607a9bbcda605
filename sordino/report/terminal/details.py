"""Terminal reports on a plan, an audit and a site, and the table of a run's ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sordino.auditing.findings import SAID, SURE, Finding, Report, ViewReport
from sordino.deploy.site.rules import RULES_CHANGED
from sordino.planning.plan import PlanForRecords, PlanOfSums
from sordino.privacy.budget.client_level_plan import Plan
from sordino.privacy.release import PROMISED
from sordino.privacy.unit import Unit
from sordino.report.terminal.columns import Column, Fitting
from sordino.report.terminal.metrics import judged_table, own_metrics
from sordino.report.terminal.results import epsilon_text, views_table
from sordino.report.wording import bound_words, neighbour_words, observer_of_figures, percent
from sordino.store.ledger_rows import Account
from sordino.util.formatting import delta_text

SINGLE = 12
"""Most clients that are listed one by one; more are grouped by their budgets."""


def plan_report(plan: Plan | PlanForRecords, protect_from: str) -> RenderableType:
    """Report on a plan."""
    parts = _of_records(plan, protect_from) if isinstance(plan, PlanForRecords) else _of_clients(plan, protect_from)
    parts += [Text(f"Warning: {sentence}", style="yellow") for sentence in plan.warnings]
    parts += [Text(sentence) for sentence in plan.advice]
    return Group(*parts)


def _of_clients(plan: Plan, protect_from: str) -> list[RenderableType]:
    return [
        Text(f"noise multiplier {plan.noise_multiplier:.4g} for the {protect_from}, each round", style="bold"),
        "",
        views_table(plan.epsilon, plan.attack_accuracy),
        Text(f"at delta = {delta_text(plan.delta)}; protects one client"),
        *(Text(sentence) for sentence in neighbour_words(Unit.CLIENT)),
        Text(f"The RDP accountant of the papers would print {epsilon_text(plan.rdp_epsilon)}.", style="dim"),
        "",
    ]


def _of_records(plan: PlanForRecords, protect_from: str) -> list[RenderableType]:
    replaced, observer = epsilon_text(plan.epsilon_replace_one), observer_of_figures(plan.epsilon, protect_from)
    whose = "" if observer is None else f" for the {observer}"
    head = f"noise multiplier {plan.noise_multiplier:.4g} for each gradient, median over clients"
    if plan.sums is not None:
        head = f"noise multiplier {plan.sums.noise_multiplier:.4g} for the {protect_from}, each round"
    return [
        *(Text(f"{sentence}\n") for sentence in (plan.chosen,) if sentence),
        Text(head, style="bold"),
        *(Text(sentence) for sums in (plan.sums,) if sums for sentence in _sums_words(sums, plan)),
        "",
        views_table(plan.epsilon, plan.attack_accuracy),
        Text(
            f"at delta = {delta_text(plan.delta)}; protects one {plan.unit} of the client that spends most"
            + ("" if plan.epsilon_replace_one is None else f"; if one {plan.unit} is replaced by another: at most ")
            + ("" if plan.epsilon_replace_one is None else f"{replaced}{whose}")
        ),
        *(Text(sentence) for sentence in neighbour_words(Unit(plan.unit), plan.epsilon_rows, observer)),
        "",
        _clients_table(plan.clients, plan.unit),
    ]


def _sums_words(sums: PlanOfSums, plan: PlanForRecords) -> list[str]:
    """Sentences on the noise that clients share, and on what a run takes."""
    unit = plan.unit
    which = f"all {unit}s" if sums.sampling == 1 else f"each {unit} with probability q = {sums.sampling:g}"
    whose = "all of it, because it is planned against the server"
    if sums.guaranteed_shares > 1:
        whose = f"its share of {sums.guaranteed_shares} that are guaranteed"
    words = [
        f"T = {sums.rounds} rounds of one sum each, over {which}.",
        f"Each of {len(plan.clients)} clients adds noise of standard deviation {sums.noise_of_client:.4g} C to its "
        f"message ({whose}); C is the threshold of a {unit}'s gradient.",
    ]
    words += [
        f"{percent(one['share'])} of the budget (of mu^2) pays for the sum {one['release']!r}, which leaves once: each "
        f"entry of it is off by {one['deviation']:.3g} {unit}s (standard deviation), at an epsilon of "
        f"{epsilon_text(one['epsilon'])} alone."
        for one in sums.once
    ]
    seconds = sums.deployment_seconds
    long = f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    return [*words, f"On real machines it takes about {long}, at about a second a round."]


def _clients_table(clients: Sequence[dict[str, Any]], unit: str) -> RenderableType:
    """Table of each client's noise, or, of many clients, of the noise at each budget."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for number, client in enumerate(clients):
        groups.setdefault(number if len(clients) <= SINGLE else client["budget"], []).append(client)
    columns = [
        *(Column("clients"), Column(f"{unit}s", 2), Column("budget"), Column("epsilon")),
        *(Column("noise", 1), Column("steps a round", 4), Column("rounds", 3)),
    ]
    rows = []
    for group in groups.values():
        budget = group[0]["budget"]
        rows.append(
            [
                group[0]["client"] if len(clients) <= SINGLE else str(len(group)),
                _span(group, "records", "{:,}"),
                "\u2013" if budget is None else f"{budget:g}",
                _span(group, "epsilon", ""),
                _span(group, "noise_multiplier", "{:.3g}"),
                _span(group, "steps", "{}"),
                _span(group, "turns", "{}"),
            ]
        )
    heading = "client" if len(clients) <= SINGLE else "clients"
    return Fitting([Column(heading, left=len(clients) <= SINGLE), *columns[1:]], rows)


def _span(group: Sequence[dict[str, Any]], key: str, form: str) -> str:
    """Smallest and largest value of a group, or the only one."""
    values = [float("inf") if client[key] is None else client[key] for client in group]
    ends = [epsilon_text(end) if key == "epsilon" else form.format(end) for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def audit_report(report: Report) -> RenderableType:
    """Report on an audit: the verdict for each observer, and why."""
    name = report.called or report.method
    head = f"{name} ({report.variant}), protecting one {report.unit}, delta = {delta_text(report.delta)}"
    parts: list[RenderableType] = [Text(head, style="bold")]
    parts += [Text(sentence, style="dim") for sentence in neighbour_words(report.unit)]
    for name, view in report.views.items():
        said = f"{name}: {_sentence(view, report.against(name))}"
        parts.append(Text(said, style="bold red" if report.refutes(name) else ""))
    for finding in report.findings:
        parts.append(
            Text(f"Tier {finding.tier}, {finding.name}: {finding.sentence}", style="red" if finding.refuted else "")
        )
    parts.append(Text(f"{report.trials:,} trials, {report.seconds:.1f} s", style="dim"))
    return Group(*parts)


def _sentence(view: ViewReport, against: Sequence[Finding]) -> str:
    """Sentence on one observer: bound, claim, verdict, and the attack or findings behind it.

    A bound at 95 % may lie above a true claim by chance. The bound at 99.9 %, which decides, then stands beside it.
    """
    if math.isinf(view.claimed):
        return "nothing is claimed: epsilon is infinite."
    said, verdict = f"audit at {_percent(SAID)}: epsilon >= {bound_words(view.bound)}", "consistent"
    if view.refuted or against:
        verdict = f"REFUTED at {_percent(SURE)}"
    elif view.bound > view.claimed:
        said += f", at {_percent(SURE)}: epsilon >= {bound_words(view.surely)}"
        verdict = f"consistent at {_percent(SURE)}"
    if against and not view.refuted:
        by = ", ".join(dict.fromkeys(f"tier {one.tier}: {one.name}" for one in against))
    else:
        by = "" if view.best is None else view.best.name
    said += f"; claimed <= {epsilon_text(view.claimed)}"
    if view.true is not None:
        said += f" as published, <= {epsilon_text(view.true)} by the ledger"
    return f"{said}; {verdict}{f' ({by})' if by else ''}."


def _percent(confidence: float) -> str:
    return f"{100 * confidence:g} %"


PINNED = (
    "Sites that may be in a cohort with it (compare with what their owners told you, not with what the server says):"
)
NOBODY = "No roster is pinned in site.toml: the server could invent sites, so this site counts on nobody else's noise."
MISFITS = (
    "This site refuses every experiment: it has told servers too often that their experiment did not fit its data "
    "(site.log says why). Raise max_misfits in site.toml to let it give more such answers."
)


def times(count: int) -> str:
    """Number of times in words."""
    return "once" if count == 1 else f"{count} times"


DOUBTFUL = (
    "Its owner has accepted this ledger without a witness: its budget counts as used up until the other sites of the "
    "roster confirm the ledger, which they are asked for at the next question."
)
UNWITNESSED = "What this site has spent is unknown, and it does not open:"


def site_report(status: Mapping[str, Any]) -> RenderableType:
    """Report on a site: its spending, runs and models."""
    head = Text(f"{status['name']}  {status['fingerprint']}", style="bold")
    spent = Table("observer", "epsilon spent", box=None, padding=(0, 2, 0, 0))
    spent.columns[1].justify = "right"
    for view, epsilon in status["spent"].items():
        spent.add_row(view, "unknown" if status["unwitnessed"] else epsilon_text(epsilon))
    limit = epsilon_text(status["max_epsilon"])
    bound = (
        f"at most {limit} for the {status['promised']} over all runs, at delta = {status['max_delta']:.3g}; "
        f"protects one {status['unit']}"
    )
    parts: list[RenderableType] = [head, "", spent, Text(bound)]
    parts += [Text(sentence) for sentence in neighbour_words(Unit(status["unit"]))]
    parts += ["", Text(NOBODY if status["roster"] is None else PINNED)]
    parts += [Text(f"  {name}  {digits}") for name, digits in (status["roster"] or {}).items()]
    if status["spoiled"]:
        parts.append(Text(f"This site takes part no more: {status['spoiled']}", style="red"))
    if status["unwitnessed"]:
        parts.append(Text(f"{UNWITNESSED} {status['unwitnessed']}", style="red"))
    if status["rules_changed"]:
        parts.append(Text(RULES_CHANGED, style="red"))
    elif status["rules_changes"]:
        parts.append(
            Text(f"Its rules have changed {times(status['rules_changes'])} since it was made.", style="yellow")
        )
    if status["doubtful"]:
        parts.append(Text(DOUBTFUL, style="red"))
    if status["misfits"] >= status["max_misfits"]:
        parts.append(Text(MISFITS, style="red"))
    parts += ["", _runs(status["runs"]) if status["runs"] else Text("This site has not taken part in a run yet.")]
    measured = [run for run in status["runs"] if run["metrics"] is not None]
    judged = status.get("judgement")
    if judged is not None:
        parts += [judged_table({"own": judged}), *(Text(note, style="yellow") for note in judged["notes"])]
    else:
        parts += [own_metrics(run["metrics"], run["positive"]) for run in measured[-1:]]
    parts += [Text(f"Model: {run['model']}", style="dim") for run in status["runs"] if run["model"] is not None]
    ledger = status["ledger"]
    parts.append(Text(f"Ledger: {ledger['rows']} rows, head {ledger['head'][:16]}", style="dim"))
    parts.append(Text(f"Code: {status['package']}", style="dim"))
    parts.append(Text("Accuracies are those of this site's own test records; they stay here.", style="dim"))
    return Group(*parts)


def check_report(found: Mapping[str, Any]) -> RenderableType:
    """Report on an experiment that a site would take part in: its records, what leaves and the cost."""
    records, unit = found["records"], found["unit"]
    declared, counted = found["records_declared"], "for training" if unit != Unit.PERSON else "persons in training"
    persons = f" (of {records['persons']:,} persons)" if "persons" in records else ""
    parts = [
        f"{found['site']} would take part, in at most {found['rounds']:,} rounds.",
        f"Its records: {records['train']:,} for training{persons}, {records['test']:,} for testing"
        + (f"; the experiment declares about {declared:,} {counted}." if declared is not None else "."),
    ]
    if found["sampling"] is not None:
        one = "person in training" if unit == Unit.PERSON else "training record"
        parts.append(f"Each {one} enters a sum over all sites with probability {found['sampling']:g}.")
    limit = f"at most {epsilon_text(found['max_epsilon'])} for the {found['promised']} over all runs"
    before = f"{epsilon_text(found['spent'])} is spent or reserved so far"
    if found["epsilon"] is None:
        parts.append(f"Each question is charged as it comes and protects one {unit}: {limit}; {before}.")
    else:
        each = ", ".join(f"{epsilon_text(value)} for the {view}" for view, value in found["epsilon"].items())
        parts.append(f"The run costs one {unit} an epsilon of {each}, at delta = {delta_text(found['delta'])}.")
        parts.append(f"The site's rules: {limit}; {before}.")
    return Text("\n".join(parts))


def _runs(runs: list[Mapping[str, Any]]) -> Table:
    table = Table("run", "state", "rounds", "personal", "start", "global")
    table.columns[0].no_wrap = True
    for run in runs:
        figures = [percent(run[name]) for name in ("personal", "start", "global")]
        table.add_row(run["name"], run["state"], str(run["rounds"]), *figures)
    return table


def site_ledger_table(document: Mapping[str, Any]) -> Table:
    """Table of a site's ledger (`deploy.site.verify.ledger_documents`): what left for each run, and how often."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("run", "what left"):
        table.add_column(name, overflow="fold")
    for name in ("times", "rounds"):
        table.add_column(name, justify="right")
    table.add_column("covered by noise", overflow="fold")
    rows = [row for row in document["rows"] if row["kind"] == "release"]
    for run, release in dict.fromkeys((row["run"], row["release"]) for row in rows):
        mine = [row for row in rows if (row["run"], row["release"]) == (run, release)]
        reasons = list(dict.fromkeys(row["not_covered"] for row in mine if row["not_covered"]))
        rounds = str(len({row["round"] for row in mine}))
        table.add_row(run, release, str(len(mine)), rounds, "no: " + "; ".join(reasons) if reasons else "yes")
    return table


def ledger_table(account: Account) -> Table:
    """Table of what left, one line per kind of release: number of rounds and clients, and most by one client."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("step", "what left"):
        table.add_column(name, overflow="fold")
    for name in ("times", "rounds", "clients", "most by one client"):
        table.add_column(name, justify="right")
    table.add_column("covered by noise", overflow="fold")
    rows = [row for row in account.ledger.rows if not row.exposed and row.pool != PROMISED]
    for step, release in dict.fromkeys((row.step, row.release) for row in rows):
        mine = [row for row in rows if (row.step, row.release) == (step, release)]
        each = Counter(client for row in mine for client in row.clients().tolist())
        reasons = list(dict.fromkeys(row.reason for row in mine if row.reason))
        table.add_row(
            *(step, release, str(len(mine)), str(len({row.round for row in mine})), str(len(each))),
            str(max(each.values(), default=0)),
            "no: " + "; ".join(reasons) if reasons else "yes",
        )
    return table
