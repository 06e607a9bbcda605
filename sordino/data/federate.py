"""From records to clients: the deal, each client's test split, and the fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from sordino.data.dataset import Dataset, Dealt, FederatedData, Split
from sordino.data.formats import quote
from sordino.data.partition import NOBODY, deal, parse, rank_within
from sordino.data.people import same_rows
from sordino.data.persons import Persons, collect, draw_rows
from sordino.errors import UserError, unknown

DEFAULT_CLIENTS = 100
DEFAULT_PARTITION = "dirichlet:0.5"
ROWS_STREAM = 2
"""Number of the stream that draws rows of persons with many."""
LEFT_OUT_NAMED = 5
"""Most owners that are named where some are left out."""

Represent = Callable[[torch.Tensor], torch.Tensor]
"""Function from records to their features, one row for each."""


def federate(
    dataset: Dataset,
    partition: str | None,
    clients: int | None,
    seed: int,
    test_fraction: float = 0.2,
    test: Literal["own", "official"] = "own",
    represent: Represent | None = None,
) -> FederatedData:
    """Deal a data set to clients; equal arguments give equal clients.

    The natural partition makes one client of each owner, with the published test split where there is one;
    every other partition deals the published training split, or all records where none is published.
    `partition` None is natural for data with owners, else dirichlet:0.5; `clients` None is as `client_count` says.
    `test` "own" gives each client `test_fraction` of its records as test records; "official" gives every client the
    whole published test set, and all of its own records for training. `represent` gives the features of records, which
    clients then hold in their place; who holds which record, and all digests, are those of the records.

    Where persons are declared, all records of a person go to one client, and to its training or its test records
    together; of a person with many records, as many are trained on as the declaration admits.
    """
    check(dataset, test_fraction, test)
    chosen = parse(partition or (DEFAULT_PARTITION if dataset.owner is None else "natural"))
    # Two streams, so that the test fraction has no influence on the deal.
    deal_rng, split_rng = (random_stream(seed, stream) for stream in (0, 1))
    if chosen.kind == "natural":
        client, names = natural(dataset, clients)
        dataset = replace(dataset, notes=(*dataset.notes, *note_left_out(dataset, names)))
        in_test, dealt = dataset.test, deal_digest(dataset, None)
    else:
        count = client_count(dataset, clients)
        pool = np.arange(len(dataset.y)) if dataset.test is None else np.flatnonzero(~dataset.test)
        client = np.full(len(dataset.y), NOBODY, np.int64)
        first, member = _group(dataset, pool)
        client[pool] = deal(chosen, dataset.y.numpy()[first], dataset.task, count, deal_rng)[member]
        names = usual_names(count)
        in_test, dealt = None, deal_digest(dataset, client)
    if test == "official" and dataset.test is not None:
        train = _admit_rows(dataset, np.where(dataset.test, NOBODY, client), seed)
        whole = np.flatnonzero(dataset.test)
        return replace(build(dataset, names, train, whole, None, represent), deal=dealt)
    if in_test is None:
        first, member = _group(dataset, np.arange(len(dataset.y)))
        in_test = split(client[first], len(names), test_fraction, split_rng)[member]
    train, tested = _admit_rows(dataset, np.where(in_test, NOBODY, client), seed), np.where(in_test, client, NOBODY)
    test_order, test_sizes = order_by_client(tested, len(names), dataset.person)
    return replace(build(dataset, names, train, test_order, test_sizes, represent), deal=dealt)


def _group(dataset: Dataset, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group records of the places `pool` by person: the place of each person's first record, and for each record of the
    pool the number of its person among these. Without persons every record is by itself."""
    if dataset.person is None:
        return pool, np.arange(len(pool))
    _, first, member = np.unique(dataset.person[pool], return_index=True, return_inverse=True)
    return pool[first], member.reshape(-1)


def _admit_rows(dataset: Dataset, train: np.ndarray, seed: int) -> np.ndarray:
    """Client of each training record, NOBODY for those of a person that go beyond the declared number."""
    if dataset.person is None or dataset.person_rules is None:
        return train
    trained = np.flatnonzero(train != NOBODY)
    drawn = draw_rows(dataset.person[trained], dataset.person_rules.max_rows, [seed, ROWS_STREAM])
    admitted = np.full_like(train, NOBODY)
    admitted[trained[drawn]] = train[trained[drawn]]
    return admitted


