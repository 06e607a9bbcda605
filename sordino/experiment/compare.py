"""Several methods on the same data, at the same true epsilon, over several seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment, check_seeds, setting
from sordino.experiment.lifetime import OverRuns, over_runs, sentence
from sordino.experiment.prepare import prepare
from sordino.experiment.run import resume, start
from sordino.experiment.store import Store
from sordino.experiment.summary import Summary
from sordino.privacy.accountant import rounded_up
from sordino.privacy.release import Unit
from sordino.privacy.views import VIEWS, View
from sordino.server import Watch

FIGURES = ("personal", "personal_worst", "start", "global")


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison."""

    rows: list[dict[str, Any]]
    """One for each method, in the order asked for."""
    verdict: list[str]
    """What the rows say, in sentences."""
    over_runs: list[OverRuns]
    """What all runs of the store on the same people have come to, for each unit that was protected."""

    def together(self, view: View) -> list[str]:
        """The same in sentences, for one observer."""
        found = [sentence(total, view) for total in self.over_runs]
        return [one for one in found if one is not None]


def compare(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: int = 3,
    watch: Callable[[str, int], Watch | None] | None = None,
) -> Comparison:
    """Run each method with each of `seeds` seeds and put the results side by side.

    A method may come with hyper-parameters of its own, as in `feddpa[tau=2,lambda1=0]`, for ablations.
    Runs that the store already holds are taken from there; stopped ones are resumed. `watch` gives, for a
    method and a seed, what is told of each round.
    """
    if not methods:
        raise UserError("Name at least one method to compare, for example --methods local,dp-fedavg,feddpa.")
    check_seeds(seeds)
    experiments = {text: experiment.for_method(*contender(text)) for text in dict.fromkeys(methods)}
    if experiment.public is None and any(_needs_public(chosen) for chosen in experiments.values()):
        # Records set aside for one method are set aside for all, so that clients hold the same ones.
        shared = {"public": "default"}
        experiments = {text: chosen.model_copy(update=shared) for text, chosen in experiments.items()}
    store = Store(experiment.store)
    results: dict[str, list[Summary]] = {name: [] for name in experiments}
    for seed in range(experiment.seed, experiment.seed + seeds):
        for name, chosen in experiments.items():
            seeded = chosen.model_copy(update={"seed": seed})
            results[name].append(_result(seeded, store, watch(name, seed) if watch else None))
    comparison = side_by_side(results, store, experiment.protect_from)
    store.close()
    return comparison


def side_by_side(results: Mapping[str, list[Summary]], store: Store, protect_from: str) -> Comparison:
    """Finished runs of a store, those of each method under its name, which differ by their seeds alone."""
    rows = [_row(name, found, store) for name, found in results.items()]
    spent = [over_runs(store, _people(rows, store), unit, delta) for unit, delta in _protected(rows)]
    return Comparison(rows, _verdicts(rows, protect_from), spent)


def _people(rows: list[dict[str, Any]], store: Store) -> str:
    return store.get(rows[0]["runs"][0]).people


def _protected(rows: list[dict[str, Any]]) -> list[tuple[Unit, float]]:
    """The units that private rows protect, each with its delta."""
    private = [row for row in rows if any(value != 0 for value in row["epsilon"].values())]
    return list({row["unit"]: row["delta"] for row in private}.items())


def _needs_public(experiment: Experiment) -> bool:
    return experiment.build_method().settled(experiment.clients or 1).needs_public()


