"""Computation of a run's `Summary` when it ends (`summarize`): accuracies, epsilons and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from sordino.data.dataset import FederatedData
from sordino.experiment.blends import Blends
from sordino.experiment.budgeting import beyond_budgets
from sordino.experiment.config import Experiment
from sordino.experiment.hyperparameters import called
from sordino.federation.rounds import gini, mean, worst, worst_tenth
from sordino.federation.run_state import Ending
from sordino.learning.metrics import ClientMetrics
from sordino.method import Method
from sordino.parts.blending import MEMBERS
from sordino.privacy.ledger import Ledger
from sordino.privacy.unit import Unit
from sordino.privacy.views import View
from sordino.store.run_files import RunFiles
from sordino.store.run_summary import Accuracies, Against, Fairness, Metric, MixtureFigures, RecordFigures, Summary
from sordino.store.spending import spending_of_ledger, whole
from sordino.tasks import Task
from sordino.terms import Terms
from sordino.util.formatting import finite_or_none, round_up

ENOUGH = 10
"""Least number of test records at which a model that gives them all one class is worth a warning."""
LEAST = 5
"""Least number of test records of a class from which on a client's recall and AUC say anything."""
NAMED = 10
"""Number of clients that a sentence names."""
MADE = {"blend": "blend", "recalibrate": "recalibrated"}
"""By the experiment's key `personal`, the name of the accuracy of what clients predict with."""
SAME = 1e-9
"""Difference below which two accuracies are the same."""


def summarize(
    run: str,
    terms: Terms,
    ending: Ending,
    run_files: RunFiles,
    names: Sequence[str],
    own: np.ndarray,
    blends: Blends | None = None,
    reached: ClientMetrics | None = None,
) -> Summary:
    """Sum up a run that has ended.

    Args:
        run: name of the run.
        terms: the simulation, or the terms of the deployment.
        ending: state of the server at the end.
        run_files: ledger, duration and traffic of the run.
        names: names of the clients, in the order of their indices.
        own: (clients,) accuracies of the method's own personal models; NaN where unknown.
        blends: blended or recalibrated models, where clients make such.
        reached: metrics of what clients predict with; None in a deployment.
    """
    method, schedule, experiment, data = terms.method, terms.schedule, terms.experiment, terms.data
    personal = own if blends is None else blends.figures(blends.task.score)[:, 0]
    task = terms.learner.task
    charged, delta = run_files.ledger, terms.budget.delta
    # What answers may have cut short is covered by the whole plan alone (privacy-loss odometers are no guarantee).
    ledger = charged if ending.as_scheduled else whole(terms, charged)
    epsilon = _by_view(ledger, delta)
    so_far = None if ledger is charged else _by_view(charged, delta)
    measured = None if data is None else reached
    plan = terms.allowance.records
    mixture = _mixture_figures(experiment.personal, blends, own, ending.shared)
    return Summary(
        run=run,
        method=experiment.method,
        called=called(dict(experiment)),
        variant=method.variant,
        privacy=method.privacy,
        rounds=schedule.rounds,
        rounds_done=ending.now.rounds,
        accuracy=_accuracies(personal, run_files.start, ending.shared),
        epsilon=epsilon,
        attack_accuracy=ledger.attack_accuracy(),
        delta=delta,
        unit=terms.unit,
        neighbours=terms.unit.neighbours,
        protect_from=experiment.protect_from,
        noise_multiplier=terms.budget.multiplier or None,
        not_covered=ledger.reasons() + terms.disclosed + _note_repeated_questions(ledger),
        spent={**spending_of_ledger(ledger), "deal": run_files.deal},
        upload_bytes=run_files.uploaded,
        clients=schedule.clients,
        parameters=terms.learner.layout.size,
        seed=experiment.seed,
        notes=[
            *terms.notes,
            *_notes_on_cost(ledger, terms, ending, names),
            *_whole_plan(experiment.protect_from, epsilon, so_far),
            *_one_class(measured, data, names),
            *_rare_class(measured, data, names),
            *_beyond_budgets(ledger, terms, names),
        ],
        seconds=round(run_files.seconds, 3),
        charged=so_far,
        records=None if data is None else int(data.train.sizes.sum()),
        persons=None if data is None or terms.unit is not Unit.PERSON else int(data.train.units.sum()),
        download_bytes=run_files.received,
        fairness=None if data is None else fairness_of(personal),
        metrics=None if measured is None or data is None else metrics_over_clients(measured, data.task),
        positive=None if measured is None or data is None else data.task.positive_name,
        record_level=None if plan is None else _record_figures(ledger, terms.allowance.observer, delta, ending),
        blend=mixture if experiment.personal == "blend" else None,
        recalibrate=mixture if experiment.personal == "recalibrate" else None,
        curve=_curve(terms, ending),
        task=task.name,
        score=task.score,
        planned_away=_planned_away(experiment, method),
        features=None if experiment.features is None else experiment.features.describe(),
    )


