"""Spending of all runs of a store on the same people.

Runs on the same people compose, whatever their methods. People are identified by their data set: its records as loaded,
before they are dealt to clients (`sordino.data.people`). Each run counts with the unit that has spent most, so that the
figure holds for everybody. Each observer's figure is composed of what this observer sees in all runs.

**Deals.** A client of one run is a client of another only where both deal the records in the same way. For one client,
figures are composed over runs with equal deals alone. Over different deals there is only a figure for one record, whose
contents are replaced or removed while the deals stay as they are and are public: it stands with one client in each run,
so that a run that protects whole clients costs it twice their mu, and one that protects records what it costs a record.
A run that does not say how it dealt them is a deal of its own.

**Ends.** A run counts with all that it was going to spend, unless it ended as its schedule says: whoever stops a run,
or does not take it up again, may have chosen that by what clients had sent. So does one that is under way, and one
whose files are gone or damaged.

**Units.** What a run costs another unit than its own: one that protects clients costs a record twice their mu, and a
person known to j clients 2 j times. One that protects persons costs a single row what it costs to replace its person's
contribution by another, which moves a sum by twice the bound, whatever the sampling. One that protects records promises
nothing to persons, of whom nobody counted the rows, and neither of the two promises anything to clients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast, get_args

from sordino.data.own import PERSON_ARRAY
from sordino.data.people import same_people
from sordino.data.sources import SOURCES
from sordino.errors import UserError
from sordino.privacy.accounting.across_runs import Run, dearest_epsilon, merge_recipes
from sordino.privacy.accounting.gaussian import epsilon_of, remaining
from sordino.privacy.accounting.sampled_gaussian import Recipe, cover_recipes, sites_epsilon, spread_noise
from sordino.privacy.accounting.tradeoff import hits, presumed
from sordino.privacy.budget.client_level_plan import planned_epsilon
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan
from sordino.privacy.budget.shared_noise import same_for_all
from sordino.privacy.ledger import Kind, Ledger, Row, SeenRecipe, join_drawn, seen_by
from sordino.privacy.release import PROMISED, Public, all_releases, record_needs
from sordino.privacy.sealed import Pool
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View, honest_shares
from sordino.store.journal import DamagedJournalError
from sordino.store.ledger_rows import ledger_of, went_on
from sordino.store.store import RunRow, Store
from sordino.util.formatting import delta_text, round_up

if TYPE_CHECKING:
    from sordino.experiment.prepare import Prepared
    from sordino.terms import Costs, Terms

POOLS = get_args(Pool)
NATURAL = " each client's own"
"""In the place of a column's name, of clients who hold their own records: no column begins with a blank."""


class Spent(TypedDict):
    """Spending of the unit that has spent most in a run."""

    unit: Unit
    mu: list[float | None]
    """Where whole clients are protected: mu for each view, in the order of `VIEWS`; None where it is infinite."""
    recipes: list[list[list[float]]]
    """Where records are protected: the different recipes that clients' records went through, each a list of sampling
    rate, noise multiplier and number of releases; an infinite one is [[1, 0, 1]]. Where observers meet different noise
    there are three multipliers, in the order of `VIEWS`."""
    promised: NotRequired[list[float]]
    """An epsilon and its delta, where nothing more is known of what records paid."""
    sites: NotRequired[int]
    """Where persons are protected: the largest number of clients that one is known to; left out where that is one."""
    together: NotRequired[str]
    """Which records of a person surely stand with one client: the column that names persons, or `NATURAL` where every
    client holds its own. Left out where nobody knows: then nothing is promised to persons."""
    deal: NotRequired[str | None]
    """Digest of which client holds which record; left out, or None, where that was not stored."""


class Planned(Spent):
    """Most that a run will spend, as the store keeps it from the start."""

    turns: int
    """Most turns of a client, spare attempts included."""
    epsilon: float | None
    """Upper bound of epsilon for the observer whom noise is planned against; None where it is infinite."""


INFINITE: list[list[float]] = [[1.0, 0.0, 1]]
"""Recipe of a release without noise."""


def _record_level(spent: Spent) -> bool:
    """Whether a run protects records or persons; in stored documents the unit is a text."""
    return Unit(spent["unit"]).record_level