def split_methods(text: str) -> list[str]:
    """Methods separated by commas; commas inside brackets belong to a method."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def contender(text: str) -> tuple[str, dict[str, Any]]:
    """`name` or `name[key=value,...]` as a method and its hyper-parameters."""
    name, bracket, rest = text.partition("[")
    if bracket and not rest.endswith("]"):
        raise UserError(f"{text!r} is not understood; write hyper-parameters as in feddpa[tau=2,lambda1=0].")
    pairs = [part for part in rest.removesuffix("]").split(",") if part.strip()]
    return name.strip(), dict(setting(pair.strip()) for pair in pairs)


def _result(experiment: Experiment, store: Store, watch: Watch | None) -> Summary:
    prepared = prepare(experiment)
    for row in store.all():
        if row.identity == prepared.identity and row.state != "running":
            return cast(Summary, row.summary) if row.summary else resume(row.run, store, watch, experiment.workers)
    return start(prepared, store, watch)


def _row(name: str, results: list[Summary], store: Store) -> dict[str, Any]:
    accuracy = {figure: _spread([result["accuracy"][figure] for result in results]) for figure in FIGURES}
    first = results[0]
    return {
        "method": name,
        "variant": first["variant"],
        "unit": first["unit"],
        "seeds": len(results),
        "accuracy": accuracy,
        "epsilon": {view: _highest([result["epsilon"][view] for result in results]) for view in VIEWS},
        "delta": first["delta"],
        "not_covered": first["not_covered"],
        "notes": first["notes"],
        "seconds": float(np.mean([result["seconds"] for result in results])),
        "runs": [result["run"] for result in results],
        "curves": [store.curve(result["run"]) for result in results],
    }


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean and standard deviation over seeds; None where the figure does not exist."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": float(np.mean(known)), "spread": float(np.std(known, ddof=1)) if len(known) > 1 else 0.0}


def _highest(values: Sequence[float | None]) -> float | None:
    """The largest epsilon over seeds; None (infinite) if any is."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _verdicts(rows: list[dict[str, Any]], protect_from: str) -> list[str]:
    """Which method is best among those that protect the same unit."""
    private = [row for row in rows if row["epsilon"][protect_from]]
    free = [row for row in rows if row["epsilon"][protect_from] == 0]
    units = list(dict.fromkeys(row["unit"] for row in private))
    if len(units) < 2:
        return _verdict(private, free, protect_from)
    sentences = ["Client-level and record-level methods are not ranked together: their epsilons protect other things."]
    for unit in units:
        chosen = _verdict([row for row in private if row["unit"] == unit], free, protect_from)
        sentences += [f"Protecting one {unit}: {one}" for one in chosen]
    return sentences


def _verdict(private: list[dict[str, Any]], free: list[dict[str, Any]], protect_from: str) -> list[str]:
    """Which method is best, by how much, whether that is more than chance, and at which epsilon."""
    sentences = []
    if private:
        deltas = sorted({row["delta"] for row in private})
        if len(deltas) > 1:
            sentences.append(
                f"The private methods are NOT at equal delta ({deltas[0]:.3g} to {deltas[-1]:.3g}): give one with "
                "`delta` to compare them."
            )
        figures = [row["epsilon"][protect_from] for row in private]
        if max(figures) > 1.01 * min(figures):
            sentences.append(
                "The private methods are NOT at equal epsilon: "
                + ", ".join(f"{row['method']} {rounded_up(row['epsilon'][protect_from])}" for row in private)
                + "."
            )
    contenders = sorted(private + free, key=lambda row: -row["accuracy"]["personal"]["mean"])
    if len(contenders) > 1:
        best, second = contenders[0], contenders[1]
        one, two = best["accuracy"]["personal"], second["accuracy"]["personal"]
        gap = one["mean"] - two["mean"]
        noise = max(one["spread"], two["spread"])
        clear = "more than the spread over seeds" if gap > noise else "within the spread over seeds: no clear winner"
        if best["seeds"] == 1:
            clear = "from one seed, so chance is not ruled out"
        sentences.append(
            f"{best['method']} has the best personal accuracy, {one['mean']:.1%}, {gap:.1%} above "
            f"{second['method']}: {clear}."
        )
    for alone in free:
        worse = [r for r in private if r["accuracy"]["personal"]["mean"] < alone["accuracy"]["personal"]["mean"]]
        for row in worse:
            sentences.append(
                f"{row['method']} does not pay here: {alone['method']} training gives "
                f"{alone['accuracy']['personal']['mean']:.1%} without spending any privacy."
            )
    return sentences
