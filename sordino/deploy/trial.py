"""Trials of a deployment: an experiment's data dealt to site folders on one machine."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import ClientData, FederatedData
from sordino.data.federate import usual_names
from sordino.deploy.declarations import Origin
from sordino.deploy.protocol.roster import NAME_LENGTH, Member, roster_toml
from sordino.deploy.site.rules import min_witnesses
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.deploy.terms import DeployedTerms, terms_of
from sordino.errors import UserError
from sordino.experiment.budgeting import has_published_noise, record_level
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, deal_with_public, prepare
from sordino.experiment.result import metric_over_clients
from sordino.federation.rounds import mean, worst
from sordino.store.run_summary import Summary
from sordino.tasks import Classification, NextToken, Regression, Survival, Task
from sordino.util.formatting import split_part

ROSTER = "roster.toml"
DATA = "data.npz"
WITNESS = Path("..", "witness")
"""Folder of the sites' witnesses, relative to a site: beside the sites, so that a trial leaves nothing elsewhere."""
PUBLIC = "public"
ORIGIN = "origin.json"
"""File in a trial's folder that says whose records its sites hold."""
RESERVED = (PUBLIC, ROSTER, ORIGIN, WITNESS.name, "server")
"""Names in a trial's folder that no site can have."""


def lay_out(experiment: Experiment, folder: Path, sites: int) -> tuple[Experiment, list[Member], list[Path]]:
    """Deal an experiment's data to new sites in `folder`, which must be empty or missing.

    Args:
        experiment: A simulated experiment.
        folder: Where the sites' folders are made.
        sites: Number of sites.

    Returns:
        The experiment as it is deployed, the roster, and the sites' folders.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"The folder {folder} is not empty: name a new folder for the trial's sites.")
    experiment = experiment.model_copy(update={"clients": sites})
    data, public = deal_with_public(experiment)
    folder.mkdir(parents=True, exist_ok=True)
    declared: dict[str, Any] = {
        "shape": data.shape,
        **_declared_task(data),
        # Sites of a trial hold arrays that were made of tables, and still know what each number means.
        "table": data.schema,
        **{"columns": None, "drop": (), "categorical": (), "label": None},
        "records_each": _typical_records(experiment, data.train.units),
        "public": None,
    }
    if data.train.persons is not None:
        declared |= data.train.persons.rules.keys()
    if public is not None:
        declared["public"] = str(folder / PUBLIC)
        (folder / PUBLIC).mkdir()
        np.savez(folder / PUBLIC / DATA, **data.task.arrays(public.x.numpy(), public.y.numpy()))
    deployed = experiment.model_copy(update=declared)
    terms = terms_of(deployed)
    folders = [folder / name for name in site_names(data.clients)]
    limits = _rules(deployed, terms)
    members = []
    for number, (path, client) in enumerate(zip(folders, data.clients, strict=True)):
        path.mkdir()
        _write_records(path / DATA, client, data.task, _codes(data, number))
        members.append(Member(path.name, Site.create(path, path.name, Path(DATA), **limits)))
    for path in folders:
        (path / ROSTER).write_text(roster_toml(members))
    origin = Origin(str(experiment.data), data.people, data.deal, data.notes, data.disclosed)
    (folder / ORIGIN).write_text(json.dumps(dataclasses.asdict(origin)))
    return deployed, members, folders


def site_names(clients: Sequence[ClientData]) -> list[str]:
    """Names of a trial's sites and of their folders: the clients' own; site-0, site-1 and so on for clients without
    names, and in the place of a name that two clients share or that no folder can have."""
    given = [client.name for client in clients]
    numbered = [f"site-{number}" for number in range(len(given))]
    if given == usual_names(len(given)):
        return numbered
    plain = [unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() for name in given]
    own = [re.sub("[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:NAME_LENGTH] for name in plain]
    found = [
        name if sum(name.lower() == other.lower() for other in own) == 1 and name.lower() not in ("", *RESERVED) else ""
        for name in own
    ]
    taken = {name.lower() for name in found}
    named = [name or number for name, number in zip(found, numbered, strict=True)]
    return (
        numbered if any(not name and number in taken for name, number in zip(found, numbered, strict=True)) else named
    )


def _typical_records(experiment: Experiment, sizes: np.ndarray) -> int:
    """Number of training records to declare for a site: the mean where sums over all records are divided by it, and
    otherwise the median, whose noise is that of a typical site."""
    level = record_level(experiment.build_method())
    middle = np.mean if level is not None and level.record_needs().sums else np.median
    return max(1, round(float(middle(sizes))))


def read_origin(folder: Path) -> Origin:
    """Read whose records the sites of a trial hold."""
    return Origin(**json.loads((folder / ORIGIN).read_text()))


def _rules(experiment: Experiment, terms: DeployedTerms) -> dict[str, Any]:
    """Site rules that allow this experiment and whose budget pays for it once."""
    given = experiment.noise == "integers" or experiment.noise_multiplier or has_published_noise(terms.method)
    epsilon = math.inf if given else experiment.asked_epsilon
    sites = terms.schedule.clients
    witnesses = min_witnesses(
        sites, experiment.colluders
    )  # as few as allowed, so that a trial can continue without a lost site
    return {
        "witnesses": witnesses if witnesses < sites else None,
        "unit": terms.unit,
        "person": None if terms.persons is None else terms.persons.column,
        "max_sites_per_person": terms.sites if terms.sites > 1 else None,
        "max_epsilon": epsilon,
        "max_delta": terms.budget.delta,
        "min_cohort": min(terms.minimum, 3),
        "colluders": experiment.colluders,
        "methods": (experiment.method,),
        "models": None if experiment.model is None or ":" not in experiment.model else (experiment.model,),
        **_feature_rules(terms),
        "roster": Path(ROSTER),
        "witness": WITNESS,
        "allow_trusted_server": not experiment.active_server,
    }


def _feature_rules(terms: DeployedTerms) -> dict[str, Any]:
    """Site rules that allow the experiment's features."""
    choice = terms.experiment.features
    if choice is None:
        return {}
    path = Path(choice.extractor) if choice.is_program else choice.weights
    return {
        "features": (choice.extractor,) if choice.is_own else None,
        "feature_files": None if path is None else (path.resolve(),),
    }