def _accuracies(personal: np.ndarray, start: float, shared: np.ndarray | None) -> Accuracies:
    """Accuracies of a run, from those of each client (clients,); `start` is at the start of the last round."""
    return {
        "personal": finite_or_none(mean(personal)),
        "personal_worst": finite_or_none(worst(personal)),
        "start": finite_or_none(start),
        "global": None if shared is None else finite_or_none(mean(shared)),
    }


def _notes_on_cost(ledger: Ledger, terms: Terms, ending: Ending, names: Sequence[str]) -> list[str]:
    """Notes on what was charged, and on who stopped the run."""
    return _repeated(ledger) + _if_public(ledger, terms) + _who_stopped(terms, ending, names)


def _curve(terms: Terms, ending: Ending) -> dict[str, float] | None:
    """Figures from what a method counted of the targets with noise; None where it counted none that tell something."""
    counted, plan = ending.now.state.get("counted"), terms.allowance.records
    if counted is None or plan is None or not terms.learner.task.tells_counts or not ending.now.rounds:
        return None
    return terms.learner.task.curve(counted, float(plan.trained.sum()))


def fairness_of(values: np.ndarray) -> Fairness | None:
    """Spread of one figure over clients (clients,); None where no client has it."""
    known = values[np.isfinite(values)]
    return Fairness(worst_tenth(known), gini(known), float(known.var())) if len(known) else None


def _by_view(ledger: Ledger, delta: float) -> dict[View, float | None]:
    """Epsilon for each observer; None where it is infinite."""
    return {view: finite_or_none(value) for view, value in ledger.epsilon(delta).items()}


def metrics_over_clients(reached: ClientMetrics, task: Task) -> dict[str, Metric]:
    """Each metric over all clients that have it, and over all records."""
    found: dict[str, Metric] = {}
    for name, values, overall in zip(task.metrics, reached.each.T, reached.overall(task), strict=True):
        found[name] = metric_over_clients(values, name in task.lower_is_better, float(overall))
    return found


def metric_over_clients(values: np.ndarray, lower_is_better: bool, overall: float = math.nan) -> Metric:
    """One metric over clients.

    Args:
        values: (clients,), NaN for clients without the records that the metric is about.
        lower_is_better: Whether a lower value is the better one.
        overall: The metric over all records together; NaN where nobody knows it.
    """
    return Metric(
        mean=finite_or_none(mean(values)),
        worst_tenth=finite_or_none(worst_tenth(values, lower_is_better)),
        overall=finite_or_none(overall),
        clients=int(np.isfinite(values).sum()),
    )


def _one_class(reached: ClientMetrics | None, data: FederatedData | None, names: Sequence[str]) -> list[str]:
    """Warning where models give all test records of a client one class; none where nothing was measured."""
    if reached is None or data is None:
        return []
    return one_class_notes(data.task, reached.each, names, data.test.sizes)


def _rare_class(reached: ClientMetrics | None, data: FederatedData | None, names: Sequence[str]) -> list[str]:
    """Warnings where models find none of the class that is looked for, and where too few records could tell."""
    if reached is None or data is None or data.task.positive_name is None:
        return []
    wanted = data.task.groups.index(data.task.positive_name)
    tested = data.test
    before = np.concatenate([[0], (data.task.group(tested.y.numpy()) == wanted).cumsum()])
    found = before[tested.starts + tested.sizes] - before[tested.starts]
    others = tested.sizes - found
    return recall_notes(data.task, reached.each, names, found) + few_records_notes(data.task, names, found, others)


