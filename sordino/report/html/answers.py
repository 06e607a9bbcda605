"""First sentence and first picture of a page: what came out, before everything that leads to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from sordino.privacy.views import View
from sordino.report.html import charts
from sordino.report.html.charts import Interval
from sordino.report.html.gather import ALONE, Group, PageContent
from sordino.report.wording import epsilon_words, method_name, percent
from sordino.study.compare import ComparisonRow
from sordino.study.verdict import CONFIDENCE, Difference, Sample, difference

MOST_NAMED = 3
"""Most methods that the first sentence names beside the best one."""


def answer(told: PageContent) -> str:
    """First sentence of the page."""
    if len(told.groups) == 1:
        return _answer_of_run(told.groups[0], told.comparison.rows[0])
    return " ".join([*told.verdict[:1], *_answers_of_units(told)])


def forest(told: PageContent) -> list[Markup]:
    """Differences of every contender from training alone and from the best method, with their intervals."""
    rows = _ranked(told)
    if len(told.groups) < 2 or not rows:
        return []
    view = _view(told)
    free = [row for row in rows if row.epsilon[view] == 0]
    alone = [(row, _from_alone(told, row)) for row in rows if row not in free]
    against = [_interval(row, found, view) for row, found in alone if found is not None]
    from_best = [_interval(row, _from_best(told, row), view) for row in rows]
    title = f"Points of accuracy against {{}}, with {CONFIDENCE:.0%} intervals over seeds"
    if all(row.seeds < 2 for row in rows):
        title = "Points of accuracy against {}; from one seed, so chance is not ruled out"
    found = [charts.forest(against, title.format("training alone"))]
    units = {row.unit for row in rows if row.epsilon[view]}
    best = "the best method" if len(units) < 2 else "the best method that protects the same"
    return [one for one in [*found, charts.forest(from_best, title.format(best))] if one]


def found_of_class(group: Group) -> tuple[str, float] | None:
    """Class that is looked for, and the share of its records that the clients' models find; None where no class was
    declared or nothing is known."""
    known = [
        (run.summary.positive, run.summary.metrics["recall"].mean)
        for run in group.runs
        if run.summary.metrics and run.summary.positive is not None and "recall" in run.summary.metrics
    ]
    values = [value for _, value in known if value is not None]
    return (str(known[0][0]), float(np.mean(values))) if values and len(values) == len(group.runs) else None


def _answer_of_run(group: Group, row: ComparisonRow) -> str:
    view = _view_of(group)
    figure, found = row.accuracy["personal"], found_of_class(group)
    cost = _cost(row, view)
    if figure is None:
        where = "stay at the sites" if group.first.summary.deployed else "are not known: no client has test records"
        return f"Models were trained by {group.name} {cost}; their accuracies {where}."
    lead = f"The clients' models are right on {percent(figure.mean)} of their own test records"
    if found is not None:
        lead += f" and find {percent(found[1])} of the class {found[0]} (recall)"
    alone = _alone_sample(group)
    against = f", {_against_alone(difference(row.sample(), alone))}" if alone is not None else ""
    return f"{lead}{against}, {cost}."


def _cost(row: ComparisonRow, view: View) -> str:
    epsilon = row.epsilon[view]
    if epsilon is None:
        return "without protection: epsilon is infinite"
    if epsilon == 0:
        return "without spending any privacy"
    return f"at epsilon {epsilon_words(epsilon)} for one {row.unit} ({view})"


def _against_alone(found: Difference) -> str:
    """Clause on a method's difference from training alone."""
    points = f"{abs(100 * found.mean):.1f} points {'more' if found.mean >= 0 else 'less'} than by training alone"
    if found.low is None or found.high is None:
        return f"{points} (one seed, so chance is not ruled out)"
    shown = "" if found.verdict in ("better", "worse") else ", so no difference is shown"
    return f"{points} ({CONFIDENCE:.0%} interval {100 * found.low:+.1f} to {100 * found.high:+.1f}{shown})"


def _answers_of_units(told: PageContent) -> list[str]:
    """One sentence for each unit that methods protect, since their epsilons are not comparable."""
    view, rows = _view(told), _ranked(told)
    private = [row for row in rows if row.epsilon[view]]
    units = list(dict.fromkeys(row.unit for row in private))
    if not rows:
        return ["No accuracy is known, so no method can be called the best."]
    if not private:
        best = rows[0]
        return [f"{method_name(best)} has the best personal accuracy, {_percent(best)}, {_cost(best, view)}."]
    found = [_answer_for([row for row in rows if row.epsilon[view] == 0 or row.unit == unit], told) for unit in units]
    if len(units) == 1:
        return found
    return [f"Protecting one {unit}: {one}" for unit, one in zip(units, found, strict=True)]


