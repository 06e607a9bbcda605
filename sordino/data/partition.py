"""Partitions: which client gets which record.

A deal is an int64 array with one client number per record, or -1 for a record nobody gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sordino.errors import FAILURES, UserError, unknown
from sordino.tasks import Task
from sordino.util.import_by_name import find, user_code_error

NOBODY = -1
RETRIES = 10
"""Dirichlet draws before records are moved to clients that got too few."""
ENOUGH = 10
"""Records that every client of a Dirichlet deal gets, where there are at least twice as many for each."""

WITH_NUMBER = {
    **{"dirichlet": "dirichlet:0.5", "quantity": "quantity:0.5", "shards": "shards:2"},
    "labels": "labels:20%",
}
WITHOUT_NUMBER = ("iid", "natural")
LEAST = "min="
"""Beginning of a partition's second setting: the least number of records of a client."""
LEVELLED = ("iid", "dirichlet", "quantity")
"""Partitions in which records may move from large clients to small ones: who holds which label is not their rule."""


@dataclass(frozen=True)
class Partition:
    """A parsed partition: its kind, and its number (alpha, shards per client, percentage of labels)."""

    kind: str
    number: float
    function: Callable[..., Any] | None = None
    """A user's own, where the kind is its dotted name."""
    least: int = 0
    """Records that every client has at the least."""


def parse(text: str) -> Partition:
    """The partition written as "iid", "natural", "dirichlet:ALPHA", "quantity:ALPHA", "shards:S" or "labels:P%", or a
    user's function as "package.module:function"; behind a comma the least number of records of a client, as in
    "dirichlet:0.5,min=20"."""
    rule, comma, setting = text.partition(",")
    if comma:
        return _with_least(parse(rule.strip()), text, setting.strip())
    kind, separator, written = text.partition(":")
    if kind not in (*WITHOUT_NUMBER, *WITH_NUMBER) and written.isidentifier():
        return Partition(text, math.nan, find(text))
    if kind in WITHOUT_NUMBER:
        if separator:
            raise UserError(f"The partition {kind!r} takes no number, but {text!r} was given; write {kind!r}.")
        return Partition(kind, math.nan)
    if kind not in WITH_NUMBER:
        raise unknown("partition", kind, [*WITHOUT_NUMBER, *WITH_NUMBER])
    example = WITH_NUMBER[kind]
    try:
        number = float(written.removesuffix("%") if kind == "labels" else written)
    except ValueError:
        raise UserError(
            f"The partition {text!r} needs a number after the colon; write for example {example!r}."
        ) from None
    if kind in ("dirichlet", "quantity") and not 0 < number < math.inf:
        raise UserError(f"The partition {text!r} needs an alpha above 0; write for example {example!r}.")
    if kind == "shards" and not (number >= 1 and number.is_integer()):
        raise UserError(f"The partition {text!r} needs a whole number of shards from 1; write for example {example!r}.")
    if kind == "labels" and not 0 < number <= 100:
        raise UserError(
            f"The partition {text!r} needs a percentage above 0 and up to 100; write for example {example!r}."
        )
    return Partition(kind, number)


def _with_least(partition: Partition, text: str, setting: str) -> Partition:
    """The partition with its least number of records, read from the setting behind the comma of `text`."""
    number = setting.removeprefix(LEAST)
    if not setting.startswith(LEAST) or not number.isdecimal() or int(number) < 1:
        raise UserError(f"The partition {text!r} is not understood behind the comma; write for example ',min=20'.")
    if partition.kind not in LEVELLED:
        raise UserError(
            f"The partition {text!r} cannot have a least number of records, because clients hold certain labels only; "
            f"{', '.join(LEVELLED)} can."
        )
    return replace(partition, least=int(number))


