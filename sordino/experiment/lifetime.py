"""What all runs of a store have spent together on the same people.

Runs on the same people compose, whatever their methods. People are known by their data set: its records as they were
loaded, before they were dealt to clients (`sordino.data.people`). Of each run the unit that has spent most is taken, so
the figure holds for everybody. Each observer's figure is made of what this observer meets in all runs. A run that is
under way counts with all that it was going to spend, and so does one whose files are gone or damaged, which would say
how far it came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

from sordino.data.people import same_people
from sordino.errors import UserError
from sordino.experiment.account import ledger_of, went_on
from sordino.experiment.journal import DamagedJournalError
from sordino.experiment.store import RunRow, Store
from sordino.privacy.accountant import epsilon_of
from sordino.privacy.ledger import Ledger
from sordino.privacy.possibilities import Run, dearest_epsilon, merged
from sordino.privacy.record_plan import RecordNeeds, RecordPlan
from sordino.privacy.records import Recipe
from sordino.privacy.release import Unit, all_releases
from sordino.privacy.views import VIEWS, View, honest_shares
from sordino.rounding import delta_text, rounded_up

if TYPE_CHECKING:
    from sordino.experiment.prepare import Prepared


class Spent(TypedDict):
    """What the unit that has spent most in a run has spent."""

    unit: Unit
    mu: list[float | None]
    """Where whole clients are protected: mu for each view, in the order of `VIEWS`; None where it is infinite."""
    recipes: list[list[list[float]]]
    """Where records are: what the records of some client went through, each possibility once; an infinite one is
    [[1, 0, 1]]."""
    promised: NotRequired[list[float]]
    """Where nothing more is known of what records pay: an epsilon, and the delta at which it holds."""


INFINITE: list[list[float]] = [[1.0, 0.0, 1]]
"""The recipe of what leaves bare."""


def spent_by(ledger: Ledger) -> Spent:
    """What the unit that has spent most has spent, by a run's ledger."""
    if ledger.unit == "client":
        mu = [ledger.mu(view) for view in VIEWS]
        return {"unit": "client", "mu": [value if math.isfinite(value) else None for value in mu], "recipes": []}
    recipes = [[list(charge) for charge in recipe] for recipe in sorted(ledger.recipes())]
    epsilon, delta = ledger.promised()
    if not delta:
        return {"unit": "record", "mu": [], "recipes": recipes}
    if math.isinf(epsilon):
        return {"unit": "record", "mu": [], "recipes": [INFINITE]}
    return {
        "unit": "record",
        "mu": [],
        "recipes": [one for one in recipes if one],
        "promised": [float(epsilon), float(delta)],
    }


class OverRuns(TypedDict):
    """What all runs on the same people come to."""

    unit: Unit
    runs: int
    epsilon: dict[View, float | None]
    delta: float
    """At which it holds: the one that was asked for, and those of runs of which nothing is known at any other."""
    unprotected: int
    """Runs among them that promise nothing to the unit: they protect records, and the unit is a client."""


def over_runs(
    store: Store, people: str, unit: Unit, delta: float, more: Sequence[Spent] = (), but: str | None = None
) -> OverRuns:
    """The epsilon for a unit of these people of all runs of a store but one, and of `more` that are planned.

    A run that protected records protects no client as a whole; what a run released of whole clients counts for each of
    their records.
    """
    spent = [spent_in(row, store) for row in store.all() if same_people(row.people, people) and row.run != but]
    costly = [one for one in (*spent, *more) if spends(one)]
    total = composed(costly, unit, delta)
    others = [one for one in costly if unit == "client" != one["unit"] and INFINITE not in one["recipes"]]
    fixed = [one["promised"][1] for one in costly if unit == "record" and "promised" in one]
    at = sum(fixed) + (0.0 if fixed and not any(one["mu"] or one["recipes"] for one in costly) else delta)
    return {"unit": unit, "runs": len(costly), "epsilon": total, "delta": at, "unprotected": len(others)}


def spends(spent: Spent) -> bool:
    """Whether a run costs anybody anything."""
    return any(part != 0 for part in spent["mu"]) or bool(spent["recipes"]) or "promised" in spent


def composed(spent: Sequence[Spent], unit: Unit, delta: float) -> dict[View, float | None]:
    """The epsilon of a unit for each observer of several runs together, whichever unit they protected; None where it is
    infinite. What is promised adds up, and has its own delta besides."""
    cost = _of_clients if unit == "client" else _of_records
    whole = {view: cost(spent, view, delta) for view in VIEWS}
    return {view: epsilon if math.isfinite(epsilon) else None for view, epsilon in whole.items()}


