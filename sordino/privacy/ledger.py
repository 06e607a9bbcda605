"""The privacy ledger of a run: every release that left a client, and what it costs that client against each observer.

The ledger holds a row for each release of each question, chained by SHA-256 so that a lost or altered row shows. A row
names every client that sent, how far each could move the result, and the noise that each observer meets there, so
that epsilon is computed from the rows alone. For each observer (view) and each client the ledger keeps mu^2, the sum
over the client's own releases of (sensitivity / noise)^2; for a client's records the list of sampled releases that they
went through. Everything that a unit has paid is composed: where records are protected, what was released of the whole
client counts for each of its records too.

Neighbours (`Unit.neighbours`): one client's contributions replaced by null ones (zero-out), under the same schedule; at
record level one record's contents replaced by nothing, its place kept. Who takes part is decided without looking at
data and is not hidden, so sampling earns no amplification: a client pays for the rounds in which it took part.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sordino.federation.message import digest
from sordino.privacy import integers
from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of, mu_of
from sordino.privacy.accounting.sampled_gaussian import (
    ROWS,
    Recipe,
    record_epsilon,
    replaced_epsilon,
    rows_epsilon,
    sites_attack_accuracy,
    sites_epsilon,
)
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.shared_noise import Multipliers
from sordino.privacy.integers import CLIENTS, RECORDS, Gap
from sordino.privacy.release import PROMISED, Charge, Public, Releases
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View, honest_shares

Promise = tuple[float, float]
"""An epsilon, and the delta at which it holds."""
Kind = tuple[float, Multipliers]
"""A kind of sampled sum: its sampling rate, and its noise multiplier as each observer meets it. Of what is promised an
epsilon, and its delta in the multipliers' place."""
SeenRecipe = tuple[tuple[float, Multipliers, int], ...]
"""Sampled sums that a record went through: rate, multiplier for each observer, and how many."""
NO_PROMISE: Promise = (0.0, 0.0)
FIRST_LINK = bytes(32)
"""Link to which the first row is chained."""
ATTEMPT_SHIFT = 32
"""Bits of a question's number; higher bits count earlier attempts at it."""
REPLACED_STEP = 0.02
"""Relative step of the search for the epsilon of a replaced person."""
ROUNDING = 1e-12
"""Relative size below which an unpaid rest of a sum of costs is rounding."""