def spending_of_ledger(ledger: Ledger) -> Spent:
    """Return the spending of a run by its ledger."""
    if not ledger.unit.record_level:
        mu = [ledger.mu(view) for view in VIEWS]
        return {"unit": Unit.CLIENT, "mu": [value if math.isfinite(value) else None for value in mu], "recipes": []}
    recipes = [_recipe_document(recipe) for recipe in sorted(ledger.recipes())]
    epsilon, delta = ledger.promised()
    found = _of_unit(ledger.unit, ledger.sites, recipes)
    if not delta:
        return found
    if math.isinf(epsilon):
        return {**found, "recipes": [INFINITE]}
    return {**found, "recipes": [one for one in recipes if one], "promised": [float(epsilon), float(delta)]}


def _of_unit(unit: Unit, sites: int, recipes: list[list[list[float]]]) -> Spent:
    """Spending of a run that protects records or persons."""
    found: Spent = {"unit": unit, "mu": [], "recipes": recipes}
    return {**found, "sites": sites} if sites > 1 else found


class Sum(TypedDict):
    """Composed cost of several runs on the same people."""

    unit: Unit
    """Unit that `epsilon` protects: the requested one, or one record where the runs deal the records to clients in
    different ways and no figure for a client holds over all of them."""
    runs: int
    deals: int
    """Number of different deals of the records to clients."""
    deals_unknown: int
    """Runs among them that do not say how they dealt them: each counts as a deal of its own."""
    epsilon: dict[View, float | None]
    delta: float
    """At which it holds: the one that was asked for, and those of runs of which nothing is known at any other."""
    epsilon_within_deal: dict[View, float | None] | None
    """Largest epsilon of one client over the runs of one deal alone, at the requested delta; None unless the requested
    unit is a client."""
    sites: int
    """Largest number of clients that a person is taken to be known to in all of these runs; one for other units."""
    unprotected: int
    """Runs among them that promise nothing to the unit: they protect records or persons, and the unit is a client, or
    records, and the unit is a person."""
    sampled: bool
    """Whether records were sampled in one of them. A limit on the sum of such runs holds only if no run's settings were
    chosen by the results of another: sums of loss distributions are no filter, those of mu^2 are."""


class OverRuns(Sum):
    """Composed cost of all runs of a store on the same people."""

    limit: float | None
    """The `budget_over_runs` of all these runs, where it is the same for all and covers this figure for the observer
    `limit_for`. It was set beforehand; unless runs sampled records (`sampled`) it holds whatever results decided."""
    limit_for: View | None


def over_runs(
    store: Store, people: str, unit: Unit, delta: float, more: Sequence[Spent] = (), but: str | None = None
) -> OverRuns:
    """Epsilon of all runs of a store on the same people.

    Args:
        store: the store.
        people: fingerprint of the people.
        unit: unit that epsilon is for.
        delta: delta at which it holds.
        more: spending of planned runs, which are counted too.
        but: name of a run that is left out.
    """
    rows = [row for row in store.all() if same_people(row.people, people) and row.run != but]
    return add_up(rows, [spending_on_people(row, store) for row in rows], unit, delta, more)


def spending_on_people(row: RunRow, store: Store) -> Spent:
    """Spending of a run, with which records of a person stood together in it."""
    return _with_persons(spending_of_run(row, store), row.configuration)


def add_up(
    rows: Sequence[RunRow], spent: Sequence[Spent], unit: Unit, delta: float, more: Sequence[Spent] = ()
) -> OverRuns:
    """Epsilon of runs on the same people, and of `more` planned ones, for a unit of these people.

    Args:
        rows: The runs.
        spent: `spending_on_people` of each.
        unit: Unit that the epsilon is about.
        delta: Delta at which it holds.
        more: Spending of runs that are not stored yet.
    """
    costly = [row for row, one in zip(rows, spent, strict=True) if spends(one)]
    watched = [row.configuration for row in costly if row.unit == unit and not row.merged]
    limit, limit_for = _limit(watched, len(costly))
    return {**sum_up([*spent, *more], unit, delta), "limit": limit, "limit_for": limit_for}


def _with_persons(spent: Spent, configuration: Mapping[str, Any]) -> Spent:
    """Add to a run's spending which records of a person stood together in it, as its experiment says."""
    column = configuration.get("person") or (configuration.get("table") or {}).get("person")
    own = configuration.get("partition") in (None, "natural") and configuration.get("data") not in SOURCES
    if column is None and Unit(spent["unit"]) is Unit.PERSON:
        column = PERSON_ARRAY
    if column is None and not own and configuration.get("partition") != "natural":
        return spent
    return {**spent, "together": NATURAL if column is None else str(column)}


