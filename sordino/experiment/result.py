"""What a run came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, Protocol, TypedDict, cast

import numpy as np

from sordino.data import FederatedData
from sordino.experiment.blends import Blends
from sordino.experiment.budgeting import beyond_budgets
from sordino.experiment.config import Experiment
from sordino.experiment.hyperparameters import called
from sordino.federation.rounds import mean, worst, worst_tenth
from sordino.federation.run_state import Ending
from sordino.federation.schedule import Schedule
from sordino.learning.metrics import Reached
from sordino.learning.network import Learner
from sordino.method import Budget, Method
from sordino.parts.blending import MEMBERS
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.ledger import Ledger
from sordino.privacy.release import Unit
from sordino.privacy.views import NEIGHBOURS, View
from sordino.store.run_files import RunBooks
from sordino.store.spending import Spent, spent_by, whole
from sordino.tasks import Task
from sordino.util.formatting import none, rounded_up


class Told(Protocol):
    """What must be known of a run to sum it up: a prepared simulation, or the terms of a deployment."""

    @property
    def experiment(self) -> Experiment: ...
    @property
    def data(self) -> FederatedData | None: ...
    @property
    def method(self) -> Method: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def turns(self) -> int: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def allowance(self) -> Allowance: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def disclosed(self) -> list[str]: ...


ENOUGH = 10
"""With so many test records, a model that gives them all one class is worth a warning."""
NAMED = 10
"""How many clients a sentence names."""
SAME = 1e-9
"""Accuracies nearer than this are the same."""


Figures = dict[View, float | None]
"""One figure for each observer; None where it is infinite."""
Against = dict[str, int]
"""How many clients `gain` by one model against another, how many `lose`, and for how many it is the `same`."""
Accuracies = dict[str, float | None]
"""Means over clients, each on its own test records; None where there is no such model."""


class BlendFigures(TypedDict):
    """How the mixture and its members do."""

    accuracy: Accuracies
    """Of the `blend`; of the `local` models, trained at one client alone; of the method's `own` personal models; of the
    server's, `global`."""
    worst_tenth: Accuracies
    """The same over the tenth of the clients that are worst off with each."""
    weights: dict[str, float]
    """The mean weight of each member."""
    against_local: NotRequired[Against]
    """Clients with the blend, against the models that they trained alone; older runs do not tell."""


class Metric(TypedDict):
    """One metric over clients."""

    mean: float | None
    worst_tenth: float | None
    """The mean over the tenth of the clients that are worst off by it."""
    overall: float | None
    """Over all clients' test records together: a client with many counts for more than in the mean."""
    clients: int
    """How many clients have it: the others have no test records, or none of those that it is about."""


class Summary(TypedDict, total=False):
    """The result of a run, as it is stored and printed. Infinite figures are None."""

    run: str
    method: str
    called: str
    """The method with the hyper-parameters that are not its defaults, as in `feddpa[tau=2]`; older runs do not tell."""
    variant: str
    privacy: str
    rounds: int
    rounds_done: int
    accuracy: Accuracies
    """`personal`, `personal_worst`, `start` (of the last round) and `global`. Personal is what clients predict with:
    the method's own models, or the blended ones."""
    accuracy_noise: float
    """On real machines: the deviation of the noise on accuracies that sites share; left out where none has any."""
    blend: BlendFigures
    """Where clients blend models: what the method's own would have come to, and all others."""
    metrics: dict[str, Metric]
    """Of what clients predict with, each on its own test records: by the names of `sordino.learning.metrics`."""
    positive: str | None
    """The class that `recall` is about; None where there is none."""
    epsilon: Figures
    """Epsilon of the whole plan where clients' answers may have chosen the end of the run or whom it asked; otherwise
    of what was charged."""
    charged: Figures
    """Epsilon charged so far, where `epsilon` is that of the whole plan; no guarantee."""
    attack_accuracy: dict[View, float]
    delta: float
    unit: Unit
    neighbours: str
    """The two worlds that epsilon compares."""
    protect_from: str
    noise_multiplier: float | None
    not_covered: list[str]
    """What epsilon does not cover, in sentences; where something left bare, why epsilon is infinite."""
    epsilon_clients: dict[str, float | None] | None
    """At record level: `min`, `median` and `max` over clients."""
    epsilon_replace_one: float | None
    """At record level: for one record replaced by another."""
    epsilon_rows: dict[str, float | None]
    """Upper bounds of epsilon for a person with 3 and with 5 rows at one client, by number of rows; empty where
    unknown, and at client level."""
    delta_replace_one: float
    """At which delta that holds: a larger one where only epsilon and delta of a client's records are known."""
    stopped_clients: list[int]
    """At record level: whose budget was used up before the last round."""
    deployed: bool
    """Whether the run was on the clients' own machines; left out where it was not."""
    trial_of: str
    """Data of a trial deployment, whose server and sites were processes of one machine; left out elsewhere."""
    spent: Spent
    upload_bytes: int
    clients: int
    records: int
    """Training records of all clients, where somebody knows them."""
    parameters: int
    seed: int
    notes: list[str]
    seconds: float