def deal(partition: Partition, targets: np.ndarray, task: Task, clients: int, rng: np.random.Generator) -> np.ndarray:
    """int64 (records,): the client of each record, NOBODY for none.

    Args:
        partition: any but the natural one, which is the owner array itself.
        targets: (records,) the task's targets.
        task: the task, whose groups decide who gets what.
        clients: number of clients.
        rng: generator of the deal.
    """
    if clients < 1:
        raise UserError(f"There must be at least one client, but {clients} were asked for.")
    if clients > len(targets):
        raise UserError(
            f"There are more clients ({clients}) than records to deal ({len(targets)}); ask for fewer clients."
        )
    if partition.function is not None:
        return deal_own(partition, targets if targets.ndim == 1 else task.group(targets), clients, rng)
    if partition.least * clients > len(targets):
        raise UserError(
            f"{clients} clients with {partition.least} records each need {partition.least * clients} records, but "
            f"there are {len(targets)}; ask for fewer clients or a smaller minimum."
        )
    dealt = DEALS[partition.kind](*task.partition(targets), clients, partition.number, rng)
    return level(dealt, clients, partition.least, rng) if partition.least else dealt


def deal_own(partition: Partition, labels: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Deal by a user's `function(labels, clients, rng)`, which gives each record's client from 0, or -1 for nobody."""
    name = partition.kind
    assert partition.function is not None
    try:
        dealt = np.asarray(partition.function(labels.copy(), clients, rng))
    except UserError:
        raise
    except FAILURES as error:
        raise user_code_error(f"The partition {name!r} fails", error) from error
    if dealt.shape != labels.shape or not np.issubdtype(dealt.dtype, np.integer):
        raise UserError(
            f"The partition {name!r} gives {dealt.dtype} of shape {dealt.shape}: it must give one whole number, the "
            f"client, for each of the {len(labels)} records."
        )
    if len(dealt) and not (dealt.min() >= NOBODY and dealt.max() < clients):
        raise UserError(
            f"The partition {name!r} gives client numbers from {dealt.min()} to {dealt.max()}: they must lie between 0 "
            f"and {clients - 1}, or be -1 for a record that nobody gets."
        )
    return dealt.astype(np.int64)


def deal_iid(labels: np.ndarray, classes: int, clients: int, number: float, rng: np.random.Generator) -> np.ndarray:
    """Every record to a client at random, sizes equal to within one record."""
    return rng.permutation(np.arange(len(labels)) % clients)


def deal_dirichlet(
    labels: np.ndarray, classes: int, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Each class is cut by shares from Dirichlet(alpha) over the clients still below their fair share.

    As `hetero_dir_partition` of FedLab, which draws again until no client is too small. With many clients and
    few records that may never happen, so after some draws records move from the largest to the smallest.
    """
    fair_share = len(labels) // clients
    # Two records are what a client needs to have one for training and one for testing.
    enough = max(min(2, fair_share), min(ENOUGH, fair_share // 2))
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=classes))[:-1])
    for _ in range(RETRIES):
        dealt = draw_dirichlet(by_class, len(labels), clients, alpha, rng)
        if np.bincount(dealt, minlength=clients).min() >= enough:
            return dealt
    return level(dealt, clients, enough, rng)


