"""Tier 2 of an audit: canaries in one real run, by what one run tells of all of them together.

Where whole clients are protected, canaries join a real training run: each has a direction of its own, as long as a
client's message may be, and takes all turns of one client or none by a secret coin. They are bounded as that client's
message is and added to it, without noise of their own: whoever sees the sum meets each of them behind the cohort's
noise, as it meets the client, and as often. Where records are protected, canaries are records of one client. In both
cases it is the client that pays most: a canary is exposed as often as what is claimed covers, and not once more.
Nobody's budget is spent: the run is thrown away.

Scores of canaries are bounded in three ways: Steinke et al. 2023 (any mechanism, any dependence), the one-run bound for
Gaussian curves (Mahloujifar et al. 2024) and, as an estimate, the difference of the means (Andrew et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sordino.assembly import gate_of
from sordino.auditing import client_canaries, record_canaries
from sordino.auditing.bounds import best_one_run, mean_difference, one_run, one_run_gaussian
from sordino.auditing.client_canaries import EXCESS_LENGTH, entrywise
from sordino.auditing.findings import SAID, SURE, Attack, Finding, Scores
from sordino.auditing.recorded_run import Recorded, record
from sordino.auditing.sum_conformance import unknown_to
from sordino.data.dataset import ClientData, Dealt, Split
from sordino.data.persons import Persons
from sordino.experiment.prepare import Prepared
from sordino.federation.client import Question
from sordino.federation.transport import Answer, ClientMemory, Transport
from sordino.learning.network import Batch
from sordino.privacy.gate import Gate
from sordino.privacy.mechanism import FLOATS
from sordino.privacy.release import Public, Releases, due
from sordino.privacy.views import VIEWS, View

MIN_WIDTH = 32
"""Fewest entries of a release that has room for canaries."""
MAX_CANARIES = 1000
"""Most canaries of one run."""
MAX_SOLVED = 20_000
"""Most parameters of a model in which canaries are told apart by least squares."""
CANARY_RECORDS = 100
"""Number of canary records that join a client's own."""
HOSTS = 4
"""Most clients whose records canaries join where sums over all clients' records leave."""
Presumed = Literal["nothing", "curve", "all"]
"""Assumption of a bound about the scores: `nothing`, that what they are made of was behind Gaussian noise (`curve`), or
that they are normal themselves (`all`)."""


@dataclass
class Joined:
    """Canaries that join the messages of one client."""

    gate: Gate
    client: int
    """Number of the client whose turns they take."""
    steps: dict[str, Releases]
    states: Collection[str]
    """Names of the clients' public states, from which bounds may be read."""
    layers: Sequence[int]
    count: int
    random: np.random.Generator
    coins: np.ndarray = field(init=False)
    scores: np.ndarray = field(init=False)
    information: float = 0.0
    directions: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coins = self.random.permutation(self.count) < self.count // 2
        self.scores = np.zeros(self.count)

    def around(self, transport: Transport) -> Transport:
        """The transport with the canaries in it."""
        return _Between(transport, self)

    def join(self, question: Question, answer: Answer, states: dict[str, Tensor]) -> None:
        """Add the canaries to what came back, where it is their turn, and note what the sum tells of each."""
        if self.client not in question.clients:
            return
        place = list(question.clients).index(self.client)
        here = slice(place, place + 1)
        public = Public(question.message, question.clients, states, self.layers)
        for name, release in due(self.steps[question.step], question.round).items():
            rows = answer.values[name]
            if not release.summed or rows.shape[1] < MIN_WIDTH:
                continue
            cover = release.cover(rows.shape[1], self.gate.allowance, public)
            if cover is None:
                continue
            longest = entrywise(replace(cover, deviations=cover.bounds), len(rows))[here].float()
            loud = self._directions(name, rows.shape[1]) * longest
            one = Public(public.message, public.clients[here], {n: s[here] for n, s in states.items()}, self.layers)
            bounded = torch.cat([release.bounded(EXCESS_LENGTH * row.unsqueeze(0), one).rows for row in loud])
            rows[place] += torch.from_numpy(self.coins.astype(np.float32)) @ bounded
            variance = entrywise(cover, len(public.clients)).square().sum(dim=0)
            weights = torch.where(variance > 0, bounded.double() / variance, 0.0)
            total = self.gate.mean(release, rows, public).double() * len(rows)
            self.scores += (weights @ total).numpy()
            self.information += float((weights * bounded).sum(dim=1).mean())

    def _directions(self, name: str, width: int) -> Tensor:
        """Direction of each canary, all of them nearly orthogonal: (canaries, width)."""
        if name not in self.directions:
            drawn = self.random.normal(size=(self.count, width))
            if self.count <= width <= 2000:
                drawn = np.linalg.qr(drawn.T)[0].T
            self.directions[name] = torch.from_numpy(drawn).float()
        return self.directions[name]