def _of_clients(spent: Sequence[Spent], view: View, delta: float) -> float:
    """The epsilon of whole clients for an observer: runs that protect records protect none of them."""
    parts = [run["mu"][VIEWS.index(view)] if run["unit"] == "client" else None for run in spent]
    return epsilon_of(math.hypot(*(math.inf if part is None else part for part in parts)), delta)


def _of_records(spent: Sequence[Spent], view: View, delta: float) -> float:
    """The epsilon of records for an observer."""
    runs = tuple(_seen(one, view) for one in spent)
    return dearest_epsilon(runs, delta) + sum(one["promised"][0] for one in spent if "promised" in one)


def _seen(spent: Spent, view: View) -> Run:
    """What records went through in a run, as an observer sees it.

    Noise of a client's own stands between its records and everybody. Where whole clients are protected, the observer
    meets what noise it cannot subtract, and one record may move its client's bounded contribution by twice the bound.
    """
    if spent["unit"] == "record":
        return tuple(_recipe(one) for one in spent["recipes"])
    mu = spent["mu"][VIEWS.index(view)]
    if mu is None:
        return (_recipe(INFINITE),)
    return (((1.0, 1 / (2 * mu), 1),),) if mu else ()


def check_lifetime(store: Store, prepared: Prepared, run: str | None = None) -> None:
    """Refuse a run with which its people would have spent more than `budget_over_runs` in this store.

    `run` is its name where it is taken up: it counts as planned then, not as spent.
    """
    limit, more = prepared.experiment.budget_over_runs, planned(prepared)
    if limit is None or not spends(more):
        return
    unit, view = prepared.method.unit, prepared.experiment.protect_from
    total = over_runs(store, prepared.data.people, unit, prepared.budget.delta, [more], run)
    epsilon = total["epsilon"][view]
    if epsilon is None or epsilon > limit * (1 + 1e-9):
        number, where = total["runs"] - 1, "before" if run is None else "beside"
        others = f" and {number} {where} it on these people" if number else ""
        raise UserError(
            f"This run{others} in {store.folder} would come to {_shown(epsilon)} for the {view}, above the "
            f"{limit:g} of budget_over_runs: {_instead(more, total, epsilon, run is not None)}."
        )


def _instead(more: Spent, total: OverRuns, epsilon: float | None, resumed: bool) -> str:
    """What to do about a run that would spend too much, together with others."""
    if epsilon is not None and resumed:  # its plan is what it was: no smaller epsilon can be asked for
        return (
            "others count for more now than when it was let in. `sordino resume` takes a larger limit with "
            "--budget-over-runs; removing runs gives nothing back, and starting anew pays again"
        )
    if epsilon is not None:
        return "plan a smaller epsilon"
    if None in more["mu"] or INFINITE in more["recipes"]:
        return "something leaves its clients without noise, so that no budget covers it; take a method that adds noise"
    if total["unprotected"]:
        return "an earlier run protects records, no whole client; take a method that protects records too"
    return "an earlier run let something leave without noise, and no later one can make up for that"


def planned(prepared: Prepared) -> Spent:
    """What a prepared run will spend at the most, if its method asks everybody once in each of its turns and reads
    single messages only as it declares."""
    method, schedule = prepared.method, prepared.schedule
    releases = all_releases(method.steps())
    bare = any(not release.private or not release.known_beforehand() for release in releases)
    if bare or (releases and prepared.allowance.known):
        return _unbounded(method.unit)
    if prepared.allowance.records is not None:
        recipes = _all_recipes(prepared.allowance.records, method.record_needs())
        return {"unit": "record", "mu": [], "recipes": [[list(one) for one in recipe] for recipe in sorted(recipes)]}
    if not method.is_private():  # nothing leaves
        return {"unit": method.unit, "mu": [0.0] * len(VIEWS), "recipes": []}
    noise = prepared.allowance.of_clients
    protected = math.sqrt(schedule.turns) / noise.multiplier
    shares = {view: honest_shares(view, schedule.cohort, noise.colluders) for view in VIEWS}
    exposed = any(release.tells == "everything" for release in releases)
    met = {view: shares["server" if exposed else view] for view in VIEWS}
    mu = [protected * math.sqrt(shares[noise.protect_from] / met[view]) for view in VIEWS]
    return {"unit": "client", "mu": list(mu), "recipes": []}