def _limit(configurations: Sequence[Mapping[str, Any]], runs: int) -> tuple[float | None, View | None]:
    """Common limit of so many runs, and its observer; no limit where they differ."""
    kinds = {(one.get("budget_over_runs"), one.get("protect_from")) for one in configurations}
    found = next(iter(kinds)) if len(kinds) == 1 and len(configurations) == runs else (None, None)
    return found if found[0] is not None else (None, None)


def sum_up(spent: Sequence[Spent], unit: Unit, delta: float) -> Sum:
    """Compose several runs on the same people for a unit: the one place where runs are added up.

    A run that protected records protects no client as a whole, of whichever deal, and no person; what a run released of
    whole clients counts for each of their records.
    """
    costly = [one for one in spent if spends(one)]
    others = [one for one in costly if not _counts_for(one, unit) and INFINITE not in one["recipes"]]
    deals = _by_deal(costly)
    within = None
    if not unit.record_level:
        bare = [one for one in costly if _record_level(one)]
        own = [compose([one for one in deal if not _record_level(one)] + bare, unit, delta) for deal in deals]
        within = {view: _largest([one[view] for one in own]) for view in VIEWS}
        unit = unit if len(deals) < 2 else Unit.RECORD
    fixed = [one["promised"][1] for one in costly if unit.record_level and "promised" in one]
    at = sum(fixed) + (0.0 if fixed and not any(one["mu"] or one["recipes"] for one in costly) else delta)
    return {
        "unit": unit,
        "runs": len(costly),
        "deals": len(deals),
        "deals_unknown": sum(one.get("deal") is None for one in costly),
        "epsilon": compose(costly, unit, delta) if unit.record_level else cast(dict[View, float | None], within),
        "delta": at,
        "epsilon_within_deal": within,
        "sites": max((one.get("sites", 1) for one in costly), default=1) if unit is Unit.PERSON else 1,
        "unprotected": len(others),
        "sampled": any(0 < step[0] < 1 for one in costly for recipe in one["recipes"] for step in recipe),
    }


def _by_deal(spent: Sequence[Spent]) -> list[list[Spent]]:
    """Group runs by deal; a run with an unknown deal is a group of its own."""
    found: dict[object, list[Spent]] = {}
    for place, one in enumerate(spent):
        deal = one.get("deal")
        found.setdefault(place if deal is None else deal, []).append(one)
    return list(found.values())


def _largest(values: Sequence[float | None]) -> float | None:
    """Return the largest of several epsilons; None is infinite."""
    known = [value for value in values if value is not None]
    return max(known, default=0.0) if len(known) == len(values) else None


def spends(spent: Spent) -> bool:
    """Whether a run costs anybody anything."""
    return any(part != 0 for part in spent["mu"]) or bool(spent["recipes"]) or "promised" in spent


def compose(spent: Sequence[Spent], unit: Unit, delta: float) -> dict[View, float | None]:
    """Return the epsilon of several runs together for each observer; None where it is infinite.

    Promised epsilons are added, and have deltas of their own.

    Args:
        spent: Spending of the runs, whichever unit they protected.
        unit: The unit that the epsilon is about.
        delta: The delta at which it holds.
    """
    cost = {Unit.CLIENT: _of_clients, Unit.RECORD: _of_records, Unit.PERSON: _of_persons}[unit]
    whole = {view: cost(spent, view, delta) for view in VIEWS}
    return {view: epsilon if math.isfinite(epsilon) else None for view, epsilon in whole.items()}


def _of_clients(spent: Sequence[Spent], view: View, delta: float) -> float:
    """Return the epsilon of whole clients for an observer: infinite if a run protects records only."""
    parts = [None if _record_level(run) else run["mu"][VIEWS.index(view)] for run in spent]
    return epsilon_of(math.hypot(*(math.inf if part is None else part for part in parts)), delta)


def _counts_for(spent: Spent, unit: Unit) -> bool:
    """Whether what a run promises says anything of a unit."""
    own = Unit(spent["unit"])
    return own is Unit.CLIENT or own is unit or (own, unit) == (Unit.PERSON, Unit.RECORD)