@dataclass(frozen=True)
class _Between:
    """A transport on which canaries join."""

    of: Transport
    canaries: Joined

    @property
    def memory(self) -> ClientMemory | None:
        return self.of.memory

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        states = self.of.public_states(question.clients, self.canaries.states)
        answer = self.of.ask(question, evaluate, charge)
        self.canaries.join(question, answer, states)
        return answer

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        return self.of.public_states(clients, names)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return self.of.accuracies(clients, model)


def attacks(first: Recorded, number: int = 4, risk: float = 1 - SURE) -> tuple[list[Attack], list[Finding]]:
    """Attack one more run like the `first`: attacks, and sentences on what was estimated.

    Args:
        first: the recorded run.
        number: sets the noise and canaries of this attack apart from others.
        risk: probability that any claim is refuted by chance.

    Whose turn it is follows from the seed alone: the client that paid most in the first run has as many turns again.
    """
    if first.method.sends_sums():
        return _of_sums(first, number, risk)
    if first.method.unit.record_level:
        return _of_records(first.prepared, record_canaries.target_of(first), number, risk)
    if first.prepared.mechanism is not FLOATS:
        return [], []
    return _of_clients(first.prepared, client_canaries.target_of(first), number, risk)


def _of_clients(prepared: Prepared, target: int, number: int, risk: float) -> tuple[list[Attack], list[Finding]]:
    layout, method = prepared.learner.layout, prepared.method
    joined = Joined(
        gate_of(prepared),
        target,
        method.steps(),
        sorted(method.public_memory(prepared.initial, layout)),
        layout.layers,
        min(MAX_CANARIES, layout.size // 2),
        np.random.default_rng([number, prepared.experiment.seed]),
    )
    recorded = record(prepared, number, around=joined.around)
    if not joined.information:
        return [], []
    delta, coins, risk = prepared.budget.delta, joined.coins, risk / 3
    scores = joined.scores / math.sqrt(joined.information)
    found = [_bound_scores("canary clients in one run", "outsider", scores, coins, delta, risk)]
    for where, view, models in _left_behind(recorded, _peer(prepared, target)):
        told = _along_models(joined, models, recorded)
        if told is not None and told.any():
            found.append(_bound_scores(f"canary clients by {where}", view, told, coins, delta, risk, "curve"))
    return _with_paid(recorded, [attack for attack, _ in found]), [finding for _, finding in found]


def _with_paid(recorded: Recorded, found: Sequence[Attack]) -> list[Attack]:
    """Attacks on a run, with what its ledger says of it."""
    epsilon = recorded.ledger.epsilon(recorded.prepared.budget.delta)
    return [replace(attack, paid=epsilon[attack.view]) for attack in found]


def _left_behind(recorded: Recorded, peer: int) -> Iterator[tuple[str, View, Tensor]]:
    """Models that are left of a run, by name, and who has them: the server's model, and the one that another client
    predicts with."""
    model = recorded.state.get("model")
    if isinstance(model, Tensor):
        yield "the final model", "outsider", model
    if len(recorded.personal):
        yield "another's personal model", "peer", recorded.personal[peer]


def _peer(prepared: Prepared, but: int) -> int:
    """The client whose personal model is looked at, decided beforehand: the one with most records other than `but`, if
    there is another."""
    order = np.argsort(-prepared.data.train.sizes, kind="stable").tolist()
    return next((client for client in order if client != but), order[0])


def _along_models(joined: Joined, model: Tensor, recorded: Recorded) -> np.ndarray | None:
    """Scores of all canaries from a model alone, for an observer who knows with which models the run began; None where
    the model is of another kind. Where a message has a part for each of several models, the part is looked at whose
    model lies nearest: it is known from which it came."""
    size = len(recorded.prepared.initial)
    known = next((one for one in joined.directions.values() if one.shape[1] % size == 0), None)
    if known is None or model.shape != recorded.prepared.initial.shape:
        return None
    parts = known.shape[1] // size
    begun, last = (_models_told(recorded, exchange, parts) for exchange in (0, -1))
    place = int((last - model).norm(dim=1).argmin())
    mine = known[:, place * size : (place + 1) * size].double()
    along = mine @ (model - begun[place]).double()
    # Parts of orthogonal directions are not orthogonal: what canaries tell of each other is taken out.
    return (torch.linalg.solve(mine @ mine.t(), along) if parts > 1 and size <= MAX_SOLVED else along).numpy()


def _models_told(recorded: Recorded, exchange: int, parts: int) -> Tensor:
    """Models that a message tells of, one row each: `parts` of them, or the initial one."""
    initial = recorded.prepared.initial
    shape = (parts, len(initial))
    told = recorded.transcript.exchanges[exchange].question.message.values()
    return next((one for one in told if isinstance(one, Tensor) and one.shape == shape), initial.expand(shape))


def _bound_scores(
    name: str, view: View, scores: np.ndarray, coins: np.ndarray, delta: float, risk: float, presumed: Presumed = "all"
) -> tuple[Attack, Finding]:
    """Bound epsilon from the scores of canaries, for one observer.

    Args:
        name: name of the attack.
        view: the observer.
        scores: one for each canary, larger where it seems to be there.
        coins: whether each canary was there.
        delta: delta of the claim.
        risk: probability that the claim is refuted by chance.
        presumed: assumption about the scores.
    """
    inside, outside = scores[coins], scores[~coins]
    plain = best_one_run(inside, outside, delta, SAID, one_run)
    told = [f"Steinke et al. {plain:.2f}"]
    said, surely = plain, best_one_run(inside, outside, delta, 1 - risk / 3, one_run)
    if presumed != "nothing":
        curve = best_one_run(inside, outside, delta, SAID, one_run_gaussian)
        told.append(f"with a Gaussian curve {curve:.2f}")
        sure = best_one_run(inside, outside, delta, 1 - risk / 3, one_run_gaussian)
        said, surely = max(said, curve), max(surely, sure)
    if presumed == "all":
        estimate, low = mean_difference(inside, outside, delta, SAID)
        lowest = mean_difference(inside, outside, delta, 1 - risk / 3)[1]
        told.append(f"mean difference {low:.2f} (estimate {estimate:.2f})")
        said, surely = max(said, low), max(surely, lowest)
    sentence = f"{len(scores)} canaries; epsilon at least, at 95 %: {'; '.join(told)}."
    attack = Attack(name, view, said, surely, plain, Scores(inside, outside, float(np.median(scores))))
    return attack, Finding(2, name, sentence)


def _of_records(prepared: Prepared, target: int, number: int, risk: float) -> tuple[list[Attack], list[Finding]]:
    """Canary records at one client, looked for in what the server sees of it."""
    random = np.random.default_rng([number, prepared.experiment.seed])
    x, y, coins = _draw_canaries(prepared, target, CANARY_RECORDS, random)
    recorded = record(_with_canaries(prepared, {target: (x, y, coins)}), number)
    scores = np.zeros(CANARY_RECORDS)
    for exchange in recorded.exchanges_of(target):
        place = list(exchange.question.clients).index(target)
        for name, release in exchange.releases.items():
            model = exchange.question.message.get("global")
            rows = exchange.answer.values[name]
            if release.made_of_gradients and isinstance(model, Tensor) and rows.shape[1] == len(model):
                scores -= _along(recorded, model, x, y) @ rows[place].double().numpy()
    if not scores.any():
        return [], []
    delta, risk = prepared.budget.delta, risk / 2
    attack, finding = _bound_scores("canary records in one run", "server", scores, coins, delta, risk, "nothing")
    found, findings = [replace(attack, view=view) for view in VIEWS], [finding]
    initial, peer = prepared.initial, _peer(prepared, target)
    if peer != target and recorded.personal.shape[1:] == initial.shape:
        told = -_along(recorded, initial, x, y) @ (recorded.personal[peer] - initial).double().numpy()
        attack, finding = _bound_scores(
            "canary records by another's personal model", "peer", told, coins, delta, risk, "nothing"
        )
        found, findings = [*found, attack], [*findings, finding]
    return _with_paid(recorded, found), findings


Canaries = tuple[Tensor, Tensor, np.ndarray]
"""Features and targets of canary records, and whether each of them is there."""


def _draw_canaries(prepared: Prepared, client: int, count: int, random: np.random.Generator) -> Canaries:
    """Draw records that are three times as large as any of the client's, half of which are there."""
    own = prepared.data.clients[client]
    x = torch.from_numpy(random.normal(size=(count, *prepared.data.shape))).float() * 3 * own.x.abs().max()
    y = prepared.data.task.draw(count, random)
    return x, y, random.permutation(count) < count // 2


def _with_canaries(prepared: Prepared, canaries: Mapping[int, Canaries]) -> Prepared:
    """The experiment in which the canaries that are there join their clients' records; where persons are protected,
    each as one with as many equal rows as a person may have."""
    persons = prepared.data.train.persons
    if persons is not None:
        return _with_persons(prepared, canaries, persons)
    everybody: list[Any] = [*prepared.data.clients]
    for client, (x, y, coins) in canaries.items():
        own, there = everybody[client], torch.from_numpy(coins)
        all_x, all_y = torch.cat([own.x, x[there]]), torch.cat([own.y, y[there]])
        everybody[client] = ClientData(own.name, all_x, all_y, own.x_test, own.y_test)
    return replace(prepared, data=replace(prepared.data, clients=tuple(everybody)))


def _with_persons(prepared: Prepared, canaries: Mapping[int, Canaries], persons: Persons) -> Prepared:
    """The experiment in which the canaries that are there join their clients' persons."""
    data, rows, parts = prepared.data, persons.rules.max_rows, []
    for client, own in enumerate(data.clients):
        x, y, codes = own.x, own.y, persons.codes(client)
        if client in canaries:
            more_x, more_y, coins = canaries[client]
            there = torch.from_numpy(coins)
            x, y = (
                torch.cat([mine, more[there].repeat_interleave(rows, dim=0)])
                for mine, more in ((x, more_x), (y, more_y))
            )
            codes = np.append(codes, int(persons.counts[client]) + np.arange(int(coins.sum())).repeat(rows))
        parts.append((x, y, codes))
    names = data.names
    return replace(
        prepared, data=replace(data, clients=Dealt(names, Split.of_persons(parts, persons.rules), data.test))
    )


def _of_sums(first: Recorded, number: int, risk: float) -> tuple[list[Attack], list[Finding]]:
    """Canary records at several clients, looked for in sums over all clients' records as each observer sees them: less
    the messages that it knows."""
    prepared, random = first.prepared, np.random.default_rng([number, first.prepared.experiment.seed])
    spent = first.ledger.record_epsilons(prepared.allowance.observer, prepared.budget.delta)
    hosts = sorted(spent, key=lambda client: (spent[client], len(first.exchanges_of(client))))[-HOSTS:]
    canaries = {host: _draw_canaries(prepared, host, CANARY_RECORDS // len(hosts), random) for host in hosts}
    recorded = record(_with_canaries(prepared, canaries), number)
    scores: dict[View, dict[int, np.ndarray]] = {}
    for exchange in recorded.transcript.exchanges:
        told = exchange.question.message.values()
        model = next((one for one in told if isinstance(one, Tensor) and one.shape == prepared.initial.shape), None)
        clients = list(exchange.public.clients)
        for name, release in exchange.releases.items():
            if model is None or not release.made_of_gradients:
                continue
            rows = recorded.gate.read(release, exchange.answer.values[name], exchange.public).double()
            for host in (host for host in hosts if host in clients):
                x, y, _ = canaries[host]
                along = _along(recorded, model, x, y)
                for view in (view for view in VIEWS if exchange.sees(name, view)):
                    left = [clients.index(client) for client in unknown_to(view, recorded, clients, host)]
                    mine = scores.setdefault(view, {}).setdefault(host, np.zeros(len(y)))
                    mine += along @ rows[left].sum(dim=0).numpy()
    sampled = any(toss.rate < 1 for toss in recorded.source.tosses)  # then no curve of Gaussians holds
    found = []
    for view, by_host in scores.items():
        coins = np.concatenate([canaries[host][2] for host in by_host])
        presumed: Presumed = "nothing" if sampled else "curve"
        values, delta = np.concatenate(list(by_host.values())), prepared.budget.delta
        name = f"canary records in one run, seen by the {view}"
        found.append(_bound_scores(name, view, values, coins, delta, risk / len(VIEWS), presumed))
    return _with_paid(recorded, [attack for attack, _ in found]), [finding for _, finding in found]


def _along(recorded: Recorded, model: Tensor, x: Tensor, y: Tensor) -> np.ndarray:
    """The direction of each canary record's gradient at `model`."""
    learner, rows = recorded.prepared.learner, []
    for place in range(len(y)):
        batch = Batch(x[place : place + 1], y[place : place + 1], torch.zeros(1, dtype=torch.int64), None)
        gradient = learner.gradient(model, batch).double()
        rows.append((gradient / gradient.norm().clamp(min=1e-12)).numpy())
    return np.stack(rows)