def most(prepared: Prepared) -> Spent:
    """What a prepared run may spend: where noise is planned against the server, who sees every message, others may
    come to see them too."""
    found = planned(prepared)
    if prepared.experiment.protect_from == "server" and found["unit"] == "client":
        return {**found, "mu": [found["mu"][VIEWS.index("server")]] * len(VIEWS)}
    return found


def _all_recipes(plan: RecordPlan, needs: RecordNeeds) -> set[Recipe]:
    """What the training records and the validation records of some client will go through at the most."""
    return {recipe for client in range(len(plan.turns)) for recipe in planned_recipes(plan, client, needs)}


def planned_recipes(plan: RecordPlan, client: int, needs: RecordNeeds) -> list[Recipe]:
    """What a client's training records, and its validation records, will go through at the most."""
    turns, (rate, multiplier, steps) = int(plan.turns[client]), plan.charge(client)
    matrix, mean = float(plan.matrix_multipliers[client]), float(plan.mean_multipliers[client])
    once: Recipe = ((1.0, matrix, needs.matrices),) if matrix else ()
    trained: Recipe = (*once, (rate, multiplier, steps * turns))
    return [trained, ((1.0, mean, needs.means * turns),)] if needs.means else [trained]


def sentence(total: OverRuns, view: View) -> str | None:
    """What all runs on the same people have spent, in one line; None where there was one run, or none."""
    if total["runs"] < 2:
        return None
    others = total["unprotected"]
    why = f" ({others} of them protect{'s' if others == 1 else ''} records, no whole client)" if others else ""
    return (
        f"{total['runs']} runs in this store cost these people something; for one {total['unit']} they come to "
        f"{_shown(total['epsilon'][view])} for the {view} at delta = {delta_text(total['delta'])}{why}."
    )


def _shown(epsilon: float | None) -> str:
    return "an infinite epsilon" if epsilon is None else f"an epsilon of {rounded_up(epsilon)}"


def _recipe(stored: Sequence[Sequence[float]]) -> Recipe:
    return tuple((float(rate), float(multiplier), int(count)) for rate, multiplier, count in stored)


def spent_in(row: RunRow, store: Store, lost: bool = False) -> Spent:
    """What a run has spent: from its summary, or, where it was stopped, from its ledger and journal; one that is under
    way, that failed at a client, or whose files are `lost`, gone or damaged, what it was going to spend at the most.
    Before its journal is begun there is nothing that could be lost."""
    if row.summary is not None:
        return row.summary["spent"]
    lost = row.begun is not False and (lost or not store.path(row.run).is_dir())
    try:
        spent = spent_by(ledger_of(row, store))
    except DamagedJournalError:  # whoever takes the run up is told; sums go by the plan
        if went_on(row, store):
            return spent_in(store.get(row.run), store)
        spent, lost = spent_by(ledger_of(row, store, journal=False)), True
    if row.state == "stopped" and not lost:
        return spent
    if row.planned is None:
        return _unbounded(row.unit) if lost else spent
    return _larger(spent, cast(Spent, row.planned))


def _unbounded(unit: Unit) -> Spent:
    """What has no bound."""
    return {"unit": unit, "mu": [None] * len(VIEWS), "recipes": [INFINITE]}


def _larger(one: Spent, other: Spent) -> Spent:
    """Whatever costs more of two that a run may come to."""
    if one["unit"] == "client":
        pairs = zip(one["mu"], other["mu"], strict=True)
        mu = [None if first is None or second is None else max(first, second) for first, second in pairs]
        return {"unit": "client", "mu": mu, "recipes": []}
    recipes = [*one["recipes"], *(recipe for recipe in other["recipes"] if recipe not in one["recipes"])]
    return {"unit": "record", "mu": [], "recipes": recipes}


def within(spent: Spent, planned: Spent) -> bool:
    """Whether a run has kept to what it was going to spend: for every observer, or in each kind of release."""
    if spent["unit"] == "client":
        pairs = zip(spent["mu"], planned["mu"], strict=True)
        return all(most is None or (mu is not None and mu <= most * (1 + 1e-9)) for mu, most in pairs)
    allowed = [_counts(recipe) for recipe in planned["recipes"]]
    return all(
        any(all(count <= most.get(kind, 0) for kind, count in _counts(recipe).items()) for most in allowed)
        for recipe in spent["recipes"]
    )


def _counts(recipe: Sequence[Sequence[float]]) -> dict[tuple[float, float], int]:
    """How often each kind of release occurs in a recipe."""
    return {(rate, multiplier): count for rate, multiplier, count in merged([_recipe(recipe)])}