def _of_persons(spent: Sequence[Spent], view: View, delta: float) -> float:
    """Return the epsilon of persons for an observer: infinite if a run protects records only."""
    if not all(_counts_for(one, Unit.PERSON) for one in spent):
        return math.inf
    columns = {one["together"] for one in spent if one.get("together") not in (None, NATURAL)}
    if len(columns) > 1 or any("together" not in one for one in spent):  # others' persons, or rows dealt one by one
        return math.inf
    promised = [one["promised"][0] for one in spent if "promised" in one]
    sites = max((one.get("sites", 1) for one in spent), default=1)
    runs = tuple(_observed_run(one, view) for one in spent)
    if sites == 1:
        return dearest_epsilon(runs, delta) + sum(promised)
    if promised:  # which say nothing of somebody known to several clients
        return math.inf
    # Every run's contributions go through all that any of its clients' did.
    whole = merge_recipes([recipe for run in runs for recipe in cover_recipes(run)[:1]])
    return sites_epsilon((whole,), sites, delta) if whole else 0.0


def _of_records(spent: Sequence[Spent], view: View, delta: float) -> float:
    """Return the epsilon of records for an observer."""
    if any("promised" in one and Unit(one["unit"]) is Unit.PERSON for one in spent):
        return math.inf  # of a person's mean that moves by twice the limit, a promise says nothing
    runs = tuple(_row_of_person(_observed_run(one, view), Unit(one["unit"])) for one in spent)
    return dearest_epsilon(runs, delta) + sum(one["promised"][0] for one in spent if "promised" in one)


def _observed_run(spent: Spent, view: View) -> Run:
    """Return the recipes that records went through in a run, as an observer sees it.

    Only the noise that the observer cannot subtract counts. Where whole clients are protected, one record may move its
    client's bounded contribution by twice the bound.
    """
    if _record_level(spent):
        return tuple(_recipe(one, view) for one in spent["recipes"])
    mu = spent["mu"][VIEWS.index(view)]
    if mu is None:
        return (_recipe(INFINITE, view),)
    return (((1.0, 1 / (2 * mu), 1),),) if mu else ()


def _row_of_person(run: Run, unit: Unit) -> Run:
    """Return the recipes that a single row went through in a run: where persons are protected, its person's limited
    mean may move by twice the limit, and what sampling hides of that is not counted."""
    if unit is not Unit.PERSON:
        return run
    return tuple(tuple((1.0, multiplier / 2, count) for _, multiplier, count in recipe) for recipe in run)


def hits_of(spent: Spent, view: View, false_alarms: float) -> float:
    """Largest share of a run's units that any attack of an observer finds at a rate of false alarms.

    Of a person known to several clients it is an upper bound. Noise behind a promised epsilon is presumed to be
    Gaussian where delta is small enough (`tradeoff.presumed`).
    """
    epsilon, delta = spent.get("promised", [0.0, 0.0])
    gaussian = presumed((epsilon, delta), false_alarms)
    promise = (0.0, 0.0) if gaussian else (epsilon, delta)
    if _record_level(spent):
        recipes = [spread_noise(_recipe(one, view), spent.get("sites", 1)) for one in spent["recipes"]] or [()]
    else:
        mu = spent["mu"][VIEWS.index(view)]
        recipes = [_recipe(INFINITE, view) if mu is None else ((1.0, 1 / mu, 1),) if mu else ()]
    return max(hits((*recipe, *gaussian), false_alarms, promise) for recipe in recipes)


LEAST_PART = 1e-6
"""Part of a limit over runs below which nothing is left of it."""


def check_lifetime(store: Store, prepared: Prepared, run: str | None = None) -> None:
    """Refuse a run with which its people would spend more than `budget_over_runs` in this store.

    `run` is the name of a resumed run, which counts as planned, not as spent so far.
    """
    limit = prepared.experiment.budget_over_runs
    if limit is None:
        return
    more = planned(prepared)
    if not spends(more):
        return
    if run is not None:  # without a limit, it may have spent more than it was going to
        more = larger(spending_of_run(store.get(run), store), more)
    more = _with_persons(more, prepared.experiment.model_dump(mode="json"))
    more["deal"] = prepared.data.deal
    unit, view = prepared.unit, prepared.experiment.protect_from
    total = over_runs(store, prepared.data.people, unit, prepared.budget.delta, [more], run)
    within = total["epsilon_within_deal"]
    epsilon = None if within is not None and within[view] is None else total["epsilon"][view]
    if epsilon is None or epsilon > limit * (1 + 1e-9):
        number, where = total["runs"] - 1, "before" if run is None else "beside"
        others = f" and {number} {where} it on these people" if number else ""
        dealt = f" for one record (they deal the records to clients in {total['deals']} different ways)"
        raise UserError(
            f"This run{others} in {store.folder} would come to {_epsilon_words(epsilon)} for the {view}"
            f"{dealt if unit != total['unit'] and epsilon is not None else ''}, above the {limit:g} of "
            f"budget_over_runs: {_instead(more, total, epsilon, run is not None) or _what_is_left(store, prepared)}."
        )


