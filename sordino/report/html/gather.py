"""Content of a page of runs, read from their store."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from sordino.data.dataset import FederatedData
from sordino.data.summary import label_counts
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.hyperparameters import called
from sordino.experiment.prepare import deal
from sordino.parts.curves import Curve, curve_called
from sordino.privacy.ledger import Row
from sordino.report.html.audits import audit_context, is_audit
from sordino.store.run_summary import Summary
from sordino.store.store import RunRow, Store, unfinished
from sordino.study.compare import Comparison, side_by_side
from sordino.study.verdict import PERSONAL, RankingMetric
from sordino.trained.models import Description, load_models
from sordino.util.files import read_text

ALONE = "local"
"""Name of the method with which every client trains alone."""
SAME_GROUND = ("data", "label", "labels", "partition", "clients", "records", "seed", "test", "test_fraction", "public")
"""Keys that decide which records clients hold and are tested on."""


@dataclass(frozen=True)
class RunContent:
    """One finished run, with everything that a page shows of it."""

    row: RunRow
    summary: Summary
    rounds: list[dict[str, Any]]
    """Rows of its rounds in the store, oldest first."""
    clients: dict[int, float]
    """Accuracy of each client's predictor on its own test records, by client."""
    about: Description | None
    """Description of its models; None where they are gone."""
    metrics: np.ndarray | None
    """(clients, METRICS) of what each client predicts with; None where the models are gone."""
    ledger: list[Row]
    clusters: np.ndarray | None
    """Index of each client's model among the server's, where the server has several."""
    pictures: list[Path]
    """Pictures that the method drew at the end."""

    @functools.cached_property
    def experiment(self) -> Experiment | None:
        """Experiment of the run; None where it names something that is gone, such as a user's own method."""
        try:
            return Experiment.make(self.row.configuration)
        except UserError:
            return None

    @functools.cached_property
    def data(self) -> FederatedData | None:
        """Records as they were dealt; None where they are gone or have changed."""
        try:
            dealt = deal(self.experiment) if self.experiment is not None else None
        except UserError:
            return None
        return dealt if dealt is not None and dealt.people == self.row.people else None

    def names(self) -> dict[int, str]:
        """Name of each client."""
        if self.about is None:
            return {client: f"client {client}" for client in self.clients}
        return dict(enumerate(self.about.clients))

    def labels(self) -> np.ndarray | None:
        """(clients, classes) counts of training records; None where the data are gone."""
        return None if self.data is None else label_counts(self.data)

    def curve(self) -> Curve | None:
        """Curve from budgets to thresholds that its method was given; None without one."""
        try:
            name = getattr(self.experiment.build_method(), "curve", None) if self.experiment is not None else None
            return None if name is None else curve_called(name)
        except UserError:
            return None


@dataclass(frozen=True)
class Group:
    """Runs of one method that differ by their seeds alone."""

    name: str
    runs: list[RunContent]
    alone: list[RunContent]
    """For each of them a run of the store on the same ground in which clients trained alone; empty unless all have
    one."""

    @property
    def first(self) -> RunContent:
        """The run with the first seed."""
        return self.runs[0]

    def without(self, key: str) -> str:
        """Settings that decided its runs, without one key, as JSON."""
        return json.dumps({**_settings(self.first.row.configuration), key: None}, sort_keys=True)

    def plain_name(self, key: str) -> str:
        """Its name without the setting of one key."""
        head, bracket, marks = self.name.partition("[")
        kept = [mark for mark in marks.removesuffix("]").split(",") if mark and not mark.startswith(f"{key}=")]
        return f"{head}[{','.join(kept)}]" if bracket and kept else head


@dataclass(frozen=True)
class PageContent:
    """Content of a page."""

    groups: list[Group]
    comparison: Comparison
    audits: list[dict[str, Any]]
    store: Path
    verdict: list[str]
    """Verdict by the figure that the user chose to judge by; that of `comparison` is always by personal accuracy."""


def gather(names: Sequence[str], store: Store, judge: RankingMetric = PERSONAL) -> PageContent:
    """Read finished runs by their names, grouped by method; `judge` is the figure that their verdict is about."""
    runs = [_read_run(store.get(name), store) for name in dict.fromkeys(names)]
    if len({run.row.people for run in runs}) > 1:
        listed = ", ".join(f"{run.row.run} ({run.row.configuration['data']})" for run in runs[:5])
        raise UserError(f"The runs are not on the same data, so a page cannot compare them: {listed}.")
    named = _group(runs)
    groups = [Group(name, found, _alone(found, store)) for name, found in named.items()]
    results = {group.name: [run.summary for run in group.runs] for group in groups}
    view = runs[0].summary.protect_from
    comparison = side_by_side(results, store, view)
    verdict = [] if judge == PERSONAL else side_by_side(results, store, view, judge).verdict
    return PageContent(groups, comparison, _audits(store.folder, groups), store.folder, verdict)


