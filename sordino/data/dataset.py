"""Records before and after they are dealt to clients, and the meaning of their numbers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sordino.data.persons import Persons, collect
from sordino.data.schema import PersonRules, Schema
from sordino.tasks import Task, read_task


@dataclass(frozen=True)
class Meaning:
    """Meaning of a network's numbers: of its outputs, and of what goes in."""

    task: Task
    """The task, which says what outputs mean."""
    schema: Schema | None = None
    """Rules by which a table's row becomes a record; None for arrays and images."""

    def document(self) -> dict[str, Any]:
        """The meaning as JSON can carry it."""
        schema = None if self.schema is None else self.schema.document()
        return {**self.task.document(), "schema": schema}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Meaning:
        """The meaning that `document` gave."""
        schema = None if document["schema"] is None else Schema.parse(document["schema"])
        return cls(read_task(document), schema)


@dataclass(frozen=True)
class Dataset:
    """Records before they are dealt to clients."""

    name: str
    x: torch.Tensor
    """float32 (records, *shape), already normalised."""
    y: torch.Tensor
    """(records,): the task's targets; for classes int64, each in 0..classes-1."""
    task: Task
    """The task: what y holds, and how it is predicted."""
    owner: np.ndarray | None
    """int64 (records,): the natural client (writer, hospital, file) of each record, index in owner_names."""
    owner_names: tuple[str, ...]
    """Names of the natural clients; () when owner is None."""
    test: np.ndarray | None
    """bool (records,): record belongs to the published test split; None when none is published."""
    people: str = ""
    """SHA-256 of all records as they were loaded, labels apart, or of the user's own files with a sketch of their
    records: `sordino.data.people` says whether two are about the same people."""
    disclosed: tuple[str, ...] = ()
    """Sentences on what was read from the records, or counted in them, that no epsilon covers."""
    schema: Schema | None = None
    """Rules by which records were made of tables' rows; None for arrays and images."""
    notes: tuple[str, ...] = ()
    """Notes for the user on how the data were read; they do not depend on the records."""
    person: np.ndarray | None = None
    """int64 (records,): the person each record is about, one number for each pair of owner and code; None where nobody
    says who that is."""
    person_rules: PersonRules | None = None
    """Declaration by which persons are found; None where there is none."""


@dataclass(frozen=True)
class ClientData:
    """One client's records. The four tensors are contiguous views of tensors shared by all clients."""

    name: str
    x: torch.Tensor
    """Training inputs, float32."""
    y: torch.Tensor
    """Training labels, int64."""
    x_test: torch.Tensor
    """Test inputs; of length 0 when the client has no test records."""
    y_test: torch.Tensor
    """Test labels."""


@dataclass(frozen=True)
class Split:
    """Records of all clients in two tensors; each client's lie together."""

    x: torch.Tensor
    y: torch.Tensor
    starts: np.ndarray
    """int64 (clients,): place of each client's first record."""
    sizes: np.ndarray
    """int64 (clients,): number of records of each client."""
    persons: Persons | None = None
    """Whom the records are about; None where that is not declared."""

    @property
    def units(self) -> np.ndarray:
        """int64 (clients,): number of persons of each client, or of its records where persons are not declared."""
        return self.sizes if self.persons is None else self.persons.counts

    @classmethod
    def of(cls, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Split:
        """Copy the clients' records (x, y) into two tensors."""
        sizes = np.array([len(y) for _, y in parts], dtype=np.int64)
        return cls(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), sizes.cumsum() - sizes, sizes)

    @classmethod
    def of_persons(cls, parts: Sequence[tuple[torch.Tensor, torch.Tensor, np.ndarray]], rules: PersonRules) -> Split:
        """Copy the clients' records (x, y) into two tensors; the third of each part has a code of each record's person,
        of whom all records lie together."""
        found = cls.of([(x, y) for x, y, _ in parts])
        codes = np.concatenate([codes for _, _, codes in parts])
        client = np.repeat(np.arange(len(parts)), found.sizes)
        return replace(found, persons=collect(codes, client, len(parts), rules))

    def part(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One client's records, as views."""
        begin = int(self.starts[client])
        own = slice(begin, begin + int(self.sizes[client]))
        return self.x[own], self.y[own]

    def stacked(self, clients: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Inputs (clients, longest, ...), targets (clients, longest), and one for a record, zero for padding.

        The last is None when all clients have equally many records. Padding holds an arbitrary record.
        """
        starts, sizes = self.starts[clients, None], self.sizes[clients, None]
        count, size = len(starts), int(sizes[0, 0]) if len(sizes) else 0
        if count and (sizes == size).all() and (np.diff(starts, axis=0) == size).all():  # they lie one after another
            own = slice(int(starts[0, 0]), int(starts[0, 0]) + count * size)
            return self.x[own].unflatten(0, (count, size)), self.y[own].unflatten(0, (count, size)), None
        places = np.arange(sizes.max(initial=0))
        real = places < sizes
        index = torch.from_numpy(np.where(real, starts + places, 0))
        valid = None if real.all() else torch.from_numpy(real.astype(np.float32))
        flat = index.reshape(-1)
        x, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
        return x.reshape(*index.shape, *x.shape[1:]), y.reshape(*index.shape, *y.shape[1:]), valid


@dataclass(frozen=True)
class Dealt(Sequence[ClientData]):
    """Clients as views of shared tensors, made on access: a hundred thousand of them cost nothing."""

    names: Sequence[str]
    train: Split
    test: Split

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return tuple(self[place] for place in range(*client.indices(len(self))))
        return ClientData(self.names[client], *self.train.part(client), *self.test.part(client))


@dataclass(frozen=True)
class FederatedData:
    """The records of every client of one federation."""

    name: str
    clients: Sequence[ClientData]
    task: Task
    """The task: what y holds, and how it is predicted."""
    shape: tuple[int, ...]
    """Shape of one record."""
    fingerprint: str
    """SHA-256 over the contents and the deal: equal fingerprints mean byte-equal data for each client."""
    people: str = ""
    """The people the records are about, as `Dataset.people`."""
    deal: str | None = None
    """Digest of which record stands with which client, in which order of clients, whatever each of them sets aside for
    tests; None where nobody knows. Clients are the same in two federations where the deals are equal."""
    disclosed: list[str] = field(default_factory=list)
    """Sentences on what was read from the records, or counted in them, that no epsilon covers."""
    schema: Schema | None = None
    """Rules by which records were made of tables' rows; None for arrays and images."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user on how the data were read; they do not depend on the records."""

    @property
    def meaning(self) -> Meaning:
        """Meaning of the outputs and inputs of a network for these records."""
        return Meaning(self.task, self.schema)

    @property
    def names(self) -> list[str]:
        """Names of the clients, in order."""
        return list(self.clients.names if isinstance(self.clients, Dealt) else (one.name for one in self.clients))

    @functools.cached_property
    def train(self) -> Split:
        """The training records of all clients."""
        if isinstance(self.clients, Dealt):
            return self.clients.train
        return Split.of([(client.x, client.y) for client in self.clients])

    @functools.cached_property
    def test(self) -> Split:
        """The test records of all clients."""
        if isinstance(self.clients, Dealt):
            return self.clients.test
        return Split.of([(client.x_test, client.y_test) for client in self.clients])