def _what_is_left(store: Store, prepared: Prepared) -> str:
    """Say how much of the limit over runs is left for a run that would exceed it, or that nothing is."""
    delta, view, limit = prepared.budget.delta, prepared.experiment.protect_from, prepared.experiment.budget_over_runs
    total = over_runs(store, prepared.data.people, prepared.unit, delta)
    used = total["epsilon"][view]
    assert limit is not None
    if used is None or used >= limit * (1 - LEAST_PART):
        return (
            "the runs before it have used all of that, and no smaller epsilon fits. Raise the limit where these people "
            "may bear more, or take other people's records"
        )
    if total["sampled"] or not total["runs"]:
        return "plan a smaller epsilon"
    left = math.floor(1000 * remaining(limit, used, delta)) / 1000
    return f"plan a smaller epsilon; about {left:g} is left" if left else "next to nothing is left of it"


def _instead(more: Spent, total: OverRuns, epsilon: float | None, resumed: bool) -> str:
    """Say what to do about a run that would exceed the limit together with others; nothing where a smaller one may
    do."""
    if epsilon is not None and resumed:  # its plan is what it was: no smaller epsilon can be asked for
        return (
            "other runs have since used the budget reserved for this run. `sordino resume` takes a larger limit with "
            "--budget-over-runs; removing runs gives nothing back, and starting anew pays again"
        )
    if epsilon is not None:
        return ""
    if None in more["mu"] or INFINITE in more["recipes"]:
        return "something leaves its clients without noise, so that no budget covers it; take a method that adds noise"
    if total["unprotected"] and total["unit"] is Unit.PERSON:
        return "an earlier run protects rows, whoever they are about, and says nothing of a person's rows together"
    if total["unprotected"]:
        return "an earlier run protects records, no whole client; take a method that protects records too"
    return "an earlier run let something leave without noise, and no later one can make up for that"


def planned(told: Terms) -> Spent:
    """Most that a run will spend, if its method asks everybody once in each of its turns and reads single messages only
    as it declares."""
    unit, releases = told.unit, all_releases(told.declared)
    bare = any(not release.private or not release.known_beforehand() for release in releases)
    if bare or (releases and told.allowance.known):
        return _unbounded(unit)
    if unit.record_level:
        pools = _planned_pools(told)
        promised = [[epsilon, at[0]] for recipe in pools.pop(PROMISED, {}).values() for epsilon, at, _ in recipe]
        distinct = sorted({recipe for recipes in pools.values() for recipe in recipes.values()})
        recipes = [_recipe_document(recipe) for recipe in distinct]
        found = _of_unit(unit, told.sites, recipes)
        return {**found, "promised": max(promised)} if promised else found
    if not any(release.private for release in releases):  # nothing leaves
        return {"unit": unit, "mu": [0.0] * len(VIEWS), "recipes": []}
    noise = told.allowance.of_clients
    # A share of the whole budget may be kept for accuracies or a histogram, beside that of the rounds.
    protected = math.sqrt(told.turns / (1 - told.calibration.kept)) / noise.multiplier
    cohort, colluders = noise.met(told.schedule.cohort)
    shares = {view: honest_shares(view, cohort, colluders) for view in VIEWS}
    exposed = any(release.exposes_history() for release in releases)
    met = {view: shares["server" if exposed else view] for view in VIEWS}
    mu = [protected * math.sqrt(shares[noise.protect_from] / met[view]) for view in VIEWS]
    return {"unit": Unit.CLIENT, "mu": list(mu), "recipes": []}


def most(told: Terms) -> Spent:
    """Most that a run may spend. Where noise is planned against the server, who sees every message, others may come to
    see the messages too."""
    found = planned(told)
    if told.experiment.protect_from == "server" and not _record_level(found):
        return {**found, "mu": [found["mu"][VIEWS.index("server")]] * len(VIEWS)}
    return found


