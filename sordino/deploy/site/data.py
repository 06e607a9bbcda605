"""A site's records: read from its file, and encoded as an experiment declares them."""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.data.encoding import Encoding, Source
from sordino.data.own import PERSON_ARRAY, ClientFile, number_labels, read_arrays
from sordino.data.people import known_people, people_of
from sordino.data.persons import collect, draw_rows, number_codes
from sordino.data.schema import Format, PersonRules, Schema
from sordino.data.tables import TextTable, guess_format, read_table
from sordino.deploy.app import METHOD, AppUpdate
from sordino.deploy.site.rules import WRITTEN, RefusedError, Rules
from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError, explain_invalid, refuse
from sordino.features.extractor import count_shared

FEATURES = "features"
"""Folder, in the site's own, of the features of its records."""


@dataclass(frozen=True)
class SiteFile:
    """The site's file as read: arrays, or a table that an experiment's schema has yet to encode."""

    path: Path
    content: ClientFile | TextTable | None
    """Records, or a table that is yet to be encoded; None where an app reads the file, and nobody else."""


def read_records(folder: Path, rules: Rules) -> SiteFile:
    """Read the file that `data` in the rules of the site in `folder` names."""
    path = folder / rules.data
    if not path.is_file():
        raise UserError(
            f"The file {path} with this site's records is missing: put it there, or correct `data` in site.toml."
        )
    if rules.methods == (METHOD,):
        return SiteFile(path, None)
    if path.suffix.lower() == ".npz":
        return SiteFile(path, read_arrays(path, None if rules.person is None else PersonRules(rules.person)))
    return SiteFile(path, read_table(path, own_format(rules, guess_format(path))))


def own_format(rules: Rules, otherwise: Format) -> Format:
    """Format of the site's table as its rules say, and `otherwise` where they say nothing."""
    said = {key: value for key in WRITTEN if (value := getattr(rules, key)) is not None}
    try:
        return Format(**(otherwise.model_dump(include=set(WRITTEN)) | said))
    except ValidationError as error:
        raise UserError(f"site.toml: {explain_invalid(error.errors()[0])}.") from error


def format_by(schema: Schema, path: Path, rules: Rules) -> Format:
    """Format in which a site's table is read by a schema: that of the rules, then what the schema says of the site or
    of its file, then what it says of all files, unless this one plainly has another delimiter."""
    found = schema.files.get(rules.name, schema.files.get(path.stem))
    if found is None:
        looks = guess_format(path)
        found = looks if looks.delimiter != schema.delimiter else schema
    return own_format(rules, found)


def read_by(schema: Schema, file: SiteFile, rules: Rules) -> tuple[int, list[str]]:
    """Read the site's table by a schema, and refuse one that does not fit.

    Returns the number of its records, and sentences on what was counted in them, for the owner alone.
    """
    if isinstance(file.content, ClientFile):
        raise UserError(f"{file.path} holds arrays: a schema says what the columns of tables are.")
    found, counted = _encode_by(schema, file.path, rules, "schema")
    return len(found.labels), counted


def _encode_by(schema: Schema, path: Path, rules: Rules, source: Source) -> tuple[ClientFile, list[str]]:
    """Encode the table in a file by a schema; also sentences on what was counted in it."""
    written = format_by(schema, path, rules)
    return _encode(read_table(path, written), schema, written, source)


def _encode(table: TextTable, schema: Schema, written: Format, source: Source) -> tuple[ClientFile, list[str]]:
    found = Encoding(table, schema, written, source).result()
    refuse(str(table.path), found.problems)
    encoded = ClientFile(table.path, found.x[found.kept], found.kept_labels, None, persons=found.kept_persons)
    return encoded, found.counted


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
    if file.content is None:
        return _unread(file, terms)
    try:
        content = file.content
        found, counted = (content, []) if isinstance(content, ClientFile) else _encode_table(content, terms, rules)
        x, y = _to_tensors(found, terms)
        if terms.extractor is not None:
            counted = [*counted, *count_shared(terms.extractor, x)]
            x = terms.extractor.apply(x, None if folder is None else folder / FEATURES)
    except UserError as error:
        raise RefusedError("data", error) from error
    of_whom = terms.experiment.person_rules
    if of_whom is not None and found.persons is None:
        raise RefusedError("data", f"{file.path} has no {PERSON_ARRAY!r} that says whom its records are about")
    test, person = tested(found, rules, secret), _numbers(found)
    if test.all():
        raise RefusedError("data", f"{file.path} has no training records")
    many = terms.schedule.clients
    places = np.flatnonzero(~test)
    if person is not None and of_whom is not None:
        places = places[draw_rows(person[places], of_whom.max_rows, [_key(secret, b"rows of persons")])]
    train = _split_of(x, y, places, many, person, of_whom)
    held = _split_of(x, y, np.flatnonzero(test), many, person, of_whom)
    name = file.path.stem
    tables, arrays = ([], [content.x]) if isinstance(content, ClientFile) else ([content], [])
    people = known_people([file.path], tables, arrays)
    dealt = Dealt([name] * many, train, held)
    return FederatedData(name, dealt, terms.learner.task, terms.seen_shape, "", people, disclosed=counted)