def summarize(
    run: str,
    prepared: Told,
    ending: Ending,
    books: RunBooks,
    names: Sequence[str],
    own: np.ndarray,
    blends: Blends | None = None,
    reached: Reached | None = None,
) -> Summary:
    """The result of a run whose clients are called `names`, have the accuracies `own` with the method's personal
    models, and reach what `reached` says with what they predict with."""
    personal = own if blends is None else blends.figures("accuracy")[:, 0]
    charged, delta = books.ledger, prepared.budget.delta
    # What answers may have cut short is covered by the whole plan alone (privacy-loss odometers are no guarantee).
    ledger = charged if ending.as_scheduled else whole(prepared, charged)
    summary: Summary = {
        "run": run,
        "method": prepared.experiment.method,
        "called": called(dict(prepared.experiment)),
        "variant": prepared.method.variant,
        "privacy": prepared.method.privacy,
        "rounds": prepared.schedule.rounds,
        "rounds_done": ending.now.rounds,
        "accuracy": {
            "personal": none(mean(personal)),
            "personal_worst": none(worst(personal)),
            "start": none(books.start),
            "global": None if ending.shared is None else none(mean(ending.shared)),
        },
        "epsilon": {view: none(value) for view, value in ledger.epsilon(delta).items()},
        "attack_accuracy": ledger.attack_accuracy(),
        "delta": delta,
        "unit": prepared.method.unit,
        "neighbours": NEIGHBOURS[prepared.method.unit],
        "protect_from": prepared.experiment.protect_from,
        "noise_multiplier": prepared.budget.multiplier or None,
        "not_covered": ledger.reasons() + prepared.disclosed + _told_by_attempts(ledger),
        "spent": {**spent_by(ledger), "deal": books.deal},
        "upload_bytes": books.uploaded,
        "clients": prepared.schedule.clients,
        "parameters": prepared.learner.layout.size,
        "seed": prepared.experiment.seed,
        "notes": prepared.notes
        + _repeated(ledger)
        + _if_public(ledger, prepared)
        + _who_stopped(prepared, ending, names),
        "seconds": round(books.seconds, 3),
    }
    if ledger is not charged:
        summary["charged"] = {view: none(value) for view, value in charged.epsilon(delta).items()}
        summary["notes"] += _whole_plan(summary)
    if prepared.data is not None:
        summary["records"] = int(prepared.data.train.sizes.sum())
    if reached is not None and prepared.data is not None:
        summary["metrics"] = metrics_over_clients(reached, prepared.data.task)
        summary["positive"] = prepared.data.task.positive_name
        judged = np.array([len(client.y_test) for client in prepared.data.clients])
        summary["notes"] += one_class_notes(prepared.data.task, reached.each, names, judged)
    if prepared.method.unit == "record":
        summary |= _record_figures(ledger, delta, ending)
        summary["notes"] += _beyond_budgets(ledger, prepared, names)
    if blends is not None:
        summary["blend"] = _blend_figures(blends, own, ending.shared)
    return summary


def metrics_over_clients(reached: Reached, task: Task) -> dict[str, Metric]:
    """Each metric over all clients that have it, and over all records."""
    found: dict[str, Metric] = {}
    for name, values, overall in zip(task.metrics, reached.each.T, reached.overall(task), strict=True):
        sign = -1 if name in task.lower_is_better else 1
        tenth = sign * worst_tenth(sign * values)
        known = int(np.isfinite(values).sum())
        over_clients, over_records = none(mean(values)), none(float(overall))
        found[name] = Metric(mean=over_clients, worst_tenth=none(tenth), overall=over_records, clients=known)
    return found


