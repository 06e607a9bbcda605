"""A site's records: read from its file, and encoded as an experiment declares them."""

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
from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError, refuse

FEATURES = "features"
"""Folder, in the site's own, of the features of its records."""


@dataclass(frozen=True)
class SiteFile:
    """The site's file as read: arrays, or a table that an experiment's schema has yet to encode."""

    path: Path
    content: ClientFile | Table


def read_records(folder: Path, rules: Rules) -> SiteFile:
    """Read the file that `data` in the rules of the site in `folder` names."""
    path = folder / rules.data
    if not path.is_file():
        raise UserError(
            f"The file {path} with this site's records is missing: put it there, or correct `data` in site.toml."
        )
    return SiteFile(path, read_arrays(path) if path.suffix.lower() == ".npz" else read_table(path))


def fingerprint_records(file: SiteFile) -> str:
    """Fingerprint of the site's file, by which other sites of its owner know the records again."""
    return people_of([file.path])


def keyed_fingerprint(file: SiteFile, secret: bytes) -> str:
    """Fingerprint of the records, keyed with the site's `secret` so that it reveals nothing about them."""
    return hmac.new(secret, fingerprint_records(file).encode(), hashlib.sha256).hexdigest()


def encode_records(
    file: SiteFile, terms: DeployedTerms, rules: Rules, secret: bytes, folder: Path | None = None
) -> FederatedData:
    """Encode a site's records as the experiment declares them, or refuse data that do not fit.

    Every client's number gets this site's records: a site is only ever asked under its own number.

    Args:
        file: The site's file.
        terms: Terms of the experiment, with the shape and labels that it declares.
        rules: The site's rules, for the label column and the fraction of test records.
        secret: The site's secret, which chooses the test records.
        folder: The site's folder, where features are kept; None to compute them each time.
    """
    try:
        content = file.content
        found, counted = (content, []) if isinstance(content, ClientFile) else _encode_table(content, terms, rules)
        x, y = _to_tensors(found, terms)
        if terms.extractor is not None:
            x = terms.extractor.apply(x, None if folder is None else folder / FEATURES)
    except UserError as error:
        raise RefusedError("data", error) from error
    test = tested(found, rules, secret)
    if test.all():
        raise RefusedError("data", f"{file.path} has no training records")
    many = terms.schedule.clients
    train, held = (_repeat_for_clients(x[places], y[places], many) for places in (~test, test))
    name = file.path.stem
    tables, arrays = ([], [content.x]) if isinstance(content, ClientFile) else ([content], [])
    people = known_people([file.path], tables, arrays)
    dealt = Dealt([name] * many, train, held)
    return FederatedData(name, dealt, terms.learner.task, terms.seen_shape, "", people, disclosed=counted)


def _encode_table(table: Table, terms: DeployedTerms, rules: Rules) -> tuple[ClientFile, list[str]]:
    """Encode a table by the experiment's schema, or its declared columns as numbers.

    Also returns sentences on what was counted in the records, which must not leave the site.
    """
    schema = terms.schema(rules.label)
    if schema is None:
        raise UserError(
            f"{table.path} is a table, but the experiment declares neither `columns` nor a `schema`: use an NPZ file."
        )
    source: Source = "options" if terms.experiment.table is None else "schema"
    if terms.experiment.table is not None:
        table = read_table(table.path, schema.format_of(table.path.stem))
    elif set(table.columns) != set(schema.columns):
        raise UserError(f"{table.path} does not have the declared columns {', '.join(schema.columns)}.")
    else:
        table = replace(table, columns={name: table.columns[name] for name in schema.columns})
    found = Encoding(table, schema, schema.format_of(table.path.stem), source).result()
    refuse(str(table.path), found.problems)
    labels = [schema.label.values[place] for place in found.labels[found.kept]]
    return ClientFile(table.path, found.x[found.kept], labels, None), found.counted


def _to_tensors(file: ClientFile, terms: DeployedTerms) -> tuple[torch.Tensor, torch.Tensor]:
    """Records in the declared shape, and the indices of their labels."""
    if math.prod(file.x.shape[1:]) != math.prod(terms.shape):
        raise UserError(f"The records of {file.path} have shape {file.x.shape[1:]}, but {terms.shape} is declared.")
    x = np.ascontiguousarray(file.x.reshape(-1, *terms.shape))
    return torch.from_numpy(x), torch.from_numpy(number_labels([file], terms.labels))


def tested(found: ClientFile, rules: Rules, secret: bytes) -> np.ndarray:
    """Mask of the test records among a site's records: its own choice, or one by its `secret`."""
    if found.test is not None:
        return found.test
    return _choose_test_records(len(found.labels), rules.test_fraction, secret)


def _choose_test_records(records: int, fraction: float, secret: bytes) -> np.ndarray:
    """Mask of the test records, chosen by the site's secret so that it does not depend on their content."""
    many = min(records - 1, max(1, round(records * fraction))) if records > 1 else 0
    chosen = np.zeros(records, dtype=bool)
    key = int.from_bytes(hashlib.sha256(secret + b"test records").digest(), "big")
    chosen[np.random.default_rng(key).permutation(records)[:many]] = True
    return chosen


def _repeat_for_clients(x: torch.Tensor, y: torch.Tensor, clients: int) -> Split:
    """Split in which every one of `clients` clients has the same records, stored once."""
    return Split(x, y, np.zeros(clients, dtype=np.int64), np.full(clients, len(y), dtype=np.int64))