def _codes(data: FederatedData, client: int) -> dict[str, Any]:
    """Arrays with codes of the persons of a client's training and test records; none where nobody says who they are."""
    trained, tested = data.train.persons, data.test.persons
    if trained is None or tested is None:
        return {}
    # A person is trained on or tested with, unless the client itself chose its test records.
    name = trained.rules.column
    more = {f"{name}_test": trained.counts[client] + tested.codes(client)} if tested.counts[client] else {}
    return {name: trained.codes(client), **more}


def _write_records(path: Path, client: ClientData, task: Task, codes: dict[str, Any]) -> None:
    """Write a client's records into a file, with `codes` of whom they are about."""
    tested: dict[str, Any] = (
        task.arrays(client.x_test.numpy(), client.y_test.numpy(), "_test") if len(client.y_test) else {}
    )
    np.savez(path, **task.arrays(client.x.numpy(), client.y.numpy()), **codes, **tested)


LOWER_IS_BETTER = {name for task in (Classification, NextToken, Regression, Survival) for name in task.lower_is_better}
"""Metrics, of any task, of which a lower value is the better one."""


def _declared_task(data: FederatedData) -> dict[str, Any]:
    """Keys that declare what is predicted, as far as a schema does not."""
    if data.schema is not None:
        return {"labels": None, "task": None, "target_range": None, "event": None, "cuts": None}
    if isinstance(data.task, Regression):
        return {"task": data.task.name, "target_range": (data.task.low, data.task.high)}
    if isinstance(data.task, NextToken):
        return {"labels": None, "vocabulary": data.task.vocabulary}
    return {"labels": data.task.class_names("A trial of sites")}


def prepare_simulation(deployed: Experiment, original: Experiment) -> Prepared:
    """Prepare the simulation that a trial with noise from the seed equals to the bit.

    Args:
        deployed: The experiment that `lay_out` returned.
        original: The experiment that `lay_out` was given.
    """
    terms = terms_of(deployed)
    experiment = original.model_copy(update={"clients": terms.schedule.clients, "engine": "one-by-one"})
    prepared = prepare(experiment.model_copy(update={"compiled": "never"}))
    common: dict[str, Any] = {"method": terms.method, "identity": terms.identity, "budget": terms.budget}
    if terms.allowance.record_sums is not None:  # sums are divided by the declared number of records
        common["allowance"] = terms.allowance
    return dataclasses.replace(prepared, **common)


def add_accuracies(summary: Summary, folders: Sequence[Path]) -> Summary:
    """Add to a trial's summary the means of the accuracies and metrics that the sites in `folders` keep.

    A real server never sees these; whoever runs a trial owns all of its sites. A summary with accuracies that sites
    shared with noise is returned as it is.
    """
    if summary.accuracy_noise is not None:
        return summary
    runs = [one for folder in folders for one in status(folder)["runs"][-1:]]
    measured = [one["metrics"] for one in runs if one["metrics"]]
    found = {name: np.array([_nan_if_none(one[name]) for one in runs]) for name in ("personal", "start", "global")}
    figures = {
        "personal": mean(found["personal"]),
        "personal_worst": worst(found["personal"]),
        "start": mean(found["start"]),
        "global": mean(found["global"]),
    }
    known = {name: value if math.isfinite(value) else None for name, value in figures.items()}
    metrics = {
        name: metric_over_clients(
            np.array([_nan_if_none(one[name]) for one in measured]), split_part(name)[0] in LOWER_IS_BETTER
        )
        for name in (measured[0] if measured else ())
    }
    positive = next((one["positive"] for one in runs if one["metrics"]), None)
    return dataclasses.replace(summary, accuracy=known, metrics=metrics or None, positive=positive)


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value