def to_be_kept(told: Terms, deal: str | None) -> Planned:
    """Plan of a run as the store keeps it from the start; `deal` identifies who holds which record."""
    found, delta = most(told), told.budget.delta
    epsilon = planned_epsilon(told.allowance, told.turns / (1 - told.calibration.kept), delta)
    if epsilon is None or not _finite(found):
        return {**found, "deal": deal, "turns": told.turns, "epsilon": _alone(found, told)}
    if told.method.variant == "paper" and _record_level(found):  # its published noise keeps no budget
        alone = _alone(found, told)
        epsilon = None if alone is None else max(epsilon, alone)
    return {**found, "deal": deal, "turns": told.turns, "epsilon": epsilon}


def _alone(found: Spent, told: Terms) -> float | None:
    """Epsilon of a plan for the observer whom its noise is planned against."""
    total = sum_up([{**found, "together": NATURAL}], found["unit"], told.budget.delta)
    return total["epsilon"][told.experiment.protect_from]


def whole(told: Terms, ledger: Ledger) -> Ledger:
    """Ledger of a run's whole plan, at least what was charged (`Ledger.completed`). Under a limit over runs nothing is
    asked beyond the plan (`RunFiles.charge`), so that costly rounds need not be extrapolated."""
    limited = told.experiment.budget_over_runs is not None
    found = most(told) if limited else planned(told)
    mu = [math.inf if part is None else part for part in found["mu"]]
    known = told.method.unit.record_level and _finite(found)
    turns = 0 if limited else told.turns
    return ledger.completed(told.schedule.rounds, turns, mu, _planned_pools(told) if known else None)


def _finite(spent: Spent) -> bool:
    return None not in spent["mu"] and INFINITE not in spent["recipes"]


def _planned_pools(told: Terms) -> dict[str, dict[int, SeenRecipe]]:
    """Recipes that records of each pool and client will go through at the most. Where noise depends on the number of
    records, which on real machines only a site knows, its budget stands for them."""
    plan, delta = told.allowance.of_records, told.budget.delta
    clients = range(len(plan.turns))
    if told.data is None and plan.shared is None:
        return {PROMISED: {client: ((float(plan.budgets[client]), same_for_all(delta), 1),) for client in clients}}
    recipes = planned_recipes(told, told.learner.layout.layers)
    return {pool: dict(enumerate(mine)) for pool, mine in zip(POOLS, zip(*recipes, strict=True), strict=False)}


def planned_recipes(costs: Costs, layers: Sequence[int] = ()) -> list[list[SeenRecipe]]:
    """Return for each client the largest recipes of its training records and of its validation records, if it has any.

    Args:
        costs: What a run may spend, at record level.
        layers: Number of parameters of each layer of the network; needed where noise is in whole numbers.
    """
    plan, needs = costs.allowance.of_records, record_needs(costs.declared)
    if plan.shared is None:
        return [recipes_of_own_noise(plan, client, needs) for client in range(len(plan.turns))]
    kinds = list(zip(plan.sampling.tolist(), plan.turns.tolist(), strict=True))  # all that clients differ in
    found = {kind: [_recipe_of_sums(costs, kinds.index(kind), layers)] for kind in dict.fromkeys(kinds)}
    return [found[kind] for kind in kinds]


def _recipe_of_sums(costs: Costs, client: int, layers: Sequence[int]) -> SeenRecipe:
    """Return the largest recipe of a client's records in sums over all clients' records, whose noise is shared out."""
    turns, found = int(costs.allowance.of_records.turns[client]), []
    public = Public({}, [client] * costs.schedule.cohort, layers=layers)
    for releases in costs.declared.values():
        charges = {name: release.charge(costs.allowance, public) for name, release in releases.items()}
        for name, charge in join_drawn(charges).items():
            if charge.sampled is not None:
                kind, count = Row.of((0, 0, "", ""), public.clients, charge).sums()[0]
                found.append((*kind, count * (1 if releases[name].once else turns)))
    return tuple(found)


def recipes_of_own_noise(plan: RecordPlan, client: int, needs: RecordNeeds) -> list[SeenRecipe]:
    """Return the largest recipes of a client's training records and of its validation records, if it has any, where all
    noise on what it sends is its own."""
    turns, (rate, multiplier, steps) = int(plan.turns[client]), plan.charge(client)
    matrix, mean = float(plan.matrix_multipliers[client]), float(plan.mean_multipliers[client])
    once: SeenRecipe = ((1.0, same_for_all(matrix), needs.matrices),) if matrix else ()
    trained: SeenRecipe = (*once, (rate, same_for_all(multiplier), steps * turns))
    return [trained, ((1.0, same_for_all(mean), needs.means * turns),)] if needs.means else [trained]