@dataclass(frozen=True)
class Row:
    """One kind of release of one question: who sent it, and what it cost each of them.

    The figures are float64, one for each owner, or one for all of them where they are equal.
    """

    question: int
    round: int
    step: str
    release: str
    owners: bytes
    """Client numbers, each four bytes, little-endian."""
    sensitivity: bytes
    """Largest change of the result by one owner, in the L2 norm."""
    noise: bytes
    """Standard deviation of the noise that the outsider, a peer and the server meet there: three numbers an owner.
    Where records pay: the noise that each of them meets over that of one message, of which `sampled` tells."""
    told: str = ""
    """SHA-256 of the message to which it answers: the same noise never answers another one."""
    exposed: bool = False
    """Whether it charges for single messages becoming known that had been paid for in a sum."""
    reason: str = ""
    """Reason why no noise covers the release; empty when noise does."""
    pool: str = ""
    """Records that are charged, at record level: `training` or `validation`; `promised` where all are, and of what they
    pay only epsilon and delta are known."""
    sampled: bytes = b""
    """Sampling rate, noise multiplier of one message and number of times for each owner, at record level; of what is
    promised epsilon, delta and one."""
    entries: int = 0
    """Noisy whole numbers that one owner sent; zero where noise is in floating point."""
    shares: int = 1
    """Guaranteed number of draws in each number that an outsider sees: not how many answered."""

    @classmethod
    def of(cls, about: tuple[int, int, str, str], clients: Sequence[int], charge: Charge, told: str = "") -> Row:
        """Row of a charge.

        Args:
            about: question, round, step and release.
            clients: numbers of the clients that send.
            charge: what it costs each of them.
            told: digest of the message to which it answers.
        """
        return cls(
            *about,
            owners=np.asarray(clients, dtype="<u4").tobytes(),
            sensitivity=np.asarray(charge.sensitivity, dtype="<f8").tobytes(),
            noise=np.asarray(charge.noise, dtype="<f8").tobytes(),
            told=told,
            reason=charge.reason if charge.general or not charge.reason else f"{about[3]}: {charge.reason}",
            pool=charge.pool or "",
            sampled=b"" if charge.sampled is None else charge.sampled.astype("<f8").tobytes(),
            entries=charge.entries,
            shares=charge.shares,
        )

    def clients(self) -> np.ndarray:
        """The numbers of the clients that sent."""
        return np.frombuffer(self.owners, dtype="<u4").astype(np.int64)

    def histories(self) -> np.ndarray:
        """Rows of `sampled`, at record level: (owners, 3)."""
        return np.frombuffer(self.sampled, dtype="<f8").reshape(-1, 3)

    @property
    def equal_for_all(self) -> bool:
        """Whether all observers meet the same noise on what records pay for."""
        return len(set(np.frombuffer(self.noise, dtype="<f8").tolist())) == 1

    def sums(self) -> list[tuple[Kind, int]]:
        """Kind and number of the sampled sums of each owner, at record level."""
        noise = np.frombuffer(self.noise, dtype="<f8").reshape(-1, len(VIEWS))
        noise = np.ones_like(noise) if self.pool == PROMISED else noise  # a delta stands in the multiplier's place
        histories = self.histories()
        met = (histories[:, 1:2] * noise).tolist()
        return [
            ((rate, (outsider, peer, server)), int(count))
            for (rate, _, count), (outsider, peer, server) in zip(histories.tolist(), met, strict=True)
        ]

    def costs(self) -> np.ndarray:
        """mu^2 that the release adds for each owner and view: (views, owners or 1)."""
        sensitivity = np.frombuffer(self.sensitivity, dtype="<f8").reshape(-1, 1)
        noise = np.frombuffer(self.noise, dtype="<f8").reshape(-1, len(VIEWS))
        if not sensitivity.any():
            return np.zeros((len(VIEWS), 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(sensitivity == 0, 0.0, sensitivity / noise)
        found: np.ndarray = np.square(ratio).T
        if self.entries and not self.pool:
            variances = [integer_gap(self.entries, self.pool, self.shares, view).variance for view in VIEWS]
            found = found / np.array([[1 - 1 / (12 * variance)] for variance in variances])
        return found

    def link(self, previous: bytes, lacking: Collection[str] = ()) -> bytes:
        """SHA-256 that binds this row to all rows before it; `lacking` are fields that rows did not have when it was
        written."""
        values = tuple(value for name, value in vars(self).items() if name not in lacking)
        return hashlib.sha256(previous + repr(values).encode()).digest()


class Ledger:
    """Rows of everything that left the clients of one run, and its cost for each of them."""

    def __init__(self, clients: int, unit: Unit = Unit.CLIENT, rows: Iterable[Row] = (), sites: int = 1) -> None:
        """`unit` is what epsilons protect; of persons, `sites` is the largest number of clients that know one."""
        self.unit, self.sites = unit, sites
        self.rows: list[Row] = []
        self.links: list[bytes] = []
        self.spent = np.zeros((len(VIEWS), clients))
        """mu^2 of each client as a whole, for each view."""
        self._covered = np.zeros((len(VIEWS), clients))
        self._in_sums: dict[str, np.ndarray] = {}
        """mu^2 by release that each view has yet to pay for single messages that it knows only in sums: (views,
        clients)."""
        self._histories: dict[str, dict[int, dict[Kind, int]]] = {}
        self._times: dict[str, np.ndarray] = {}
        self._attempts: dict[int, int] = {}
        self._entries: dict[tuple[str, int], np.ndarray] = {}
        """Noisy whole numbers that each client has sent, by pool and by guaranteed shares."""
        for row in rows:
            self.append(row)

    @property
    def head(self) -> bytes:
        """The link of the last row: it stands for the whole ledger."""
        return self.links[-1] if self.links else FIRST_LINK

    def charge(
        self, releases: Releases, question: int, round: int, step: str, allowance: Allowance, public: Public
    ) -> list[Row]:
        """Charge everything that a step is about to send, and return the new rows.

        Args:
            releases: what the step sends, by name.
            question: number of the question within the run.
            round: number of the round.
            step: name of the step.
            allowance: noise that releases may count on.
            public: message and public states on which bounds depend.
        """
        told = digest(public.message) if releases else ""
        rows = []
        charges = {name: release.charge(allowance, public) for name, release in releases.items()}
        for name, joint in join_drawn(charges).items():
            charge = joint.known(allowance.known) if allowance.known else joint
            rows.append(Row.of((question, round, step, name), public.clients, charge, told))
        for row in rows:
            self.append(row)
        return rows

    def expose(self, row: Row) -> list[Row]:
        """Raise all observers' cost of a row to the server's: its single messages become known. Return the new rows."""
        about = (row.question, row.round, row.step)
        return self._exposed(row.release, row.clients(), about, unpaid_in_sums(row))

    def expose_all(self, clients: Sequence[int], about: tuple[int, int, str]) -> list[Row]:
        """Charge everybody the server's price for all that clients have sent so far; the rows that this adds.

        `about` is question, round and step of what tells of it.
        """
        found = [self._exposed(name, np.asarray(clients), about, np.inf) for name in list(self._in_sums)]
        return [row for rows in found for row in rows]

    def _exposed(
        self, name: str, clients: np.ndarray, about: tuple[int, int, str], most: np.ndarray | float
    ) -> list[Row]:
        unpaid = np.minimum(self._in_sums[name][:, clients], most)
        # Measured by what noise covers: what has been spent is infinite once something has left bare, and everything
        # would count as rounding.
        unpaid = np.where(unpaid > ROUNDING * self._covered[-1, clients], unpaid, 0.0)
        if not unpaid.any():
            return []
        with np.errstate(divide="ignore"):
            charge = Charge(np.ones(1), 1 / np.sqrt(unpaid.T))
        row = dataclasses.replace(Row.of((*about, name), clients.tolist(), charge), exposed=True)
        self.append(row)
        return [row]

    def append(self, row: Row, link: bytes | None = None) -> None:
        """Add a row and its cost. `link` is the row's link behind those that are here, where it was checked when the
        row was read; None to compute it."""
        clients, costs = row.clients(), row.costs()
        if row.release not in self._in_sums:
            self._in_sums[row.release] = np.zeros_like(self.spent)
        if costs.any():  # records alone may pay
            self.spent[:, clients] += costs
            if not row.reason:
                self._covered[:, clients] += costs
            waiting = self._in_sums[row.release]
            waiting[:, clients] = np.maximum(waiting[:, clients] + (-costs if row.exposed else _unpaid(costs)), 0.0)
        if row.pool:
            histories = self._histories.setdefault(row.pool, {})
            for client, (kind, count) in zip(clients.tolist(), row.sums(), strict=True):
                history = histories.setdefault(client, {})
                history[kind] = history.get(kind, 0) + count
        if row.entries:
            about = (row.pool, row.shares)
            sent = self._entries.setdefault(about, np.zeros(self.spent.shape[1], dtype=np.int64))
            sent[clients] += row.entries
        question, before = split_attempt(row.question)
        self._attempts[question] = max(self.attempts(question), before + 1)
        if not row.exposed and not before:
            self._times[row.release] = self.times(row.release)
            self._times[row.release][clients] += 1
        self.links.append(row.link(self.head) if link is None else link)
        self.rows.append(row)

    def completed(
        self,
        rounds: int,
        turns: int,
        mu: Sequence[float] = (),
        planned: Mapping[str, Mapping[int, SeenRecipe]] | None = None,
    ) -> Ledger:
        """The ledger of the whole plan of which this one is a part: nothing in it is less than here.

        A run whose end, or whose questions, clients' answers may have chosen is a function of all that the plan would
        have released, and the cost of the whole plan covers it; what was charged so far does not.

        Args:
            rounds: number of planned rounds.
            turns: most rounds in which a client takes part; each is charged at the price of the dearest round, and
                what was asked behind the last round once.
            mu: least cost of every client, one for each view.
            planned: recipes of clients by pool. Later attempts at a question are added, since no plan knows of them.
                Without it, what records went through is repeated for `turns` rounds.
        """
        whole = self._of(self.rows)
        if not whole.rows:
            return whole  # nothing left anybody: no answer can have chosen anything
        spent, covered = np.zeros(len(VIEWS)), np.zeros(len(VIEWS))
        entries: Counter[tuple[str, int]] = Counter()
        taken: Counter[tuple[str, int]] = Counter()
        for number, rows in itertools.groupby(sorted(self.rows, key=_round_of), key=_round_of):
            part, times = self._of(rows), turns if number < rounds else 1
            before = (spent, covered, entries) if number >= rounds else (0.0, 0.0, Counter())
            spent = np.maximum(spent, before[0] + times * part.spent.max(axis=1, initial=0.0))
            covered = np.maximum(covered, before[1] + times * part._covered.max(axis=1, initial=0.0))
            entries |= before[2] + Counter({kind: times * int(sent.max()) for kind, sent in part._entries.items()})
            taken.update((pool, client) for pool, histories in part._histories.items() for client in histories)
        whole.spent = np.maximum(whole.spent, np.maximum(spent, np.square(mu) if mu else 0.0)[:, None])
        whole._covered = np.maximum(whole._covered, covered[:, None])
        for kind, most in entries.items():
            whole._entries[kind] = np.maximum(whole._entries[kind], most)
        again = self._later_attempts()
        for pool, recipes in (whole._repeated(turns, taken) if planned is None else planned).items():
            for client, recipe in recipes.items():
                history = whole._histories.setdefault(pool, {}).setdefault(client, {})
                more = again._histories.get(pool, {}).get(client, {})
                for rate, met, count in recipe:
                    history[rate, met] = max(history.get((rate, met), 0), count + more.get((rate, met), 0))
        return whole

    def later_attempts(self) -> dict[Kind, int]:
        """Most sampled sums of each kind that any client's records went through in later attempts."""
        found: Counter[Kind] = Counter()
        for histories in self._later_attempts()._histories.values():
            for mine in histories.values():
                found |= Counter(mine)
        return dict(found)

    def _later_attempts(self) -> Ledger:
        """The ledger of all attempts at questions but the first ones."""
        return self._of(row for row in self.rows if split_attempt(row.question)[1])

    def _of(self, rows: Iterable[Row]) -> Ledger:
        """A ledger of other rows, for the same clients and unit."""
        return Ledger(self.spent.shape[1], self.unit, rows, self.sites)

    def _repeated(self, turns: int, taken: Mapping[tuple[str, int], int]) -> dict[str, dict[int, SeenRecipe]]:
        """Recipes of records after `turns` rounds like those that were `taken` of each pool and client; promised
        recipes cover all rounds already."""
        return {
            pool: {
                client: tuple((*kind, math.ceil(count * turns / taken[pool, client])) for kind, count in mine.items())
                for client, mine in histories.items()
            }
            for pool, histories in self._histories.items()
            if pool != PROMISED
        }

    def attempts(self, question: int) -> int:
        """Number of times that a question of the run was charged, each time for another draw."""
        return self._attempts.get(question, 0)

    @property
    def repeated(self) -> int:
        """Number of questions asked again because a resumed run did not repeat itself."""
        return sum(attempts - 1 for attempts in self._attempts.values())

    def times(self, release: str, but: int | None = None) -> np.ndarray:
        """Number of times that each client was charged for a release, without questions asked again because a resumed
        run did not repeat itself, and without the question `but`, which may be one of those."""
        found = self._times.get(release, np.zeros(self.spent.shape[1], dtype=np.int64))
        if but is None or not self.attempts(but):
            return found
        found = found.copy()
        for row in self.rows:
            if (row.question, row.release, row.exposed) == (but, release, False):
                found[row.clients()] -= 1
        return found

    def mu(self, view: View) -> float:
        """The mu of the client that has spent most."""
        return math.sqrt(float(self.spent[VIEWS.index(view)].max(initial=0.0)))

    def epsilon(self, delta: float) -> dict[View, float]:
        """Epsilon by observer that holds for every unit at `delta`; infinity where none does."""
        return self._epsilon(self.spent, delta)

    def epsilon_so_far(self, delta: float) -> dict[View, float]:
        """Figures of `epsilon` while a run goes on, for display."""
        return self.epsilon(delta)

    def covered_epsilon(self, delta: float) -> dict[View, float]:
        """Epsilon by observer without releases that carry no noise: the best that can be said of a published claim."""
        return self._epsilon(self._covered, delta)

    def record_epsilons(self, view: View, delta: float, replace: bool = False) -> dict[int, float]:
        """Epsilon against an observer by client that has sent something, at record level.

        With `replace` it is for one record's contents replaced by others instead of by nothing; of what is promised it
        is not known at this delta.
        """
        found, promises = {}, self._promises()
        for client, recipes in self._recipes(self.spent[VIEWS.index(view)], view, replace).items():
            gaps, promise = self._gaps(view, client), promises.get(client, NO_PROMISE)
            promise = (math.inf, 0.0) if replace and promise != NO_PROMISE else promise
            cost = replaced_epsilon if replace else record_epsilon
            found[client] = max(_record_epsilon(recipe, delta, gaps, promise, cost) for recipe in recipes)
        if self.sites > 1:  # whichever clients know a person besides this one
            everybody = self._person_replaced(view, delta) if replace else self._epsilon(self.spent, delta)[view]
            found = dict.fromkeys(found, everybody)
        return found

    def _person_replaced(self, view: View, delta: float) -> float:
        """Epsilon of one person at several clients replaced by another, who empties its places and fills them again:
        twice epsilon, at (1 + exp(epsilon)) times the delta of each."""
        epsilon = 0.0
        while True:
            found = self._epsilon(self.spent, delta / (1 + math.exp(min(epsilon, 700.0))))[view]
            if found <= epsilon or math.isinf(found):
                return 2 * found
            epsilon = found * (1 + REPLACED_STEP)

    def replaced(self, view: View, delta: float) -> Promise:
        """Epsilon against an observer of one record replaced by another, at record level, of the client that pays most,
        and the delta at which it holds: `delta`, where it is known there.

        Whoever exchanges a record empties its place and fills it again. Of what is promised, nothing is known but that
        each of them costs epsilon at its delta: the two cost 2 epsilon at (1 + exp(epsilon)) delta.
        """
        epsilon, at = self.promised()
        if not at or any(self.recipes()):
            return max(self.record_epsilons(view, delta, replace=True).values(), default=0.0), delta
        both = (1 + math.exp(min(epsilon, 700.0))) * at
        return (2 * epsilon, both) if both < 1 else (math.inf, delta)

    def rows_epsilons(self, view: View, delta: float) -> dict[str, float]:
        """Epsilon against an observer of a person with each number of `ROWS` at one client, by that number as a text,
        at record level; empty where persons are protected, only promises are known, or noise is in whole numbers."""
        if self._promises() or self._entries or self.unit is Unit.PERSON:
            return {}
        found = self._recipes(self.spent[VIEWS.index(view)], view).values()
        pools = {tuple(sorted(set(recipes))) for recipes in found}
        return {str(rows): max((rows_epsilon(one, rows, delta) for one in pools), default=0.0) for rows in ROWS}

    def promised(self) -> Promise:
        """Largest epsilon, at record level, that some client was promised without more being known, and the delta at
        which it holds; zeros where there is none."""
        return max(self._promises().values(), default=NO_PROMISE)

    def attack_accuracy(self) -> dict[View, float]:
        """Accuracy by observer of the best attack that tells whether the worst-off unit took part."""
        if not self.unit.record_level:
            return {view: 1.0 if self._histories else attack_accuracy(self.mu(view)) for view in VIEWS}
        distinct = self._distinct(self.spent).items()
        if self.sites > 1:
            return {
                view: _attack_accuracy(tuple(sorted({one for one, _ in histories})), self.promised(), self.sites)
                for view, histories in distinct
            }
        return {
            view: max((_attack_accuracy((one,), promise) for one, promise in histories), default=0.5)
            for view, histories in distinct
        }

    def recipes(self) -> set[SeenRecipe]:
        """Distinct recipes of clients' records as all observers see them, at record level."""
        found = set()
        for client in self._different(self.spent):
            outsider, peer, server = (_of_whole_client(float(spent[client])) for spent in self.spent)
            whole: SeenRecipe = ((1.0, (outsider, peer, server), 1),) if math.isfinite(server) else ()
            for pool in self._pools(client):
                found.add((*whole, *pool))
        return found

    def reasons(self) -> list[str]:
        """Reasons why epsilon is infinite, each once, in order of appearance."""
        return list(dict.fromkeys(row.reason for row in self.rows if row.reason))

    def _epsilon(self, spent: np.ndarray, delta: float) -> dict[View, float]:
        if not self.unit.record_level:
            # Noise for records hides no client: where some was released, nothing protects the client as a whole.
            whole = [math.inf if self._histories else math.sqrt(float(row.max(initial=0.0))) for row in spent]
            return {
                view: integers.total_epsilon(self._gaps(view), functools.partial(epsilon_of, mu), delta)
                for view, mu in zip(VIEWS, whole, strict=True)
            }
        worst = {}
        for view, histories in self._distinct(spent).items():
            gaps = self._gaps(view)
            if self.sites > 1:
                worst[view] = self._person_epsilon({recipe for recipe, _ in histories}, delta, gaps)
                continue
            found = (_record_epsilon(recipe, delta, gaps, promise) for recipe, promise in histories)
            worst[view] = max(found, default=0.0)
        return worst

    def _person_epsilon(self, recipes: Collection[Recipe], delta: float, gaps: Sequence[Gap]) -> float:
        """Epsilon of a person at several clients, whose records went through any of `recipes`; infinite beside what is
        only promised, which says nothing of several clients."""
        if self._promises():
            return math.inf
        known = tuple(sorted(recipe for recipe in recipes if recipe))
        if not known:
            return 0.0
        return _record_epsilon(
            tuple(itertools.chain(*known)), delta, gaps, NO_PROMISE, lambda _, at: sites_epsilon(known, self.sites, at)
        )

    def _gaps(self, view: View, client: int | None = None) -> list[Gap]:
        """Gaps that whole numbers add to an observer's epsilon of a client, or of the client that has sent most."""
        found = []
        for (pool, shares), sent in self._entries.items():
            many = self.sites * int(sent.max() if client is None or self.sites > 1 else sent[client])
            found += [integer_gap(many, pool, shares, view)] if many else []
        return found

    def _distinct(self, spent: np.ndarray) -> dict[View, set[tuple[Recipe, Promise]]]:
        """Distinct pairs of the recipe that a client's records have gone through, as each observer sees it, and the
        promise made to them; `spent` is the mu^2 of each client as a whole, for each view."""
        promises, clients = self._promises(), self._different(spent)
        found: dict[View, set[tuple[Recipe, Promise]]] = {}
        for place, view in enumerate(VIEWS):
            recipes = self._recipes(spent[place], view, clients=clients).items()
            found[view] = {(one, promises.get(client, NO_PROMISE)) for client, mine in recipes for one in mine}
        return found

    def _promises(self) -> dict[int, Promise]:
        """Promises to clients' records by client: their epsilons and deltas add up."""
        paid = self._histories.get(PROMISED, {})
        return {
            client: (sum(e * n for (e, _), n in found.items()), sum(d[0] * n for (_, d), n in found.items()))
            for client, found in paid.items()
        }

    def _paying(self) -> list[int]:
        """Clients that have sent something."""
        return sorted(set(np.flatnonzero(self.spent.any(axis=0)).tolist()).union(*self._histories.values()))

    def _different(self, spent: np.ndarray) -> list[int]:
        """One of the clients that have sent something for each combination of what they paid as a whole (`spent`, for
        each view) and what their records went through."""
        paying, found = self._paying(), dict[tuple[object, ...], int]()
        keys: list[Iterable[object]] = []
        if spent.any():
            keys.append(map(tuple, spent[:, paying].T.tolist()))
        for pool in self._histories.values():
            keys.append([tuple(pool.get(client, {}).items()) for client in paying])
        for client, key in zip(paying, zip(*keys, strict=True), strict=True):
            found.setdefault(key, client)
        return list(found.values())

    def _pools(self, client: int) -> list[SeenRecipe]:
        """Sampled sums that each pool of a client's records went through; one empty recipe where there are none."""
        known = [pool.get(client, {}) for name, pool in self._histories.items() if name != PROMISED]
        return [tuple((*kind, count) for kind, count in sorted(pool.items())) for pool in known] or [()]

    def _recipes(
        self, spent: np.ndarray, view: View, replace: bool = False, clients: Sequence[int] | None = None
    ) -> dict[int, list[Recipe]]:
        """Recipes that the records of each client have gone through, or of some `clients`, as an observer sees them,
        one for each pool.

        A record is either a training or a validation record. What was released of the whole client counts for both: one
        record may move a bounded contribution by twice its bound.
        """
        found: dict[int, list[Recipe]] = {}
        for client in self._paying() if clients is None else clients:
            multiplier = _of_whole_client(float(spent[client]))
            # A replaced record moves no more than twice the bound either: halve the mu that `replaced_epsilon` doubles.
            multiplier = 2 * multiplier if replace else multiplier
            whole: Recipe = ((1.0, multiplier, 1),) if math.isfinite(multiplier) else ()
            found[client] = [(*whole, *seen_by(view, pool)) for pool in self._pools(client)]
        return found


def seen_by(view: View, recipe: SeenRecipe) -> Recipe:
    """Recipe as one observer sees it."""
    place = VIEWS.index(view)
    return tuple((rate, met[place], count) for rate, met, count in recipe)


def join_drawn(charges: Mapping[str, Charge]) -> dict[str, Charge]:
    """Charge all sums over one draw of coins as one sampled Gaussian, of multiplier (sum 1 / z_g^2)^(-1/2): the first
    of them costs all, and the others nothing more. Charged one by one, each would claim the coins' secrecy for itself.
    """
    drawn = {name: charge for name, charge in charges.items() if charge.drawn}
    if len(drawn) < 2:
        return dict(charges)
    first, *others = drawn
    sampled = [charge.sampled for charge in drawn.values() if charge.sampled is not None]
    joint = sampled[0].copy()
    with np.errstate(divide="ignore"):
        joint[:, 1] = np.sum([1 / np.square(one[:, 1]) for one in sampled], axis=0) ** -0.5
    entries = sum(charge.entries for charge in drawn.values())
    whole = dataclasses.replace(drawn[first], sampled=joint, entries=entries)
    return {**charges, first: whole, **dict.fromkeys(others, Charge.nothing())}


def _of_whole_client(spent: float) -> float:
    """Noise multiplier that one record meets in all that was released of its client as a whole, of which one record may
    move twice the bound; infinite where nothing was. `spent` is the client's mu^2."""
    mu = 2 * math.sqrt(spent)
    if math.isinf(mu):
        return 0.0
    return 1 / mu if mu else math.inf


def _round_of(row: Row) -> int:
    return row.round


def number_of_attempt(question: int, before: int) -> int:
    """Number of a question that was asked `before` times before: no two attempts have the same coins or noise."""
    return question + (before << ATTEMPT_SHIFT)


def split_attempt(number: int) -> tuple[int, int]:
    """Question that a number stands for, and the number of earlier attempts at it."""
    return number & ((1 << ATTEMPT_SHIFT) - 1), number >> ATTEMPT_SHIFT


def head_of(rows: Iterable[Row], lacking: Collection[str] = ()) -> bytes:
    """The link of the last of a ledger's first rows."""
    head = FIRST_LINK
    for row in rows:
        head = row.link(head, lacking)
    return head


def integer_gap(entries: int, pool: str, shares: int, view: View) -> Gap:
    """Gap between noise in whole numbers and the Gaussian mechanism, for an observer.

    Args:
        entries: noisy whole numbers that the observer meets.
        pool: pool of records that pays; empty where whole clients do.
        shares: guaranteed draws in each number.
        view: the observer.
    """
    return Gap(entries, honest_shares(view, shares), RECORDS if pool else CLIENTS)


def unpaid_in_sums(row: Row) -> np.ndarray:
    """mu^2 that each view has paid less than the server has: (views, owners or 1)."""
    if row.exposed:
        return np.zeros((len(VIEWS), 1))
    return _unpaid(row.costs())


def _unpaid(costs: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(costs[VIEWS.index("server")] - costs, nan=0.0, posinf=0.0)


def _record_epsilon(
    recipe: Recipe,
    delta: float,
    gaps: Sequence[Gap],
    promise: Promise,
    cost: Callable[[Recipe, float], float] = record_epsilon,
) -> float:
    """Epsilon of a recipe by the accountant `cost`, beside a promise: both have their part of delta."""
    epsilon, taken = promise
    left = delta - taken
    if any(multiplier == 0 for _, multiplier, _ in recipe) or left < 0 or (recipe and left == 0):
        return math.inf
    return epsilon + (integers.total_epsilon(gaps, functools.partial(cost, recipe), left) if recipe else 0.0)


def _attack_accuracy(recipes: tuple[Recipe, ...], promise: Promise, sites: int = 1) -> float:
    """Accuracy of the best attack on a unit with one of several recipes, at so many `sites`, and a promise: the noise
    that keeps a promise is presumed to be Gaussian."""
    epsilon, delta = promise
    if math.isinf(epsilon):
        return 1.0
    promised = attack_accuracy(mu_of(epsilon, delta)) if delta else 0.5
    return min(1.0, sites_attack_accuracy(recipes, sites) + promised - 0.5)
