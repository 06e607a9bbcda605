"""A site's own records, as an experiment declares them."""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.data.encoding import Encoding, Source
from sordino.data.own import ClientFile, number_labels, read_arrays
from sordino.data.people import known_people, people_of
from sordino.data.tables import Table, read_table
from sordino.deploy.site.rules import RefusedError, Rules
from sordino.deploy.terms import Terms
from sordino.errors import UserError, refuse


@dataclass(frozen=True)
class SiteFile:
    """The site's file as it was read: arrays, or a table whose columns an experiment has yet to name."""

    path: Path
    content: ClientFile | Table


def read_records(folder: Path, rules: Rules) -> SiteFile:
    """The site's file."""
    path = folder / rules.data
    if not path.is_file():
        raise UserError(f"There is no file {path} with this site's records: name it under `data` in site.toml.")
    return SiteFile(path, read_arrays(path) if path.suffix.lower() == ".npz" else read_table(path))


def keyed_fingerprint(file: SiteFile, secret: bytes) -> str:
    """A fingerprint of the records that tells nothing to whoever does not know the secret."""
    return hmac.new(secret, people_of([file.path]).encode(), hashlib.sha256).hexdigest()


def as_declared(file: SiteFile, terms: Terms, rules: Rules, secret: bytes) -> FederatedData:
    """The records as the experiment's clients have them; those of this site stand under every number, and it is asked
    under its own only."""
    try:
        content = file.content
        found, counted = (content, []) if isinstance(content, ClientFile) else _encoded(content, terms, rules)
        x, y = _fitted(found, terms)
    except UserError as error:
        raise RefusedError("data", error) from error
    test = found.test if found.test is not None else _own_split(len(y), rules.test_fraction, secret)
    if test.all():
        raise RefusedError("data", f"{file.path} has no training records")
    many = terms.schedule.clients
    train, held = (_everywhere(x[places], y[places], many) for places in (~test, test))
    name = file.path.stem
    tables, arrays = ([], [content.x]) if isinstance(content, ClientFile) else ([content], [])
    people = known_people([file.path], tables, arrays)
    dealt = Dealt([name] * many, train, held)
    return FederatedData(name, dealt, terms.learner.task, terms.shape, "", people, disclosed=counted)


def _encoded(table: Table, terms: Terms, rules: Rules) -> tuple[ClientFile, list[str]]:
    """A table's records, by the experiment's schema or its declared columns as numbers, and sentences with what was
    counted in them."""
    schema = terms.schema(rules.label)
    if schema is None:
        raise UserError(f"{table.path} is a table, but the experiment declares arrays: neither columns nor a schema.")
    source: Source = "options" if terms.experiment.table is None else "schema"
    if terms.experiment.table is not None:
        table = read_table(table.path, schema.format_of(table.path.stem))
    elif set(table.columns) != set(schema.columns):
        raise UserError(f"{table.path} has not the columns {', '.join(schema.columns)}, which are declared.")
    else:
        table = replace(table, columns={name: table.columns[name] for name in schema.columns})
    found = Encoding(table, schema, schema.format_of(table.path.stem), source).result()
    refuse(str(table.path), found.problems)
    labels = [schema.label.values[place] for place in found.labels[found.kept]]
    return ClientFile(table.path, found.x[found.kept], labels, None), found.counted


def _fitted(file: ClientFile, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    if math.prod(file.x.shape[1:]) != math.prod(terms.shape):
        raise UserError(f"The records of {file.path} have shape {file.x.shape[1:]}, but {terms.shape} is declared.")
    x = np.ascontiguousarray(file.x.reshape(-1, *terms.shape))
    return torch.from_numpy(x), torch.from_numpy(number_labels([file], terms.labels))


def _own_split(records: int, fraction: float, secret: bytes) -> np.ndarray:
    """Which records are for testing: chosen by a secret of the site."""
    many = min(records - 1, max(1, round(records * fraction))) if records > 1 else 0
    chosen = np.zeros(records, dtype=bool)
    key = int.from_bytes(hashlib.sha256(secret + b"test records").digest(), "big")
    chosen[np.random.default_rng(key).permutation(records)[:many]] = True
    return chosen


def _everywhere(x: torch.Tensor, y: torch.Tensor, clients: int) -> Split:
    return Split(x, y, np.zeros(clients, dtype=np.int64), np.full(clients, len(y), dtype=np.int64))