def deal_quantity(labels: np.ndarray, classes: int, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Clients of different sizes, by shares from Dirichlet(alpha), with records of all labels at random (the quantity
    skew of Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022); no client
    has fewer than two records where there are as many."""
    shares = rng.dirichlet(np.full(clients, alpha))
    if not np.isfinite(shares).all():  # a tiny alpha: everything to one
        shares = np.eye(clients)[rng.integers(clients)]
    ends = np.round(np.cumsum(shares) * len(labels)).astype(np.int64)
    ends[-1] = len(labels)
    dealt = rng.permutation(np.repeat(np.arange(clients), np.diff(ends, prepend=0)))
    return level(dealt, clients, min(2, len(labels) // clients), rng)


def draw_dirichlet(
    by_class: list[np.ndarray], records: int, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """One draw of the Dirichlet deal; `by_class` has the records of each class."""
    dealt = np.empty(records, np.int64)
    sizes = np.zeros(clients, np.int64)
    for members in by_class:
        if not len(members):
            continue  # after the last record every client may be full, with nobody left to draw
        shares = rng.dirichlet(np.full(clients, alpha)) * (sizes < records / clients)
        if not shares.sum() > 0:
            # A tiny alpha puts all weight on one client; when that one is full, another takes its place.
            shares[rng.choice(np.flatnonzero(sizes < records / clients))] = 1.0
        ends = (np.cumsum(shares) / shares.sum() * len(members)).astype(np.int64)
        ends[-1] = len(members)
        counts = np.diff(ends, prepend=0)
        dealt[rng.permutation(members)] = np.repeat(np.arange(clients), counts)
        sizes += counts
    return dealt


def level(dealt: np.ndarray, clients: int, enough: int, rng: np.random.Generator) -> np.ndarray:
    """Move random records from the largest clients until every client has `enough`.

    The largest clients are lowered to one common size, the highest that frees as many records as are wanted.
    """
    sizes = np.bincount(dealt, minlength=clients)
    wanted = np.maximum(enough - sizes, 0)
    low, high = enough, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= wanted.sum() else (low, middle - 1)
    given = np.maximum(sizes - low, 0)
    spare = int(given.sum() - wanted.sum())
    given[np.flatnonzero(given)[:spare]] -= 1
    moved = rank_within(dealt, clients, rng) < given[dealt]
    levelled = dealt.copy()
    levelled[moved] = rng.permutation(np.repeat(np.arange(clients), wanted))
    return levelled


def rank_within(dealt: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """The place of each record in a random order of its client's records, from 0."""
    order = np.lexsort((rng.random(len(dealt)), dealt))
    starts = np.cumsum(np.bincount(dealt, minlength=clients)) - np.bincount(dealt, minlength=clients)
    rank = np.empty(len(dealt), np.int64)
    rank[order] = np.arange(len(dealt)) - starts[dealt[order]]
    return rank


def deal_shards(labels: np.ndarray, classes: int, clients: int, shards: float, rng: np.random.Generator) -> np.ndarray:
    """Records sorted by label are cut into clients * shards equal pieces, `shards` for each client."""
    pieces = clients * int(shards)
    if pieces > len(labels):
        raise UserError(
            f"{clients} clients with {int(shards)} shards each need {pieces} records, but there are "
            f"{len(labels)}; ask for fewer clients or fewer shards."
        )
    holder = rng.permutation(np.arange(pieces) % clients)
    dealt = np.empty(len(labels), np.int64)
    dealt[np.argsort(labels, kind="stable")] = holder[np.arange(len(labels)) * pieces // len(labels)]
    return dealt


def deal_labels(
    labels: np.ndarray, classes: int, clients: int, percentage: float, rng: np.random.Generator
) -> np.ndarray:
    """Each client holds K = round(percentage of the classes) labels; its holders share a label evenly.

    Client i holds label i mod classes and K - 1 random others (PACFL's noniid-#label, used by AdaDP-CFL). The
    records of a label that nobody holds, possible with few clients, stay undealt.
    """
    kept = max(1, round(percentage / 100 * classes))
    preference = rng.random((clients, classes))
    preference[np.arange(clients), np.arange(clients) % classes] = -1.0
    held = np.zeros((clients, classes), bool)
    np.put_along_axis(held, np.argsort(preference, axis=1)[:, :kept], True, axis=1)
    dealt = np.full(len(labels), NOBODY, np.int64)
    for label in range(classes):
        members = np.flatnonzero(labels == label)
        holders = rng.permutation(np.flatnonzero(held[:, label]))
        if len(holders):
            dealt[rng.permutation(members)] = holders[np.arange(len(members)) % len(holders)]
    return dealt


DEALS: dict[str, Callable[[np.ndarray, int, int, float, np.random.Generator], np.ndarray]] = {
    "iid": deal_iid,
    "dirichlet": deal_dirichlet,
    "quantity": deal_quantity,
    "shards": deal_shards,
    "labels": deal_labels,
}
"""Deals by the name of their partition, from

- `labels` (records,): the group of each record, as `Task.partition` gives it;
- `classes`: number of groups;
- `clients`: number of clients;
- the partition's number (alpha, shards per client, percentage of labels);
- a generator of random numbers,

to the client of each record."""