def recall_notes(task: Task, figures: np.ndarray, names: Sequence[str], positive: np.ndarray) -> list[str]:
    """Warning where models find none of the class that is looked for, and what to do about it.

    Args:
        task: The task.
        figures: (clients, metrics).
        names: Names of the clients.
        positive: (clients,) test records of that class.
    """
    if "recall" not in task.metrics:
        return []
    none = (figures[:, task.metrics.index("recall")] == 0) & (positive > 0)
    places = np.flatnonzero(none & (positive >= LEAST))
    if not len(places) and not (none.sum() == (positive > 0).sum() > 0 and positive.sum() >= LEAST):
        return []
    shown = _called([names[place] for place in (places if len(places) else np.flatnonzero(none)).tolist()])
    return [
        f"Recall 0: the models of {shown} find none of {task.positive_name!r}, however high the accuracy. {FIND_MORE}"
    ]


FIND_MORE = (
    "Weigh the classes (--set class_weight=balanced, or weights as in class_weight=1,9), or predict the class from a "
    "lower probability on (`sordino site report SITE/ --operating-point recall=0.9` at a site; the column of "
    "probabilities that `sordino predict` writes)."
)
"""Sentence on what to do where a model finds none of a rare class."""


def few_records_notes(task: Task, names: Sequence[str], positive: np.ndarray, others: np.ndarray) -> list[str]:
    """Warning where clients have too few test records of a class for AUC and recall to say anything.

    Args:
        task: The task.
        names: Names of the clients.
        positive: (clients,) test records of the class that is looked for.
        others: (clients,) test records of other classes.
    """
    fewest = np.minimum(positive, others)
    places = np.flatnonzero((fewest < LEAST) & (positive + others > 0))
    if not len(places):
        return []
    worst = int(places[np.argmin((positive + others)[places])])
    rare, shown = positive[worst], _called([names[place] for place in places.tolist()])
    return [
        f"{len(places)} of {len(names)} clients have fewer than {LEAST} test records with {task.positive_name!r} or "
        f"fewer than {LEAST} without ({shown}): their AUC and recall say nothing. {names[worst]} has "
        f"{rare + others[worst]} test records, {rare} of them with it."
    ]


def one_class_notes(task: Task, figures: np.ndarray, names: Sequence[str], records: np.ndarray) -> list[str]:
    """Warning where models give all records one class; of fewer than `ENOUGH` records it would say nothing."""
    if "one_class" not in task.metrics:
        return []
    places = np.flatnonzero((figures[:, task.metrics.index("one_class")] == 1) & (records >= ENOUGH))
    if not len(places):
        return []
    shown = _called([names[place] for place in places.tolist()])
    return [
        f"{len(places)} of {len(names)} clients' models give all test records one class ({shown}): compare the "
        "accuracy with the majority class's, and look at balanced accuracy and AUC."
    ]