def _unread(file: SiteFile, terms: DeployedTerms) -> FederatedData:
    """Stand-in for records that an app reads: one of zeros for each client, and none for testing."""
    if not isinstance(terms.method, AppUpdate):
        raise RefusedError("data", f"{file.path} is read by an app alone")
    many, zeros = terms.schedule.clients, torch.zeros(1, *terms.shape)
    labels = torch.zeros(1, dtype=torch.int64)
    dealt = Dealt(
        [file.path.stem] * many,
        _repeat_for_clients(zeros, labels, many),
        _repeat_for_clients(zeros[:0], labels[:0], many),
    )
    people = known_people([file.path], [], [])
    return FederatedData(file.path.stem, dealt, terms.learner.task, terms.seen_shape, "", people)


def _encode_table(table: TextTable, terms: DeployedTerms, rules: Rules) -> tuple[ClientFile, list[str]]:
    """Encode a table by the experiment's schema, or its declared columns as numbers.

    Also returns sentences on what was counted in the records, which must not leave the site.
    """
    schema = terms.schema(rules.label)
    if schema is None:
        raise UserError(
            f"{table.path} is a table, but the experiment declares neither `columns` nor a `schema`: use an NPZ file."
        )
    if terms.experiment.table is not None:
        return _encode_by(schema, table.path, rules, "schema")
    wanted = [*schema.columns, *(name for name in (schema.person,) if name and name not in schema.columns)]
    if set(table.columns) != set(wanted):
        raise UserError(f"{table.path} does not have the declared columns {', '.join(schema.columns)}.")
    in_order = replace(table, columns={name: table.columns[name] for name in wanted})
    return _encode(in_order, schema, own_format(rules, guess_format(table.path)), "options")


def _to_tensors(file: ClientFile, terms: DeployedTerms) -> tuple[torch.Tensor, torch.Tensor]:
    """Records in the declared shape, and their targets."""
    if math.prod(file.x.shape[1:]) != math.prod(terms.shape):
        raise UserError(f"The records of {file.path} have shape {file.x.shape[1:]}, but {terms.shape} is declared.")
    x = np.ascontiguousarray(file.x.reshape(-1, *terms.shape))
    return torch.from_numpy(x), torch.from_numpy(number_labels([file], terms.learner.task))


def tested(found: ClientFile, rules: Rules, secret: bytes) -> np.ndarray:
    """Mask of the test records among a site's records: its own choice, or one by its `secret`."""
    if found.test is not None:
        return found.test
    person = _numbers(found)
    units = np.arange(len(found.labels)) if person is None else person
    return _choose_test_records(int(units.max(initial=-1)) + 1, rules.test_fraction, secret)[units]


def _numbers(found: ClientFile) -> np.ndarray | None:
    """Number of the person of each of a site's records; None where the file does not say who that is."""
    return None if found.persons is None else number_codes(found.persons, np.zeros(len(found.labels), dtype=np.int64))


def _choose_test_records(records: int, fraction: float, secret: bytes) -> np.ndarray:
    """Mask of the test records, chosen by the site's secret so that it does not depend on their content."""
    many = min(records - 1, max(1, round(records * fraction))) if records > 1 else 0
    chosen = np.zeros(records, dtype=bool)
    chosen[_stream(secret, b"test records").permutation(records)[:many]] = True
    return chosen


def _stream(secret: bytes, purpose: bytes) -> np.random.Generator:
    """Generator for a choice that follows from the site's secret alone."""
    return np.random.default_rng(_key(secret, purpose))


def _key(secret: bytes, purpose: bytes) -> int:
    """Key of a choice that follows from the site's secret alone."""
    return int.from_bytes(hashlib.sha256(secret + purpose).digest(), "big")


def _split_of(
    x: torch.Tensor,
    y: torch.Tensor,
    places: np.ndarray,
    clients: int,
    person: np.ndarray | None,
    rules: PersonRules | None,
) -> Split:
    """Split of the records at some places, under every client's number; those of a person lie together where `person`
    numbers each record's and the experiment declares persons by `rules`."""
    if person is None or rules is None:
        return _repeat_for_clients(x[places], y[places], clients)
    places = places[np.argsort(person[places], kind="stable")]
    known = collect(person[places], np.zeros(len(places), dtype=np.int64), 1, rules)
    return replace(_repeat_for_clients(x[places], y[places], clients), persons=known.repeated(clients))


def _repeat_for_clients(x: torch.Tensor, y: torch.Tensor, clients: int) -> Split:
    """Split in which every one of `clients` clients has the same records, stored once."""
    return Split(x, y, np.zeros(clients, dtype=np.int64), np.full(clients, len(y), dtype=np.int64))