def sentence(total: OverRuns, view: View) -> str | None:
    """Describe the spending of several runs on the same people; None where there was one run, or none."""
    return describe_sum(total, view) if total["runs"] > 1 else None


def describe_sum(total: OverRuns, view: View) -> str:
    """Describe the spending of all runs on the same people, of which there is at least one."""
    one = total["runs"] == 1
    others, within, epsilon = total["unprotected"], total["epsilon_within_deal"], total["epsilon"][view]
    whom = "rows, whoever they are about" if total["unit"] is Unit.PERSON else "records, no whole client"
    why = f" ({others} of them protect{'s' if others == 1 else ''} {whom})" if others else ""
    at = f"({view}, delta = {delta_text(total['delta'])})"
    who, come = ("One stored run", "it comes") if one else (f"{total['runs']} stored runs", "they come")
    told = [f"{who} used these people's data."]
    if within is None or not total["unit"].record_level:
        known = f" known to up to {total['sites']} clients" if total["sites"] > 1 else ""
        told.append(f"For one {total['unit']}{known} {come} to {_epsilon_words(epsilon)} {at}{why}.")
    else:
        alone = total["deals_unknown"]
        unknown = f" ({alone} of them do{'es' if alone == 1 else ''} not say how)" if alone else ""
        told += [
            f"They deal the records to clients in {total['deals']} different ways{unknown}.",
            f"For one client, counting the runs of one deal alone, they come to {_epsilon_words(within[view])}{why}; "
            f"for one record over all of them to {_epsilon_words(epsilon)} {at}.",
        ]
    limit = total["limit"] if total["limit_for"] == view else None
    if limit is not None and epsilon is not None and epsilon <= limit * (1 + 1e-9):
        holds = "whatever results decided"
        if total["sampled"]:
            holds = "if no run's settings were chosen by the results of another, because some sample records"
        told.append(f"The limit of {limit:g} (budget_over_runs), set beforehand, holds {holds}.")
    elif epsilon is not None:
        told.append("This is the sum so far, not a guarantee: no limit (budget_over_runs) was set beforehand.")
    return " ".join(told)


def _epsilon_words(epsilon: float | None) -> str:
    return "an infinite epsilon" if epsilon is None else f"an epsilon of {round_up(epsilon)}"


def _recipe_document(recipe: SeenRecipe) -> list[list[float]]:
    """Return a recipe as it is stored: one multiplier for all observers where they meet the same noise."""
    return [[rate, *(met[:1] if len(set(met)) == 1 else met), count] for rate, met, count in recipe]


def _read_recipe(stored: Sequence[Sequence[float]]) -> SeenRecipe:
    """Return a stored recipe with a multiplier for each observer."""
    found = []
    for rate, *met, count in stored:
        outsider, peer, server = met * len(VIEWS) if len(met) == 1 else met
        found.append((float(rate), (float(outsider), float(peer), float(server)), int(count)))
    return tuple(found)


def _recipe(stored: Sequence[Sequence[float]], view: View) -> Recipe:
    """Return a stored recipe as an observer sees it."""
    return seen_by(view, _read_recipe(stored))


def spending_of_run(row: RunRow, store: Store, lost: bool = False) -> Spent:
    """Spending that a run counts for: its summary's where it ended as its schedule says; otherwise its plan, and at
    least its ledger and journal.

    A run of which nothing has left clients has spent nothing, unless it is under way or its files are `lost`, gone or
    damaged. Before its journal is begun there is nothing that could be lost.
    """
    kept = row.planned or {}
    if row.summary is None:
        return {**_count_unfinished(row, store, lost), "deal": kept.get("deal")}
    found: Spent = row.summary["spent"]
    # Earlier versions, which kept no turns, wrote down what had been charged where a run ended.
    early = row.state != "imported" and row.summary.get("rounds_done", 0) < row.rounds
    if early and "turns" not in kept and spends(found):
        repeated = spending_of_ledger(ledger_of(row, store).completed(row.rounds, row.rounds))
        found = larger(found, cast(Spent, kept) if kept else repeated)
    return {**found, "deal": found.get("deal") or kept.get("deal")}


