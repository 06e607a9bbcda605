"""A site's own records, as an experiment declares them."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import numpy as np
import torch

from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.data.own import ClientFile, declared_labels, people_of, read_file
from sordino.deploy.rules import RefusedError, Rules
from sordino.deploy.terms import Terms
from sordino.errors import UserError


def read_records(folder: Path, rules: Rules) -> ClientFile:
    """The site's file."""
    path = folder / rules.data
    if not path.is_file():
        raise UserError(f"There is no file {path} with this site's records: name it under `data` in site.toml.")
    return read_file(path, rules.label or "label", None)


def keyed_fingerprint(file: ClientFile, secret: bytes) -> str:
    """A fingerprint of the records that tells nothing to whoever does not know the secret."""
    return hmac.new(secret, people_of([file.path]).encode(), hashlib.sha256).hexdigest()


def as_declared(file: ClientFile, terms: Terms, rules: Rules, secret: bytes) -> FederatedData:
    """The records as the experiment's clients have them; those of this site stand under every number, and it is asked
    under its own only."""
    try:
        x, y = _fitted(file, terms)
    except UserError as error:
        raise RefusedError("data", error) from error
    test = file.test if file.test is not None else _own_split(len(y), rules.test_fraction, secret)
    if test.all():
        raise RefusedError("data", f"{file.path} has no training records")
    many = terms.schedule.clients
    train, held = (_everywhere(x[places], y[places], many) for places in (~test, test))
    name = file.path.stem
    people = people_of([file.path])
    return FederatedData(name, Dealt([name] * many, train, held), len(terms.labels), terms.shape, "", people)


def _fitted(file: ClientFile, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    columns, x = terms.experiment.columns, file.x
    if columns is not None:
        if file.columns is None or set(file.columns) != set(columns):
            raise UserError(f"{file.path} has the columns {file.columns}, but the experiment declares {columns}.")
        x = x[:, [file.columns.index(column) for column in columns]]
    if x[0].size != int(np.prod(terms.shape)):
        raise UserError(f"The records of {file.path} have shape {x.shape[1:]}, but {terms.shape} is declared.")
    y = declared_labels([file], list(terms.labels))
    return torch.from_numpy(np.ascontiguousarray(x.reshape(-1, *terms.shape))), torch.from_numpy(y)


def _own_split(records: int, fraction: float, secret: bytes) -> np.ndarray:
    """Which records are for testing: chosen by a secret of the site."""
    many = min(records - 1, max(1, round(records * fraction))) if records > 1 else 0
    chosen = np.zeros(records, dtype=bool)
    key = int.from_bytes(hashlib.sha256(secret + b"test records").digest(), "big")
    chosen[np.random.default_rng(key).permutation(records)[:many]] = True
    return chosen


def _everywhere(x: torch.Tensor, y: torch.Tensor, clients: int) -> Split:
    return Split(x, y, np.zeros(clients, dtype=np.int64), np.full(clients, len(y), dtype=np.int64))