def _called(names: Sequence[str]) -> str:
    """Names of clients, the first few of many."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _planned_away(experiment: Experiment, planned: Method) -> tuple[str, ...]:
    """Parts of the method that the experiment asked for and the plan switched off."""
    asked = experiment.build_method().switched_off()
    return tuple(part for part in planned.switched_off() if part not in asked)


def _mixture_figures(
    personal: str, blends: Blends | None, own: np.ndarray, shared: np.ndarray | None
) -> MixtureFigures | None:
    """Figures of the mixtures and of each of their members; None where clients mix none."""
    if blends is None or personal == "own":
        return None
    single = {"local": blends.figures("local")[:, 0], "own": own, "global": np.full(len(own), np.nan)}
    if shared is not None:
        single["global"] = shared
    name = MADE[personal]
    found = {name: blends.figures(blends.task.score)[:, 0], **single}
    return MixtureFigures(
        accuracy={name: finite_or_none(mean(values)) for name, values in found.items()},
        worst_tenth={name: finite_or_none(worst_tenth(values)) for name, values in found.items()},
        weights=dict(zip(MEMBERS, blends.rules["weights"].mean(dim=0).tolist(), strict=True)),
        against_local=count_gains_and_losses(found[name] - found["local"]),
    )


def count_gains_and_losses(differences: np.ndarray) -> Against:
    """Number of clients that gain and lose by differences of accuracy; those without test records are not counted."""
    gain, lose = int((differences > SAME).sum()), int((differences < -SAME).sum())
    return {"gain": gain, "lose": lose, "same": int(np.isfinite(differences).sum()) - gain - lose}


def _if_public(ledger: Ledger, terms: Terms) -> list[str]:
    """Note on what the noise alone would be worth, where something leaves without noise beside it."""
    if not ledger.reasons() or not terms.method.is_private() or terms.allowance.known:
        return []
    covered = ledger.covered_epsilon(terms.budget.delta)
    figures = ", ".join(f"{round_up(value)} for the {view}" for view, value in covered.items())
    return [f"If what leaves bare were public, epsilon would be {figures}."]


def _note_repeated_questions(ledger: Ledger) -> list[str]:
    """Sentence on what further attempts at questions tell of records."""
    if not ledger.repeated:
        return []
    return [
        "That the run's code came to other values when it was resumed, and for which questions: that may follow from "
        "records"
    ]


def _repeated(ledger: Ledger) -> list[str]:
    """Note that questions were asked again when the run was resumed."""
    if not ledger.repeated:
        return []
    return [
        "This run was resumed on another kind of processor or with another version of torch or numpy, or its own code "
        f"came to other values than before: {ledger.repeated} questions were asked, and charged, again."
    ]


def _beyond_budgets(ledger: Ledger, terms: Terms, names: Sequence[str]) -> list[str]:
    """Note on clients whose records paid more than was allowed; none where something left without noise, which no
    budget covers."""
    plan = terms.allowance.records
    if plan is None or ledger.reasons():
        return []
    spent = ledger.record_epsilons(terms.allowance.observer, terms.budget.delta)
    return beyond_budgets(spent, plan.budgets, names)


def _record_figures(ledger: Ledger, view: View, delta: float, ending: Ending) -> RecordFigures:
    """Figures of a run that protects records, for the observer whom its noise is planned against: spread of epsilon
    over clients, epsilon for replacing a record, and who stopped."""
    values = sorted(ledger.record_epsilons(view, delta).values())
    replaced, at = ledger.replaced(view, delta)
    spread = {"min": values[0], "median": float(np.median(values)), "max": values[-1]} if values else {}
    return RecordFigures(
        epsilon_clients={name: finite_or_none(value) for name, value in spread.items()} or None,
        epsilon_replace_one=finite_or_none(replaced),
        stopped_clients=list(ending.stopped),
        delta_replace_one=at,
        epsilon_rows={rows: finite_or_none(value) for rows, value in ledger.rows_epsilons(view, delta).items()},
    )


def _who_stopped(terms: Terms, ending: Ending, names: Sequence[str]) -> list[str]:
    """Notes on clients whose budget was used up, on those that never took part, and on a run that ended before its last
    round."""
    stopped, notes = ending.stopped, []
    by_round: dict[int, list[str]] = {}
    for client, number in stopped.items():
        by_round.setdefault(number, []).append(names[client])
    ends = [f"{_called(by_round[number])} after round {number}" for number in sorted(by_round) if number]
    if ends:
        notes.append(f"Budgets were used up, and their clients took no further part: {'; '.join(ends)}.")
    if 0 in by_round:
        notes.append(f"Budgets too small for a single round; these never took part: {_called(by_round[0])}.")
    unreached = [names[client] for client in ending.unreached if client not in stopped]
    if terms.method.unit.record_level and unreached:
        notes.append(f"Rounds too few to reach everybody; these never took part: {_called(unreached)}.")
    done, planned = ending.now.rounds, terms.schedule.rounds
    if done < planned:
        why = ": everybody's budget was used up" if len(stopped) == terms.schedule.clients else ""
        notes.append(f"The run ended after {done} of {planned} rounds{why}.")
    return notes


def _whole_plan(view: View, planned: dict[View, float | None], so_far: dict[View, float | None] | None) -> list[str]:
    """Note that epsilon is that of the whole plan, where the run was charged for less of it; `so_far` is what was
    charged, and None where the run ended as its schedule says."""
    if so_far is None or so_far[view] is None or planned[view] == so_far[view]:
        return []
    epsilon, charged = planned[view], cast(float, so_far[view])
    if epsilon is not None and round_up(epsilon) == round_up(charged):
        return []
    figure = "infinite, because no plan says what it would have come to" if epsilon is None else round_up(epsilon)
    return [
        f"Epsilon is that of the whole plan, {figure}: what clients sent may have decided when the run ended or whom "
        f"it asked, and what was charged so far, {round_up(charged)} for the {view}, is no guarantee then."
    ]