def deal_digest(dataset: Dataset, client: np.ndarray | None) -> str:
    """SHA-256 of who holds which record: the records in order, each with its client's number.

    `client` None is the natural partition: the people's files with their owners, so that equal owners are the same
    clients however many of them are chosen and however their records are read or split.
    """
    if client is None and dataset.people:
        return fingerprint(["natural", dataset.people, *dataset.owner_names], [])
    owner = dataset.owner if client is None else client
    return fingerprint(["dealt", len(dataset.y)], [dataset.x, dataset.y, torch.from_numpy(np.asarray(owner))])


def usual_names(clients: int) -> list[str]:
    """Names for clients that have none of their own: client-0, client-1, ..."""
    return [f"client-{number}" for number in range(clients)]


def client_count(dataset: Dataset, clients: int | None) -> int:
    """Number of clients: `clients` if given, else the number of owners of records, else 100."""
    return clients if clients is not None else len(dataset.owner_names) or DEFAULT_CLIENTS


def random_stream(seed: int, stream: int) -> np.random.Generator:
    """One of a seed's independent streams of choices about records."""
    if seed < 0:
        raise UserError(f"The seed must be 0 or more, but {seed} was given.")
    return np.random.default_rng([seed, stream])


def check(dataset: Dataset, test_fraction: float, test: str) -> None:
    """Refuse arguments that no partition can use."""
    if not 0 < test_fraction < 1:
        raise UserError(f"The test fraction must lie between 0 and 1, but {test_fraction} was given; 0.2 is usual.")
    if test not in ("own", "official"):
        raise unknown("test split", test, ["own", "official"])
    if test == "official" and dataset.test is None:
        raise UserError(f'The data set {dataset.name!r} has no official test split; use test = "own".')


def natural(dataset: Dataset, clients: int | None) -> tuple[np.ndarray, list[str]]:
    """The client of each record when clients are owners, and the clients' names.

    With a number of `clients`: the first owners that have both training and test records.
    """
    if dataset.owner is None:
        raise UserError(
            f"The data set {dataset.name!r} has no natural clients; use the partition iid, "
            f"{DEFAULT_PARTITION}, shards:2 or labels:20%."
        )
    owners = len(dataset.owner_names)
    if clients is None:
        return dataset.owner, list(dataset.owner_names)
    held = np.bincount(dataset.owner, minlength=owners)
    tested = held // 2 if dataset.test is None else np.bincount(dataset.owner[dataset.test], minlength=owners)
    usable = np.flatnonzero((tested > 0) & (held > tested))
    if not 1 <= clients <= len(usable):
        raise UserError(
            f"{clients} clients were asked for, but {dataset.name!r} has {len(usable)} owners with both "
            f"training and test records; ask for 1 to {len(usable)}."
        )
    renumbered = np.full(owners, NOBODY, np.int64)
    renumbered[usable[:clients]] = np.arange(clients)
    return renumbered[dataset.owner], [dataset.owner_names[owner] for owner in usable[:clients]]


def note_left_out(dataset: Dataset, names: list[str]) -> list[str]:
    """Sentence on the owners of records that are not among the clients `names`; none where all of them are."""
    taken = set(names)
    left = [name for name in dataset.owner_names if name not in taken]
    if not left:
        return []
    listed = quote(", ".join(left[:LEFT_OUT_NAMED])) + (", ..." if len(left) > LEFT_OUT_NAMED else "")
    return [
        f"{len(left)} of the {len(dataset.owner_names)} owners of records are left out, because {len(names)} clients "
        f"were asked for: {listed}."
    ]


