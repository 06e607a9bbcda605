"""Declarations of a deployed experiment (shape, labels, number of sites), and refusals of what cannot be deployed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sordino.data.own import check_reading
from sordino.errors import UserError
from sordino.experiment.budgeting import is_private, record_level
from sordino.experiment.config import OF_TASKS, Experiment
from sordino.features.projection import SHIPPED_DATA
from sordino.method import Method
from sordino.privacy.release import Releases
from sordino.tasks import Classification, NextToken, Regression, Task
from sordino.tasks.regression import USUAL_LOSS

SIMULATE = "simulate it with `sordino run`"


@dataclass(frozen=True)
class Origin:
    """Data that were dealt to the sites of a trial: their name, the people they are about and how they were dealt."""

    data: str
    people: str
    deal: str | None
    notes: Sequence[str] = ()
    """Sentences on how the data were read and dealt, for the user."""
    disclosed: Sequence[str] = ()
    """Sentences on what was read from the records and shown to the user of a trial, which epsilon does not cover."""


def shape_of(experiment: Experiment) -> tuple[int, ...]:
    """Return the declared shape of a record."""
    if experiment.shape is None and experiment.table is not None:
        return (len(experiment.table.features()),)
    return experiment.shape or ()


def labels_of(experiment: Experiment) -> tuple[str, ...]:
    """Return the declared labels, in the order of the classes; none where no classes are predicted."""
    if experiment.table is not None:
        task = experiment.table.task()
        return task.class_names("A label") if task.name == Classification.name else ()
    return tuple(str(label) for label in experiment.labels or ())


def task_of(experiment: Experiment) -> Task:
    """The declared task."""
    if experiment.table is not None:
        return experiment.table.task(experiment.loss)
    if experiment.task == Regression.name and experiment.target_range is not None:
        return Regression(*experiment.target_range, loss=experiment.loss or USUAL_LOSS)
    if experiment.vocabulary is not None:
        return NextToken(experiment.vocabulary, *shape_of(experiment))
    return Classification.of(labels_of(experiment))


def check_declared(experiment: Experiment) -> None:
    """Refuse an experiment that lacks a declaration which nobody may read from records, or that no site can run."""
    needed = {"clients": "how many sites there are, as in clients = 5"}
    if any(getattr(experiment, key) for key in OF_TASKS):
        check_reading(experiment.reading())
    if experiment.table is None:
        needed["shape"] = "the shape of a record, as in shape = [13]"
        if experiment.task == Regression.name:
            needed["target_range"] = "the range of the target, as in target_range = [0, 200]"
        elif experiment.vocabulary is None:
            needed["labels"] = 'the labels that may occur, as in labels = ["healthy", "ill"]'
    for key, what in needed.items():
        if getattr(experiment, key) is None:
            raise UserError(f"On real machines nobody sees all records: the experiment must declare {what}.")
    if experiment.privacy == "none":
        raise UserError(f'privacy = "none" cannot be deployed, everything would leave as it is: {SIMULATE}.')
    if experiment.precision != "fp32" or experiment.device != "cpu":
        raise UserError("Sites train in fp32 on their processors: leave out `precision` and `device`.")
    if experiment.vocabulary is not None and len(shape_of(experiment)) != 1:
        raise UserError(
            "`shape` must declare the length of a sequence without its last token, as in shape = [32], because "
            "`vocabulary` says that the next token is predicted."
        )
    labels = labels_of(experiment)
    classes = task_of(experiment).name == Classification.name
    if classes and (len(labels) < 2 or len(set(labels)) < len(labels)):
        raise UserError("`labels` must declare at least two labels, each once.")
    if experiment.columns is not None and math.prod(shape_of(experiment)) != len(experiment.columns):
        raise UserError(
            f"The experiment declares {len(experiment.columns)} columns, but records of shape {experiment.shape}."
        )
    if experiment.drop or experiment.categorical:
        raise UserError("`drop` and `categorical` read values from the records: declare them with a schema.")


def check_features(experiment: Experiment) -> None:
    """Refuse features whose weights sites would have to compute of public data, each on its own processor."""
    found = experiment.features
    if found is not None and found.public not in (None, SHIPPED_DATA):
        raise UserError(
            f"Sites do not read the public data {found.public!r}: write their projection into a file with `python -m "
            f"sordino.features.projection {found.public} FILE`, and give it as features.weights and to every site as "
            "`feature_files`."
        )


def check_releases(experiment: Experiment, steps: Mapping[str, Releases], states: Collection[str]) -> None:
    """Refuse a method that sends anything without noise, or anything that reveals a single client's message.

    Args:
        experiment: the configuration.
        steps: the method's steps, each with what it sends.
        states: names of the clients' public states.
    """
    name = experiment.method
    if not is_private(steps):
        raise UserError(f"{name} sends nothing that noise covers: there is nothing to deploy; {SIMULATE}.")
    for releases in steps.values():
        for what, release in releases.items():
            if not release.private:
                raise UserError(f"{name} sends each client's {what} as it is: {SIMULATE}.")
            if release.state is not None:
                raise UserError(f"{name} sends each client's {what}, which reveals single messages: {SIMULATE}.")
    if states:
        raise UserError(f"{name} keeps a public state of each client, computed from its single messages: {SIMULATE}.")


def check_records(experiment: Experiment, method: Method) -> None:
    """Refuse what cannot protect records where nobody knows how many all sites have."""
    level, name = record_level(method), experiment.method
    if level is None:
        return
    if experiment.noise_multiplier is not None:
        raise UserError(
            "Where records are protected, noise follows from the epsilon that a site reserves before a run: leave out "
            "noise_multiplier, and deploy with an epsilon."
        )
    if experiment.metrics_share:
        raise UserError(f"{name} protects records, and metrics_share is for what protects sites: leave it out.")
    persons = experiment.person_rules
    if persons is not None and persons.max_sites > 1 and not level.record_needs().sums:
        raise UserError(
            f"Every site of {name} makes noise of its own for as many persons as it has, and none knows what another "
            "site's noise costs somebody whom both know: with max_sites_per_person above 1 take dp-fedsgd."
        )
    if level.varied != "noise" and not level.record_needs().sums:  # sums have a declared rate
        raise UserError(f"{name} sets sampling rates from all clients' record counts, which nobody has: {SIMULATE}.")
    if level.variant == "paper":
        raise UserError(f"The published noise of {name} does not keep its epsilon: leave out `variant`.")
