"""What runs came to, in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import AT_SITES, Experiment
from sordino.experiment.result import against
from sordino.methods import find
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.report.html.gather import Group, RunTold, Told
from sordino.report.terminal.tables import OBSERVERS
from sordino.report.wording import (
    UNPROTECTED,
    against_words,
    attack_words,
    compared_words,
    epsilon_words,
    percent,
    replaced_words,
    unprotected,
)
from sordino.util.formatting import delta_text
from sordino.util.toml import toml_sections, toml_value

LEARNED = {Unit.CLIENT: "client took part", Unit.RECORD: "record was used"}
"""What an observer may learn of one unit."""


def title(told: Told) -> str:
    """What the page is about."""
    configuration = told.groups[0].first.row.configuration
    if len(told.groups) == 1:
        return f"{told.groups[0].name} on {configuration['data']}"
    return f"{len(told.groups)} methods on {configuration['data']}"


def summary(told: Told) -> list[str]:
    """The page in sentences: what was done, what came out, who gains, and what it cost."""
    if len(told.groups) == 1:
        group = told.groups[0]
        return [_done(group), _accuracy(group), *against_alone(group), *_cost(group, told.comparison.rows[0])]
    first = told.groups[0].first
    names = ", ".join(group.name for group in told.groups)
    compared = (
        f"{len(told.groups)} methods were compared on the same {_count(first.summary['clients'], 'client')} and "
        f"records of {first.row.configuration['data']}: {names}."
    )
    return [compared, *told.comparison.verdict, *told.comparison.together("outsider")]


def against_alone(group: Group) -> list[str]:
    """Who gains and who loses against training alone; nothing where no run tells."""
    found = differences(group)
    if not found:
        return []
    counts = against(np.array([value for _, value in found]))
    alone = float(np.mean([value for run in group.alone for value in run.clients.values()]))
    return [f"Training alone gives {percent(alone)}. Against that, {against_words(counts, len(group.runs))}."]


def differences(group: Group) -> list[tuple[str, float]]:
    """For each client its accuracy less that of training alone; none where no run tells."""
    found = []
    for run, alone in zip(group.runs, group.alone, strict=False):
        names = run.names()
        both = run.clients.keys() & alone.clients.keys()
        found += [(names[client], run.clients[client] - alone.clients[client]) for client in sorted(both)]
    return found


def observers(run: RunTold) -> list[dict[str, str]]:
    """For each observer what it sees, its epsilon, and how often its best attack is right."""
    return [
        {
            "view": view,
            "sees": OBSERVERS[view],
            "epsilon": epsilon_words(run.summary["epsilon"][view]),
            "attack": attack_words(run.summary["attack_accuracy"][view]),
        }
        for view in VIEWS
    ]


def protected(run: RunTold) -> str:
    """What its epsilons protect."""
    if not run.ledger:
        return "Nothing left the clients."
    if unprotected(run.summary["epsilon"]):
        return f"{UNPROTECTED}."
    delta = delta_text(run.summary["delta"])
    if not Unit(run.summary["unit"]).record_level:
        return " ".join([f"One whole client is protected, at delta = {delta}.", *compared_words(run.summary)])
    figures = (run.summary.get("epsilon_replace_one"), run.summary.get("delta_replace_one"))
    replaced = replaced_words(*figures, run.summary["delta"])
    protecting = f"One record is protected, at delta = {delta}; for one record that is replaced by another epsilon is"
    return " ".join([f"{protecting} {replaced}.", *compared_words(run.summary)])


def experiment_file(run: RunTold) -> str:
    """The experiment file that repeats a run: what differs from the defaults, as TOML."""
    defaults = Experiment().model_dump(mode="json")
    given = {key: value for key, value in run.row.configuration.items() if value is not None}
    plain = {key: value for key, value in given.items() if key != "set" and value != defaults.get(key)}
    plain = {"data": given["data"], "method": given["method"]} | plain
    if plain["data"] == AT_SITES:
        del plain["data"]
    tables = {key: value for key, value in plain.items() if isinstance(value, dict)} | {"set": given["set"]}
    lines = [f"{key} = {toml_value(value)}" for key, value in plain.items() if key not in tables and key != "workers"]
    for name, table in tables.items():
        if table:
            lines += toml_sections(name, table)
    return "\n".join(lines) + "\n"


def method_title(name: str) -> str:
    """What a method does, in a line; nothing for one that is not here."""
    try:
        return find(name).title
    except UserError:
        return ""


def _done(group: Group) -> str:
    run = group.first
    told, configuration = run.summary, run.row.configuration
    share = configuration["participation"]
    turns = "" if share == 1 else f", {share:.4g} of the clients in each"
    seeds = "" if len(group.runs) == 1 else f", with {len(group.runs)} seeds"
    what = method_title(run.row.method)
    return (
        f"{_count(told['clients'], 'client')} with records of {configuration['data']} trained models of "
        f"{told['parameters']:,} parameters by {group.name}{f' ({what})' if what else ''} in "
        f"{_count(told['rounds_done'], 'round')}{turns}{seeds}."
    )


def _accuracy(group: Group) -> str:
    own = [run.summary["accuracy"]["personal"] for run in group.runs]
    worst = [run.summary["accuracy"]["personal_worst"] for run in group.runs]
    if any(value is None for value in (*own, *worst)):
        return "Clients have no records to test their models on, so no accuracy is known."
    reached = f"On average they are right on {percent(float(np.mean(own)))} of their own test records"  # type: ignore[arg-type]
    told = f"{reached}; the client that is worst off on {percent(float(np.min(worst)))}."  # type: ignore[type-var, arg-type]
    measured: list[dict[str, Any]] = [dict(run.summary.get("metrics") or {}) for run in group.runs]
    usual = [one["majority"]["mean"] for one in measured if one and one["majority"]["mean"] is not None]
    if len(usual) < len(group.runs):
        return told
    always = percent(float(np.mean(usual)))
    return f"{told} Always saying the class that most of a client's records have is right on {always}."


def _cost(group: Group, row: dict[str, Any]) -> list[str]:
    """What the method's runs cost; `row` has the figures that hold for each of its seeds."""
    if not group.first.ledger:
        return ["Nothing left the clients, so nobody learned anything about them."]
    epsilon: dict[View, float | None] = row["epsilon"]
    view: View = "server" if group.first.summary["protect_from"] == "server" else "outsider"
    unit = Unit(row["unit"])
    if epsilon[view] is None:
        return ["No epsilon holds for it: something left the clients without noise."]
    attack = attack_words(max(run.summary["attack_accuracy"][view] for run in group.runs))
    sentence = (
        f"Whoever {OBSERVERS[view]} learns with epsilon = {epsilon_words(epsilon[view])} at delta = "
        f"{delta_text(row['delta'])} whether one {LEARNED[unit]}: the best attack is right in {attack} of all "
        "cases, where guessing is right in 50%."
    )
    sentence = " ".join([sentence, *unit.caveats(group.first.summary.get("epsilon_rows"))])
    if view == "server":
        return [sentence]
    return [sentence, f"For the server, which sees every message, epsilon is {epsilon_words(epsilon['server'])}."]


def _count(number: int, one: str) -> str:
    return f"{number:,} {one if number == 1 else f'{one}s'}"