def one_class_notes(task: Task, figures: np.ndarray, names: Sequence[str], records: np.ndarray) -> list[str]:
    """A warning where models give all records one class; of a handful of `records` it would say nothing."""
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
    """Clients by their names, the first few of many."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _blend_figures(blends: Blends, own: np.ndarray, shared: np.ndarray | None) -> BlendFigures:
    """The mixture beside its members, each by itself."""
    single = {"local": blends.figures("local")[:, 0], "own": own, "global": np.full(len(own), np.nan)}
    if shared is not None:
        single["global"] = shared
    found = {"blend": blends.figures("accuracy")[:, 0], **single}
    return {
        "accuracy": {name: none(mean(values)) for name, values in found.items()},
        "worst_tenth": {name: none(worst_tenth(values)) for name, values in found.items()},
        "weights": dict(zip(MEMBERS, blends.rules["weights"].mean(dim=0).tolist(), strict=True)),
        "against_local": against(found["blend"] - found["local"]),
    }


def against(differences: np.ndarray) -> Against:
    """How many clients gain and lose by differences of accuracy; those without test records are not counted."""
    gain, lose = int((differences > SAME).sum()), int((differences < -SAME).sum())
    return {"gain": gain, "lose": lose, "same": int(np.isfinite(differences).sum()) - gain - lose}


def _if_public(ledger: Ledger, prepared: Told) -> list[str]:
    """What the noise alone would be worth, where something leaves bare beside it."""
    if not ledger.reasons() or not prepared.method.is_private() or prepared.allowance.known:
        return []
    covered = ledger.covered_epsilon(prepared.budget.delta)
    figures = ", ".join(f"{rounded_up(value)} for the {view}" for view, value in covered.items())
    return [f"If what leaves bare were public, epsilon would be {figures}."]


def _told_by_attempts(ledger: Ledger) -> list[str]:
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


def _beyond_budgets(ledger: Ledger, prepared: Told, names: Sequence[str]) -> list[str]:
    """Whose records paid more than was allowed, where nothing left bare, which no budget covers."""
    plan = prepared.allowance.records
    if plan is None or ledger.reasons():
        return []
    return beyond_budgets(ledger.record_epsilons(prepared.budget.delta), plan.budgets, names)


def _record_figures(ledger: Ledger, delta: float, ending: Ending) -> Summary:
    """At record level: the spread of epsilon over clients, the figure for replacing a record, and who stopped."""
    values = sorted(ledger.record_epsilons(delta).values())
    replaced, at = ledger.replaced(delta)
    spread = {"min": values[0], "median": float(np.median(values)), "max": values[-1]} if values else {}
    return {
        "epsilon_clients": {name: none(value) for name, value in spread.items()} or None,
        "epsilon_replace_one": none(replaced),
        "delta_replace_one": at,
        "epsilon_rows": {rows: none(value) for rows, value in ledger.rows_epsilons(delta).items()},
        "stopped_clients": list(ending.stopped),
    }


def _who_stopped(prepared: Told, ending: Ending, names: Sequence[str]) -> list[str]:
    """Whose budget was used up and when, who never took part, and whether the run ended before its last round."""
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
    if prepared.method.unit == "record" and unreached:
        notes.append(f"Rounds too few to reach everybody; these never took part: {_called(unreached)}.")
    done, planned = ending.now.rounds, prepared.schedule.rounds
    if done < planned:
        why = ": everybody's budget was used up" if len(stopped) == prepared.schedule.clients else ""
        notes.append(f"The run ended after {done} of {planned} rounds{why}.")
    return notes


def _whole_plan(summary: Summary) -> list[str]:
    """Note that epsilon is that of the whole plan, where the run was charged for less of it."""
    view = cast(View, summary["protect_from"])
    epsilon, charged = summary["epsilon"][view], summary["charged"][view]
    if charged is None or epsilon == charged:
        return []
    figure = "infinite, because no plan says what it would have come to" if epsilon is None else rounded_up(epsilon)
    return [
        f"Epsilon is that of the whole plan, {figure}: what clients sent may have decided when the run ended or whom "
        f"it asked, and what was charged so far, {rounded_up(charged)} for the {view}, is no guarantee then."
    ]
