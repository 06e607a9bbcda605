"""Judgement of a site's models on its own test records, and the operating point that its owner chooses there.

Nothing of it leaves the site. Test records are those that were set aside at enrolment, which no run has trained on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.encoding import Encoding
from sordino.data.own import ClientFile, number_labels
from sordino.data.tables import read_table
from sordino.deploy.site.data import format_by, keyed_fingerprint, read_records, tested
from sordino.deploy.site.ledger import SiteLedger, last_noted
from sordino.deploy.site.rules import Rules, read_rules
from sordino.errors import UserError, refuse, writing
from sordino.tasks import Task
from sordino.tasks.judgement import Judgement, OperatingPoint, choose_point, judge, with_point
from sordino.trained.models import Description, Models, models_in
from sordino.trained.predict import group_columns, probabilities
from sordino.util.files import KeptFile, write_whole

POINTS = "operating_points.json"
"""File of a site's operating points, each under the digest of the file of models that it belongs to."""
CHANGED = (
    "The site's records have changed since this run: some of those that are tested on now may have been trained on."
)


@dataclass(frozen=True)
class StoredModels:
    """Models of the last run of a site that is over."""

    run: str
    """Name of the run at the server."""
    number: int
    """Client number of the site in it."""
    digest: str
    """Digest of the file of models."""
    models: Models


@dataclass(frozen=True)
class TestRecords:
    """Test records of a site, as they are judged."""

    x: np.ndarray
    labels: np.ndarray
    columns: dict[str, list[str]]
    """Values of the records in columns by which groups are made."""


@dataclass(frozen=True)
class SiteJudgement:
    """Judgement of a site's models, for its owner."""

    site: str
    run: str
    own: Judgement
    """Judgement of what the site predicts with, at its operating point."""
    shared: Judgement | None
    """Judgement of the server's model, where it has one for all; it predicts the most probable class."""
    operating_point: OperatingPoint | None

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the judgement."""
        return asdict(self)


def stored_models(folder: Path) -> StoredModels:
    """Models that the site in `folder` predicts with: those of the last run that is over."""
    with SiteLedger(folder) as ledger:
        runs = [run for run in ledger.runs() if run["model"] is not None]
    if not runs:
        raise UserError(f"The site in {folder} has no model yet: it gets one when a run that it takes part in is over.")
    last = runs[-1]
    file = KeptFile(last["model"], last["digest_of_model"])
    name = run_name(last["run"])
    return StoredModels(name, int(last["number"]), file.digest, models_in(file.check(folder, "The site's model"), name))


def run_name(run: str) -> str:
    """Name of a run at the server: `run` without the random part behind the space."""
    return "".join(one if one.isprintable() else "?" for one in run.rpartition(" ")[0] or run)


def judge_site(folder: Path, wish: str | None = None) -> SiteJudgement:
    """Judge the models of the site in `folder` on its own test records.

    Args:
        folder: The site's folder.
        wish: Operating point to choose, as `choose_point` takes it, and to store with the model; `none` forgets the
            one that is stored; None keeps it.
    """
    rules, stored = read_rules(folder).rules, stored_models(folder)
    about, task = stored.models.about, stored.models.about.meaning.task
    if not task.judged:
        raise UserError(f"Models that predict {task} are not judged here.")
    with SiteLedger(folder) as ledger, ledger.snapshot():
        secret, noted = ledger.fact("secret"), last_noted(ledger.entries(), "data")
    file = read_records(folder, rules)
    records = _test_records(folder, rules, secret, about)
    if not len(records.labels):
        raise UserError(f"The site {rules.name} has no test records: raise test_fraction in site.toml.")
    own = probabilities(task, stored.models.predictor(stored.number), records.x)
    point = _chosen_point(folder, stored.digest, task, own, records.labels, wish)
    judged = judge(task, own, records.labels, records.columns, None if point is None else point.threshold)
    judged = judged if point is None else with_point(judged, point)
    if noted not in (None, keyed_fingerprint(file, secret)):
        judged.notes.append(CHANGED)
    shared = None
    if len(stored.models.shared) == 1:
        said = probabilities(task, stored.models.shared_model(), records.x)
        shared = judge(task, said, records.labels, records.columns)
    return SiteJudgement(rules.name, stored.run, judged, shared, point)


def stored_point(folder: Path, digest: str) -> OperatingPoint | None:
    """Operating point that the site's owner has chosen for a file of models; None where there is none."""
    found = _read_points(folder).get(digest)
    return None if found is None else OperatingPoint(**found)


def _chosen_point(
    folder: Path, digest: str, task: Task, said: np.ndarray, labels: np.ndarray, wish: str | None
) -> OperatingPoint | None:
    """The operating point that is wished for, which is stored, or the stored one."""
    if wish is None:
        return stored_point(folder, digest)
    point = None if wish == "none" else choose_point(task, said, labels, wish)
    points = {key: value for key, value in _read_points(folder).items() if key != digest}
    with writing(folder / POINTS):
        write_whole(
            folder / POINTS,
            json.dumps(points if point is None else points | {digest: asdict(point)}, indent=1).encode(),
        )
    return point


def _read_points(folder: Path) -> dict[str, Any]:
    path = folder / POINTS
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        for one in found.values():
            if not 0 < OperatingPoint(**one).threshold < 1:
                raise ValueError(one)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged: remove it, and choose the operating point anew.") from error
    return dict(found)


def _test_records(folder: Path, rules: Rules, secret: bytes, about: Description) -> TestRecords:
    """Test records of a site, encoded as its models take them."""
    content = read_records(folder, rules).content
    columns: dict[str, list[str]] = {}
    if content is None:
        raise UserError("Only the app that trains at this site reads its records: let the app judge its models.")
    if isinstance(content, ClientFile):
        found = content
    else:
        schema = about.meaning.schema
        if schema is None:
            raise UserError(f"The models take arrays, but {content.path} is a table.")
        written = format_by(schema, content.path, rules)
        table = read_table(content.path, written)
        made = Encoding(table, schema, written, "schema").result()
        refuse(str(content.path), made.problems)
        found = ClientFile(table.path, made.x[made.kept], made.kept_labels, None, persons=made.kept_persons)
        columns = group_columns({name: list(table.texts(name)) for name in table.columns}, schema, made.kept)
    mask = tested(found, rules, secret)
    columns = {
        name: [value for value, there in zip(values, mask, strict=True) if there] for name, values in columns.items()
    }
    x = np.ascontiguousarray(found.x.reshape(-1, *about.shape))
    return TestRecords(x[mask], number_labels([found], about.meaning.task)[mask], columns)
