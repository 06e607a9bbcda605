"""Cells of a study: methods, values of the keys that it goes through, and seeds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sordino.errors import UserError, quoted
from sordino.experiment.config import FEATURES, KEYS, Experiment, setting, settings_of, shortest
from sordino.experiment.hyperparameters import check_known, concerns
from sordino.methods import find

BUDGET_KEYS = {"epsilon", "noise_multiplier", "delta", "protect_from", "minimum_cohort", "colluders"}
"""Keys that change nothing where nothing is noised."""
FIXED = {"method", "seed", "store", "workers", "data_dir", "budget_over_runs"}
"""Keys that no study goes through: methods and seeds have options of their own, the others change no result."""
ELSEWHERE = "methods, seeds and places have options of their own"
MOST_CELLS = 10_000
Sweep = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    method: str
    at: dict[str, Any]
    experiment: Experiment
    number: int | None = None
    """Number that its run gets where it is new, and no other run of the store has it; None for the next free one."""

    @property
    def name(self) -> str:
        """Name of the cell in the progress display."""
        where = "".join(f", {key} {value}" for key, value in self.at.items())
        return f"{self.method}{where}, seed {self.experiment.seed}"

    @property
    def key(self) -> str:
        """Identity of the run; equal for cells that are the same run."""
        return json.dumps([self.experiment.data, self.experiment.decisive()], sort_keys=True)


def split_methods(text: str) -> list[str]:
    """Split a list of methods at commas; commas inside brackets or double quotes belong to a method."""
    parts, depth, inside = [""], 0, False
    for letter in text:
        inside ^= letter == '"'
        if not inside:
            depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0 and not inside:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def contender(text: str) -> tuple[str, dict[str, Any]]:
    """Parse `name` or `name[key=value,...]` into a method and its hyper-parameters."""
    name, bracket, rest = text.partition("[")
    parts = split_methods(rest.removesuffix("]"))
    if bracket and not (rest.endswith("]") and all("=" in part for part in parts[:1])):
        raise UserError(f"{quoted(text)} is not understood; write hyper-parameters as in feddpa[tau=2,lambda1=0].")
    pairs: list[str] = []
    for part in parts:
        if "=" in part:
            pairs.append(part)
        else:  # a value may have commas, as budgets=1:0.5,2:0.5 has
            pairs[-1] += f",{part}"
    return name.strip(), settings_of(pairs)


def sends_anything(text: str) -> bool:
    """Whether anything leaves clients with a contender's method."""
    return any(find(contender(text)[0])().steps().values())


def values_of(text: str) -> tuple[str, list[Any]]:
    """Parse `key=value,value,...` into a key and its values."""
    key, equals, rest = text.partition("=")
    parts = split_methods(rest)
    if not equals or not key.strip() or not parts:
        raise UserError(f"{text!r} is not understood; write a key and its values, as in clip=0.1,0.3,1.")
    values = [setting(f"value={part}")[1] for part in parts]
    if len(values) != len({repr(shortest(value)) for value in values}):
        raise UserError(f"{text!r} names a value twice.")
    return key.strip().replace("-", "_"), values


def grid_of(text: str) -> dict[str, list[Any]]:
    """Parse `rate=0.01,0.1;clip=0.3,1` into keys with their values."""
    parts = [part for part in text.split(";") if part.strip()]
    if not parts:
        raise UserError("A grid is empty; write it as in 'rate=0.01,0.1;clip=0.3,1'.")
    found = dict(values_of(part) for part in parts)
    if len(found) < len(parts):
        raise UserError(f"The grid {text!r} names a key twice: write all its values behind one.")
    return found


def check_keys(sweep: Sweep, methods: Sequence[str]) -> None:
    """Refuse keys that no study can go through."""
    for key in sweep:
        if key in FIXED:
            raise UserError(f"{key!r} cannot be swept over: {ELSEWHERE}.")
        if not is_of_experiment(key):
            check_known(key, [contender(text)[0] for text in methods], KEYS)


def is_of_experiment(key: str) -> bool:
    """Whether a key is of the experiment, or a setting of its features, and not of methods or networks."""
    return key in KEYS or key.startswith(FEATURES)


def points(sweep: Sweep) -> list[dict[str, Any]]:
    """Every combination of the values of all keys."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def cells(experiment: Experiment, methods: Sequence[str], sweep: Sweep, seeds: Sequence[int]) -> list[Cell]:
    """All runs of a study, one seed after the other. Runs that do not depend on a key are the same at all its values,
    and are made once."""
    check_keys(sweep, methods)
    many = points(sweep)
    if len(many) * len(methods) * len(seeds) > MOST_CELLS:
        raise UserError(f"That is {len(many) * len(methods) * len(seeds):,} runs: at most {MOST_CELLS:,} are made.")
    made = {(text, place): at_point(experiment, text, at) for text in methods for place, at in enumerate(many)}
    if experiment.public is None and any(_needs_public(chosen) for chosen in made.values()):
        # Records set aside for one method are set aside for all, so that clients hold the same ones.
        made = {key: chosen.model_copy(update={"public": "default"}) for key, chosen in made.items()}
    return [
        Cell(text, at, made[text, place].model_copy(update={"seed": seed}))
        for seed in seeds
        for place, at in enumerate(many)
        for text in methods
    ]


def at_point(experiment: Experiment, text: str, at: Mapping[str, Any]) -> Experiment:
    """Experiment of a contender at a point of a sweep; keys that make no difference to it stay as they were."""
    name, settings = contender(text)
    fixed = FIXED & {key.replace("-", "_") for key in settings}
    if fixed:
        raise UserError(f"{min(fixed)!r} cannot stand in a method's brackets: {ELSEWHERE}.")
    there = {key: value for key, value in at.items() if is_of_experiment(key) or concerns(key, name)}
    chosen = experiment.for_method(name, there | settings)
    method = chosen.build_method()
    if method.is_private() or method.unit.record_level or not BUDGET_KEYS & set(there):
        return chosen
    return experiment.for_method(name, {k: v for k, v in there.items() if k not in BUDGET_KEYS} | settings)


@dataclass(frozen=True)
class Shard:
    """Part of a study, such as one of several machines makes."""

    number: int
    """Number of the part, from 1."""
    of: int
    """Number of parts."""

    @classmethod
    def read(cls, text: str) -> Shard:
        """Parse `2/5`."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise UserError(f"{quoted(text)} is no part of a study; write --shard 2/5 for the second of five.")
        return cls(int(number), int(of))

    def part(self, different: Sequence[Cell]) -> list[Cell]:
        """Cells of this part: as many as in the others, one after the other. Their runs get the numbers that they would
        have if one store had all, so that merged stores have the names of a study in one piece."""
        begin, end = (place * len(different) // self.of for place in (self.number - 1, self.number))
        return [replace(cell, number=place + 1) for place, cell in enumerate(different)][begin:end]


def _needs_public(experiment: Experiment) -> bool:
    """Whether an experiment's method reads public records, or may, where the data say how many clients there are."""
    method = experiment.build_method()
    return (method if experiment.clients is None else method.settled(experiment.clients)).needs_public()