def split(client: np.ndarray, clients: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """bool (records,): a random `fraction` of each client's records as test records, at least one of two or more.

    Args:
        client: (records,) client of each record, NOBODY for none.
        clients: number of clients.
        fraction: share of test records, from 0 to 1.
        rng: generator of the choice.
    """
    dealt = np.flatnonzero(client != NOBODY)
    sizes = np.bincount(client[dealt], minlength=clients)
    wanted = np.clip(np.rint(sizes * fraction).astype(np.int64), np.minimum(1, sizes // 2), np.maximum(sizes - 1, 0))
    in_test = np.zeros(len(client), bool)
    in_test[dealt] = rank_within(client[dealt], clients, rng) < wanted[client[dealt]]
    return in_test


def order_by_client(client: np.ndarray, clients: int, person: np.ndarray | None = None) -> tuple[np.ndarray, list[int]]:
    """The dealt records sorted by client, within a client by `person` where that is given, and how many each client
    has."""
    dealt = np.flatnonzero(client != NOBODY)
    keys = (client[dealt],) if person is None else (person[dealt], client[dealt])
    order = dealt[np.lexsort(keys)]
    return order, np.bincount(client[dealt], minlength=clients).tolist()


def build(
    dataset: Dataset,
    names: list[str],
    train: np.ndarray,
    test_order: np.ndarray,
    test_sizes: list[int] | None,
    represent: Represent | None = None,
) -> FederatedData:
    """Clients as views of shared tensors.

    Args:
        dataset: the records.
        names: the clients' names.
        train: (records,) client of each training record, NOBODY for all others.
        test_order: places of the test records, each client's together.
        test_sizes: number of test records of each client; None gives each of them the whole test set.
        represent: gives the features of records, in the place of which clients hold them.
    """
    train_order, train_sizes = order_by_client(train, len(names), dataset.person)
    if 0 in train_sizes:
        raise UserError(
            f"The client {names[train_sizes.index(0)]!r} of {dataset.name!r} has no training data; "
            "ask for fewer clients, another partition, or give it records."
        )
    shared = [tensor[order] for order in (train_order, test_order) for tensor in (dataset.x, dataset.y)]
    x, y, x_test, y_test = shared
    sizes = np.array(train_sizes)
    tested = np.full(len(names), len(y_test)) if test_sizes is None else np.array(test_sizes)
    begins = np.zeros(len(names), np.int64) if test_sizes is None else tested.cumsum() - tested
    outline = [dataset.task.width, names, list(x.shape), train_sizes, test_sizes]
    persons = _persons_of(dataset, train_order, train_sizes)
    orders = (train_order, test_order)
    of_whom = [] if dataset.person is None else [torch.from_numpy(dataset.person[order]) for order in orders]
    seen, seen_test = (x, x_test) if represent is None else _features(dataset, train_order, test_order, represent)
    trained = Split(seen, y, sizes.cumsum() - sizes, sizes, persons)
    whom = None if test_sizes is None else _persons_of(dataset, test_order, test_sizes)
    dealt = Dealt(names, trained, Split(seen_test, y_test, begins, tested, whom))
    return FederatedData(
        name=dataset.name,
        clients=dealt,
        task=dataset.task,
        shape=tuple(seen.shape[1:]),
        fingerprint=fingerprint(outline, [*shared, *of_whom]),
        people=dataset.people,
        disclosed=[*dataset.disclosed, *same_rows(x.numpy(), y.numpy(), sizes)],
        schema=dataset.schema,
        notes=list(dataset.notes),
    )


def _persons_of(dataset: Dataset, order: np.ndarray, sizes: Sequence[int]) -> Persons | None:
    """Persons whom the records at the places `order` are about, `sizes` of each client; None where nobody says so."""
    if dataset.person is None or dataset.person_rules is None:
        return None
    client = np.repeat(np.arange(len(sizes)), sizes)
    return collect(dataset.person[order], client, len(sizes), dataset.person_rules)


def _features(
    dataset: Dataset, train: np.ndarray, test: np.ndarray, represent: Represent
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of the training and the test records. All of them are asked for at once, in the order of the data set:
    however records are dealt, the same ones are found in a cache."""
    used = np.union1d(train, test)
    found = represent(dataset.x if len(used) == len(dataset.x) else dataset.x[torch.from_numpy(used)])
    first, second = (found[torch.from_numpy(np.searchsorted(used, places))] for places in (train, test))
    return first, second


def fingerprint(outline: list[object], tensors: list[torch.Tensor]) -> str:
    """SHA-256 of the outline (width of the task, names, shape, sizes of each client) and of the tensors' bytes."""
    digest = hashlib.sha256(json.dumps(outline).encode())
    for tensor in tensors:
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
