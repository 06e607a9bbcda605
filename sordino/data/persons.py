"""Persons: which rows of a client are of one person, who is then protected as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.data.schema import PersonRules

NOBODY = frozenset(
    {"", "na", "n/a", "n.a.", "#n/a", "nan", "nat", "none", "null", "nil", "<na>", "missing", "unknown", "?", "-", "--"}
    | {"inf", "-inf"}
)
"""Texts that stand for a code that is missing, in small letters. All persons without a code would else be one, whose
mean each of them moves by more than is charged for it."""


@dataclass(frozen=True)
class Persons:
    """The persons of all clients whose records lie together, client by client and person by person."""

    rules: PersonRules
    first: np.ndarray
    """int64 (persons,): place of each person's first record."""
    rows: np.ndarray
    """int64 (persons,): number of each person's records."""
    starts: np.ndarray
    """int64 (clients,): place of each client's first person."""
    counts: np.ndarray
    """int64 (clients,): number of persons of each client."""

    def places(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of the records of a client's persons, (persons, `max_rows`), and the share that each record
        has in its person's mean; places without a record have share zero and an arbitrary record of the client."""
        own = slice(int(self.starts[client]), int(self.starts[client] + self.counts[client]))
        first, rows = self.first[own, None], self.rows[own, None]
        steps = np.arange(self.rules.max_rows)
        shares = np.where(steps < rows, 1 / rows, 0.0).astype(np.float32)
        return torch.from_numpy(first + np.minimum(steps, rows - 1)), torch.from_numpy(shares)

    def repeated(self, clients: int) -> Persons:
        """The persons of the only client as those of each of `clients`, stored once."""
        starts, counts = (np.full(clients, one[0]) for one in (self.starts, self.counts))
        return replace(self, starts=starts, counts=counts)

    def codes(self, client: int) -> np.ndarray:
        """int64 (records,): a code of the person of each of a client's records, in their order."""
        own = slice(int(self.starts[client]), int(self.starts[client] + self.counts[client]))
        return np.repeat(np.arange(int(self.counts[client])), self.rows[own])


def code_of(text: str) -> str:
    """A code as it is compared: its text, without space around it, and without the ".0" of a whole number that was
    stored as a float. Nothing else is the same: two persons who were taken for one would pay twice."""
    text = text.strip()
    whole, point, zeros = text.partition(".")
    return whole if point and whole.isascii() and whole.isdigit() and not zeros.strip("0") else text


def names_somebody(text: str) -> bool:
    """Whether a text is a code, and not one of the words for one that is missing."""
    return code_of(text).casefold() not in NOBODY


def number_codes(codes: Sequence[str], clients: np.ndarray) -> np.ndarray:
    """Number the persons of all clients, int64 (records,): equal codes at one client are one person. Codes are compared
    within a client only, and numbered by their first place: contents do not decide the order.

    Args:
        codes: code of each record's person.
        clients: int64 (records,): the client that holds the record.
    """
    known: dict[tuple[int, str], int] = {}
    pairs = zip(clients.tolist(), codes, strict=True)
    return np.array([known.setdefault(pair, len(known)) for pair in pairs], dtype=np.int64)


def draw_rows(person: np.ndarray, most: int, stream: Sequence[int]) -> np.ndarray:
    """Draw at most `most` records of each person at random, bool (records,).

    Each person has draws of its own: how many rows somebody has does not decide which rows of others are taken.

    Args:
        person: int64 (records,): number of each record's person.
        most: largest number of records of one person.
        stream: numbers that identify this choice.
    """
    order = np.argsort(person, kind="stable")
    numbers, begins, rows = np.unique(person[order], return_index=True, return_counts=True)
    drawn = np.ones(len(person), dtype=bool)
    for place in np.flatnonzero(rows > most).tolist():
        random = np.random.default_rng([*stream, int(numbers[place])])
        left_out = random.permutation(int(rows[place]))[most:]
        drawn[order[begins[place] + left_out]] = False
    return drawn


def collect(person: np.ndarray, client: np.ndarray, clients: int, rules: PersonRules) -> Persons:
    """Find the persons among records that lie together by client and person.

    Args:
        person: int64 (records,): number of each record's person.
        client: int64 (records,): its client.
        clients: number of clients.
        rules: the declaration.
    """
    changes = np.append(True, (person[1:] != person[:-1]) | (client[1:] != client[:-1])) if len(person) else person > 0
    first = np.flatnonzero(changes)
    counts = np.bincount(client[first], minlength=clients)
    return Persons(rules, first, np.diff(np.append(first, len(person))), counts.cumsum() - counts, counts)