def _count_unfinished(row: RunRow, store: Store, lost: bool) -> Spent:
    """Spending that a run counts for that was never finished."""
    lost = row.begun is not False and (lost or not store.path(row.run).is_dir())
    try:
        ledger = ledger_of(row, store)
    except DamagedJournalError:  # whoever takes the run up is told; sums go by the plan
        if went_on(row, store):
            return spending_of_run(store.get(row.run), store)
        ledger, lost = ledger_of(row, store, journal=False), True
    # Where nobody wrote down that a journal was begun, one that is not there may have been lost.
    if row.state == "stopped" and not lost and not ledger.rows and row.begun is not None:
        return spending_of_ledger(ledger)
    if row.planned is None:
        return _unbounded(row.unit) if lost else spending_of_ledger(ledger.completed(row.rounds, row.rounds))
    limited = row.configuration.get("budget_over_runs") is not None  # nothing is asked beyond the plan
    turns = 0 if limited else row.planned.get("turns", row.rounds)
    plan = _with_attempts(cast(Spent, row.planned), ledger)
    if lost and not limited:
        plan = _repeated(plan, 1 + row.given_up)
    return larger(spending_of_ledger(ledger.completed(row.rounds, turns, planned={})), plan)


def _with_attempts(plan: Spent, ledger: Ledger) -> Spent:
    """Add to a plan for records the later attempts of a run that did not repeat itself, which no plan includes."""
    more = _recipe_document(tuple((*kind, count) for kind, count in ledger.later_attempts().items()))
    if not _record_level(plan) or not more:
        return plan
    return {**plan, "recipes": [[*recipe, *more] for recipe in plan["recipes"]]}


def _repeated(plan: Spent, times: int) -> Spent:
    """Return the spending of a plan that was carried out several times."""
    found: Spent = {
        "unit": plan["unit"],
        "mu": [None if mu is None else mu * math.sqrt(times) for mu in plan["mu"]],
        "recipes": [[[*charge[:-1], times * charge[-1]] for charge in one] for one in plan["recipes"]],
    }
    if "sites" in plan:
        found["sites"] = plan["sites"]
    return {**found, "promised": [times * part for part in plan["promised"]]} if "promised" in plan else found


def _unbounded(unit: Unit) -> Spent:
    """Return the spending of a run that has no bound."""
    return {"unit": unit, "mu": [None] * len(VIEWS), "recipes": [INFINITE]}


def larger(one: Spent, other: Spent) -> Spent:
    """Return the larger of two possible spendings of a run."""
    if not _record_level(one):
        pairs = zip(one["mu"], other["mu"], strict=True)
        mu = [None if first is None or second is None else max(first, second) for first, second in pairs]
        return {"unit": Unit.CLIENT, "mu": mu, "recipes": []}
    recipes = [*one["recipes"], *(recipe for recipe in other["recipes"] if recipe not in one["recipes"])]
    found = _of_unit(Unit(one["unit"]), one.get("sites", 1), recipes)
    promised = [run["promised"] for run in (one, other) if "promised" in run]
    return {**found, "promised": [max(part) for part in zip(*promised, strict=True)]} if promised else found


def within(spent: Spent, planned: Spent) -> bool:
    """Whether a run has kept to its plan: for every observer, or in each kind of release."""
    if not _record_level(spent):
        pairs = zip(spent["mu"], planned["mu"], strict=True)
        return all(most is None or (mu is not None and mu <= most * (1 + 1e-9)) for mu, most in pairs)
    allowed = [_counts(recipe) for recipe in planned["recipes"]]
    return all(
        any(all(count <= most.get(kind, 0) for kind, count in _counts(recipe).items()) for most in allowed)
        for recipe in spent["recipes"]
    )


def _counts(recipe: Sequence[Sequence[float]]) -> dict[Kind, int]:
    """Count each kind of release in a recipe, by sampling rate and noise multipliers."""
    found: Counter[Kind] = Counter()
    for rate, met, count in _read_recipe(recipe):
        found[rate, met] += count
    return dict(found)


def remove(run: str, store: Store) -> None:
    """Delete a run's models, checkpoints, journal and curves. Its spending stays."""

    lost = not store.path(run).is_dir()  # whoever holds a run makes its folder

    def summed_up() -> dict[str, Any]:
        row = store.get(run)
        row = replace(row, state="stopped" if row.failed is None else "failed")  # held by nobody but us
        return {"run": run, **(row.summary or {}), "spent": spending_of_run(row, store, lost)}

    store.remove(run, summed_up)