def runs_of_comparison(path: Path) -> list[str] | None:
    """Names of the runs in a file of `sordino compare --json`; None where the file holds something else."""
    document = read_document(path)
    rows = document.get("rows")
    if not isinstance(rows, list):
        return None
    try:
        return [str(run) for row in rows for run in row["runs"]]
    except (TypeError, KeyError) as error:
        raise UserError(f"{path} is not what `sordino compare --json` prints: a row names no runs.") from error


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON file of one object."""
    try:
        found = json.loads(read_text(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: a page is made of runs, a comparison or an audit.") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no comparison and no audit: make one with `sordino compare --json`.")
    return found


def _read_run(row: RunRow, store: Store) -> RunContent:
    if row.gone or row.summary is None:
        raise unfinished(row, store.folder)
    folder = store.path(row.run)
    clients, about, metrics = _accuracies(row, store)
    return RunContent(
        row=row,
        summary=Summary.from_dict(row.summary),
        rounds=store.curve(row.run),
        clients=clients,
        about=about,
        metrics=metrics,
        ledger=store.ledger(row.run),
        clusters=_clusters(row, folder),
        pictures=sorted(folder.glob("*.png")),
    )


def _accuracies(row: RunRow, store: Store) -> tuple[dict[int, float], Description | None, np.ndarray | None]:
    """Accuracies of clients, description of the models, and metrics: those of the stored models or, where these are
    gone, the accuracies of each client's last test."""
    try:
        models = load_models(row.run, store.folder)
    except (UserError, OSError, SafetensorError):
        known = [one for one in store.clients(row.run) if one["personal"] is not None]
        return {one["client"]: one["personal"] for one in known}, None, None
    task = models.about.meaning.task
    reached = models.metrics[:, task.metrics.index(task.score)]
    known_of = {int(client): float(reached[client]) for client in np.flatnonzero(~np.isnan(reached))}
    return known_of, models.about, models.metrics


def _clusters(row: RunRow, folder: Path) -> np.ndarray | None:
    """Cluster of each client, from the run's models; None where these are gone or there are no clusters."""
    if row.models is None or not (folder / row.models.name).exists():
        return None
    with safe_open(row.models.check(folder, "The file of models"), framework="numpy") as models:
        return models.get_tensor("clusters") if "clusters" in models.keys() else None  # noqa: SIM118


def _group(runs: Iterable[RunContent]) -> dict[str, list[RunContent]]:
    """Group runs whose configurations differ by the seed alone, under the method's name and what sets it apart."""
    found: dict[str, list[RunContent]] = {}
    for run in runs:
        found.setdefault(json.dumps(_settings(run.row.configuration), sort_keys=True), []).append(run)
    names = _names([group[0].row.configuration for group in found.values()])
    return dict(zip(names, found.values(), strict=True))


def _settings(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that decided a run's results, without its seed."""
    indifferent = {"seed", "workers", "store", "data_dir", "set"}
    plain = {key: value for key, value in configuration.items() if key not in indifferent}
    return plain | configuration["set"]


def _names(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of runs: the method, with the settings by which one differs from others of its method. That models are
    blended is told wherever others are not."""
    names = []
    settings = [_settings(one) for one in configurations]
    for configuration, mine in zip(configurations, settings, strict=True):
        rivals = [other for other in settings if other["method"] == mine["method"]]
        apart = {
            key: value
            for key, value in mine.items()
            if value is not None
            and (key, value) != ("personal", "own")
            and any(other.get(key) != value for other in (settings if key == "personal" else rivals))
        }
        names.append(called(configuration, apart))
    return [name if names.count(name) == 1 else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _alone(runs: Sequence[RunContent], store: Store) -> list[RunContent]:
    """For each run, a run of the store in which clients with the same records trained alone; none unless all have
    one."""
    if runs[0].row.method == ALONE:
        return []
    candidates = [row for row in store.all() if row.method == ALONE and row.state == "done"]
    found = []
    for run in runs:
        ground = [run.row.configuration.get(key) for key in SAME_GROUND]
        same = [
            row
            for row in candidates
            if row.people == run.row.people and [row.configuration.get(key) for key in SAME_GROUND] == ground
        ]
        if not same:
            return []
        found.append(_read_run(same[0], store))
    return found


def _audits(folder: Path, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Template values of the store's audits that attacked one of the methods in the same variant."""
    attacked = [(run.row.method, run.summary.variant) for group in groups for run in group.runs]
    found = {path: read_document(path) for path in sorted((folder / "audits").glob("*.json"))}
    return [
        audit_context(one, path)
        for path, one in found.items()
        if is_audit(one) and (one.get("method"), one.get("variant")) in attacked
    ]
