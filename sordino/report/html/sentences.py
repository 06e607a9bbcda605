"""Sentences and template values for the HTML report on runs, and the TOML experiment file that repeats a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import AT_SITES
from sordino.experiment.result import count_gains_and_losses
from sordino.methods import find
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.report.html.gather import Group, PageContent, RunContent
from sordino.report.terminal.results import OBSERVERS, observers_of
from sordino.report.wording import (
    UNPROTECTED,
    against_words,
    attack_words,
    epsilon_words,
    neighbour_words,
    observer_of_figures,
    percent,
    protects_nothing,
    replacement_words,
    score_of,
)
from sordino.store.run_summary import Metric
from sordino.study.compare import ComparisonRow
from sordino.util.formatting import delta_text
from sordino.util.toml import toml_sections, toml_value

LEARNED = {Unit.CLIENT: "client took part", Unit.RECORD: "record was used", Unit.PERSON: "person's rows were used"}
"""Fact about one unit that an observer may learn."""


def title(told: PageContent) -> str:
    """Title of the page."""
    configuration = told.groups[0].first.row.configuration
    if len(told.groups) == 1:
        return f"{told.groups[0].name} on {configuration['data']}"
    return f"{len(told.groups)} methods on {configuration['data']}"


def summary(told: PageContent) -> list[str]:
    """Summary of the page: what was done, what came out, who gains, and what it cost."""
    if len(told.groups) == 1:
        group = told.groups[0]
        return [_setup(group), _accuracy(group), *against_alone(group), *_cost(group, told.comparison.rows[0])]
    first = told.groups[0].first
    names = ", ".join(group.name for group in told.groups)
    compared = (
        f"{len(told.groups)} methods were compared on the same {_count(first.summary.clients, 'client')} and "
        f"records of {first.row.configuration['data']}: {names}."
    )
    return [compared, *told.verdict, *told.comparison.verdict, *told.comparison.together("outsider")]


def against_alone(group: Group) -> list[str]:
    """Sentence on the clients that gain and lose against training alone; none where no such run is stored."""
    found = differences(group)
    if not found:
        return []
    counts = count_gains_and_losses(np.array([value for _, value in found]))
    alone = float(np.mean([value for run in group.alone for value in run.clients.values()]))
    return [f"Training alone gives {percent(alone)}. Against that, {against_words(counts, len(group.runs))}."]


def differences(group: Group) -> list[tuple[str, float]]:
    """Accuracy of each client less that of training alone, by name; none where no such run is stored."""
    found = []
    for run, alone in zip(group.runs, group.alone, strict=False):
        names = run.names()
        both = run.clients.keys() & alone.clients.keys()
        found += [(names[client], run.clients[client] - alone.clients[client]) for client in sorted(both)]
    return found


def observers(run: RunContent) -> list[dict[str, str]]:
    """Template values of each observer: what it sees, its epsilon, and the accuracy of its best attack."""
    return [
        {
            "view": view,
            "sees": observers_of(run.summary)[view],
            "epsilon": epsilon_words(run.summary.epsilon[view]),
            "attack": attack_words(run.summary.attack_accuracy[view]),
        }
        for view in VIEWS
    ]


def protection(run: RunContent) -> str:
    """Sentences on what the epsilons of a run protect."""
    if not run.ledger:
        return "Nothing left the clients."
    if protects_nothing(run.summary.epsilon):
        return f"{UNPROTECTED}."
    delta = delta_text(run.summary.delta)
    level = run.summary.record_level
    if level is None:
        return " ".join([f"One whole client is protected, at delta = {delta}.", *neighbour_words(Unit.CLIENT)])
    replaced = replacement_words(level.epsilon_replace_one, level.delta_replace_one, run.summary.delta)
    observer = observer_of_figures(run.summary.epsilon, run.summary.protect_from)
    whose = "" if observer is None else f" for the {observer}"
    unit = run.summary.unit
    protecting = f"One {unit} is protected, at delta = {delta}; for one {unit} that is replaced by another epsilon is"
    return " ".join([f"{protecting} {replaced}{whose}.", *neighbour_words(unit, run.summary.epsilon_rows, observer)])


def experiment_file(run: RunContent) -> str:
    """Experiment file that repeats a run: settings other than the defaults, as TOML."""
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
    """Title of a method; empty for one that is not installed."""
    try:
        return find(name).title
    except UserError:
        return ""


def _setup(group: Group) -> str:
    run = group.first
    told, configuration = run.summary, run.row.configuration
    share = configuration["participation"]
    turns = "" if share == 1 else f", {share:.4g} of the clients in each"
    seeds = "" if len(group.runs) == 1 else f", with {len(group.runs)} seeds"
    what = method_title(run.row.method)
    return (
        f"{_count(told.clients, 'client')} with records of {configuration['data']} trained models of "
        f"{told.parameters:,} parameters by {group.name}{f' ({what})' if what else ''} in "
        f"{_count(told.rounds_done, 'round')}{turns}{seeds}."
    )


def _accuracy(group: Group) -> str:
    own = [run.summary.accuracy["personal"] for run in group.runs]
    worst = [run.summary.accuracy["personal_worst"] for run in group.runs]
    if any(value is None for value in (*own, *worst)):
        if group.first.summary.deployed:
            return "The sites test their models on records of their own; the accuracies stay there."
        return "Clients have no records to test their models on, so no accuracy is known."
    metrics = group.first.summary.metrics or {}
    if group.first.summary.score != "accuracy":
        return _other_score(group, float(np.mean(own)), float(np.min(worst)), metrics)  # type: ignore[type-var, arg-type]
    reached = f"On average they are right on {percent(float(np.mean(own)))} of their own test records"  # type: ignore[arg-type]
    told = f"{reached}; the client that is worst off on {percent(float(np.min(worst)))}."  # type: ignore[type-var, arg-type]
    majority = [run.summary.metrics["majority"].mean for run in group.runs if run.summary.metrics]
    usual = [value for value in majority if value is not None]
    if len(usual) < len(group.runs):
        return told
    always = percent(float(np.mean(usual)))
    return f"{told} Always saying the class that most of a client's records have is right on {always}."


def _other_score(group: Group, own: float, worst: float, metrics: Mapping[str, Metric]) -> str:
    """Sentences on how well models predict numbers or times."""
    score = score_of(group.first.summary)
    told = (
        f"{score[0].upper()}{score[1:]} is {percent(own)} on average; at the client that is worst off {percent(worst)}."
    )
    if "rmse" not in metrics or metrics["rmse"].mean is None or metrics["constant_rmse"].mean is None:
        return told
    root, constant = (f"{metrics[name].mean:.4g}" for name in ("rmse", "constant_rmse"))
    return f"{told} The root mean squared error is {root}; always predicting the own mean gives {constant}."


def _cost(group: Group, row: ComparisonRow) -> list[str]:
    """Sentences on the cost of the method's runs; `row` has the figures that hold for each of its seeds."""
    if not group.first.ledger:
        return ["Nothing left the clients, so nobody learned anything about them."]
    view: View = "server" if group.first.summary.protect_from == "server" else "outsider"
    unit = row.unit
    if row.epsilon[view] is None:
        return ["Epsilon is infinite: something left the clients without noise."]
    attack = attack_words(max(run.summary.attack_accuracy[view] for run in group.runs))
    sentence = (
        f"Whoever {OBSERVERS[view]} learns with epsilon = {epsilon_words(row.epsilon[view])} at delta = "
        f"{delta_text(row.delta)} whether one {LEARNED[unit]}. The best attack is right in {attack} of all cases; "
        "guessing is right in 50%."
    )
    told = group.first.summary
    observer = observer_of_figures(told.epsilon, told.protect_from)
    sentence = " ".join([sentence, *unit.caveats(told.epsilon_rows, observer)])
    if view == "server":
        return [sentence]
    figure = epsilon_words(row.epsilon["server"])
    if group.first.summary.summed_securely:
        return [sentence, f"For the server together with all other sites, epsilon is {figure}; alone it sees sums."]
    return [sentence, f"For the server, which sees every message, epsilon is {figure}."]


def _count(number: int, one: str) -> str:
    return f"{number:,} {one if number == 1 else f'{one}s'}"