def _answer_for(rows: Sequence[ComparisonRow], told: PageContent) -> str:
    """Sentence on methods that protect one unit, and on training alone; the first of them is the best."""
    view = _view(told)
    ranked = [row for row in rows if row.epsilon[view] is not None]
    best, rest = ranked[0], ranked[1:]
    if best.epsilon[view] == 0:
        nearest = next(row for row in rest if row.epsilon[view])
        found = _from_alone(told, nearest)
        against = "" if found is None else f": {_against_alone(found)}"
        return (
            f"No private method is ahead of training alone, which gives {_percent(best)} without spending any privacy; "
            f"{method_name(nearest)} comes nearest {_cost(nearest, view)}{against}."
        )
    recall = found_of_class(next(group for group in told.groups if group.name == best.method))
    classed = "" if recall is None else f" and finds {percent(recall[1])} of the class {recall[0]} (recall)"
    parts = [f"{method_name(best)} has the best personal accuracy, {_percent(best)}{classed}, {_cost(best, view)}"]
    against_alone = _from_alone(told, best)
    if against_alone is not None:
        parts[0] += f": {_against_alone(against_alone)}"
    private = [row for row in rest if row.epsilon[view]]
    near = [row for row in private if (one := _from_best(told, row)) is None or one.verdict != "worse"]
    if private:
        names = [method_name(row) for row in near[:MOST_NAMED]]
        names += [f"{len(near) - MOST_NAMED} more"] if len(near) > MOST_NAMED else []
        named = " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
        parts.append(f"whether it is better than {named} is not shown" if near else "it is better than all others")
    return f"{'; '.join(parts)}."


def _percent(row: ComparisonRow) -> str:
    figure = row.accuracy["personal"]
    return percent(None if figure is None else figure.mean)


def _view_of(group: Group) -> View:
    return group.first.summary.protect_from


def _view(told: PageContent) -> View:
    return _view_of(told.groups[0])


def _ranked(told: PageContent) -> list[ComparisonRow]:
    """Rows with a personal accuracy, the best first."""
    known = [(figure.mean, row) for row in told.comparison.rows if (figure := row.accuracy["personal"]) is not None]
    return [row for _, row in sorted(known, key=lambda one: -one[0])]


def _alone_sample(group: Group) -> Sample | None:
    """Accuracies of training alone on the same records, by seed; None where no such runs are stored."""
    known = {run.summary.seed: run.summary.accuracy["personal"] for run in group.alone}
    reached = {seed: value for seed, value in known.items() if value is not None}
    return Sample(ALONE, reached) if reached and len(reached) == len(group.runs) else None


def _from_alone(told: PageContent, row: ComparisonRow) -> Difference | None:
    """Difference of a method from training alone: a row of the page, or runs of the store on the same records."""
    free = [other for other in told.comparison.rows if other.epsilon[_view(told)] == 0 and other is not row]
    if free and free[0].accuracy["personal"] is not None:
        return _tested(told, row, free[0])
    alone = _alone_sample(next(group for group in told.groups if group.name == row.method))
    return None if alone is None else difference(row.sample(), alone)


def _from_best(told: PageContent, row: ComparisonRow) -> Difference | None:
    """Difference of a method from the best of those that protect the same unit; None for the best one itself."""
    view = _view(told)
    same = [one for one in _ranked(told) if one.epsilon[view] is not None]
    if row.epsilon[view]:
        same = [one for one in same if one.epsilon[view] == 0 or one.unit == row.unit]
    return None if not same or same[0] is row else _tested(told, row, same[0])


def _tested(told: PageContent, row: ComparisonRow, other: ComparisonRow) -> Difference:
    """Difference of two rows as the verdict tested it, in this direction."""
    for one in told.comparison.differences:
        if (one.method, one.against) == (row.method, other.method):
            return one
        if (one.method, one.against) == (other.method, row.method):
            return one.reversed()
    return difference(row.sample(), other.sample())


def _interval(row: ComparisonRow, found: Difference | None, view: View) -> Interval:
    """Line of a picture; the best method has no difference from itself."""
    epsilon = row.epsilon[view]
    note = "no privacy spent" if epsilon == 0 else f"ε {epsilon_words(epsilon)}"
    if found is None:
        return Interval(method_name(row), note, 0.0, None, None, "the best")
    return Interval(method_name(row), note, found.mean, found.low, found.high)
