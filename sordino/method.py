"""Methods, and the federation that a method talks to. Read this first.

A method is a frozen dataclass of hyper-parameters with a server side and a client side. The server side,
`run`, is a script in the order of the paper's algorithm. The client side is one or more *steps*: pure
functions `step(message, me, data)` of the server's message, the client's memory (`me`; `me["participations"]`
counts the rounds in which it has taken part) and the client's data. What a step sends is declared beside
it with `@sends` and leaves through the gate.

Where whole clients are protected, a step sees its client's records as they are (`Records`): whatever it sends is
bounded and noised. Where single records are protected, a step sees them through noisy gradients alone
(`PrivateRecords`); values of single records are sealed, and only the gate opens them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Generator, Tensor

from sordino.errors import UserError
from sordino.federation.message import Message
from sordino.federation.schedule import Schedule
from sordino.learning.descent import Descent, Optimizer
from sordino.learning.network import Records
from sordino.learning.parameters import Layout
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan
from sordino.privacy.release import Releases, all_releases, record_needs, without_privacy
from sordino.privacy.unit import Unit
from sordino.tasks import Task

Variant = Literal["sound", "paper"]
Privacy = Literal["dp", "none"]

# Ranges of hyper-parameters: configuration refuses values outside them.
MAX_MAGNITUDE = 1e18
"""Numbers beyond this, and those nearer to zero than one over it, have squares that float32 cannot hold."""
LEAST_SHARE = 1e-9
"""A smaller share of a budget would ask for noise that float32 cannot hold beside what it protects."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Epochs = Annotated[int, Field(ge=1, le=100_000)]
Positive = Annotated[float, Field(ge=1 / MAX_MAGNITUDE, le=MAX_MAGNITUDE, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=MAX_MAGNITUDE, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=LEAST_SHARE, le=1 - LEAST_SHARE, allow_inf_nan=False)]
LEAST_EPSILON, LARGEST_EPSILON = 1e-6, 1e9
"""Range of a budget: a smaller one asks for noise that float32 cannot hold, a larger one protects nobody."""
Epsilon = Annotated[float, Field(ge=LEAST_EPSILON, le=LARGEST_EPSILON, allow_inf_nan=False)]


ADDED_LATER: dict[str, Any] = {"added later": True}
"""Metadata of a hyper-parameter that methods did not have when runs were stored that may still be taken up: at its
default it is no part of a run's identity."""


@dataclass(frozen=True)
class Result:
    """Outcome of a step at one client."""

    send: dict[str, Any] = field(default_factory=dict)
    """Values that leave the client, through the gate: tensors, and at record level sealed values."""
    keep: dict[str, Tensor] = field(default_factory=dict)
    """Private memory of the client, which never leaves it. `model` is the model that the client predicts with.
    `Method.learn`, which sees no data, writes what the client may remember of what it sent."""
    start: Tensor | None = None
    """Model with which the client began the round, for the accuracy at round start."""


RETURNED = {Result: "a Result", Mapping: "a dictionary", list: "a list"}
"""Names of the types that a method's own functions return."""


def check_returned(method: object, name: str, value: Any, kind: type) -> Any:
    """Return `value` if it is a `kind`; refuse anything else, such as the None of a function without `return`.

    Args:
        method: The user's method, for the error.
        name: Name of its function.
        value: What that function returned.
        kind: The type that it should have returned.
    """
    if not isinstance(value, kind):
        words = RETURNED.get(kind, f"a {kind.__name__}")
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{type(method).__name__}: {name} must return {words}, but returned {found}.")
    return value


def result_of(method: object, step: str, value: Any) -> Result:
    """Return `value`, which a step returned, if it is a `Result` of two dictionaries; refuse anything else."""
    result: Result = check_returned(method, step, value, Result)
    for part, table in (("send", result.send), ("keep", result.keep)):
        check_returned(method, f"{step}, as what it shall {part},", table, Mapping)
    return result


class Replies(Protocol):
    """Answers of the clients that were asked, bounded and noised."""

    who: Sequence[int]
    """Numbers of the clients that answered: perhaps fewer than were asked."""

    def mean(self, release: str) -> Tensor:
        """Return the sum of a release over those who answered, divided by the public size of the cohort."""

    def rows(self, release: str) -> Tensor:
        """Return one row for each client. Where noise covers sums only, this exposes single messages: everybody is then
        charged what the server is charged."""

    def deviation(self, release: str) -> Tensor:
        """Return the standard deviation of the noise on each coordinate of the sum over the cohort: public."""

    def has(self, release: str) -> bool:
        """Whether the release was due in this round."""


class State:
    """Memory of the server between rounds: tensors and numbers by name. Restored when a run resumes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    model: Tensor
    """The global model, by convention of all methods."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"The server's state has no {name!r}; name it in fed.state(...).")


@dataclass(frozen=True)
class Budget:
    """Privacy budget of a run, decided before the first round: public."""

    delta: float
    multiplier: float
    """Noise multiplier of one round for the observer that the run protects from: standard deviation of the noise over
    sensitivity. At record level the median over clients of that of one gradient; zero where nothing is private."""


class Federation(Protocol):
    """Clients that can be asked, in a simulation or on real machines."""

    schedule: Schedule
    budget: Budget
    layout: Layout
    features: int
    """Number of values in one record."""
    task: Task
    """Task: what is predicted for a record."""

    @property
    def classes(self) -> int:
        """Number of classes that records may have; a task without classes is refused."""

    @property
    def record_plan(self) -> RecordPlan:
        """Budgets and noise of the clients; at record level only."""

    def public(self) -> Records:
        """Return the records that belong to no client, for the server's own training."""

    def everyone(self) -> Sequence[int]:
        """Return the numbers of all clients."""

    def judge(self, model: Tensor) -> tuple[float, float]:
        """Return loss and accuracy of a model on public records, which belong to no client."""

    def random(self, *purpose: object) -> Generator:
        """Return a generator for the server's own choices: another one for each purpose and round."""

    def state(self, **initial: Any) -> State:
        """Return the server's state: `initial` at the first round, the stored state when a run resumes.

        A value that takes long to compute may be given as a function without arguments, which is called at the first
        round only.
        """

    def rounds(self, state: State) -> Iterable[int]:
        """Yield the numbers of the rounds still to do; evaluate, log and checkpoint between them."""

    def sample(self) -> Sequence[int]:
        """Return the numbers of the clients whose turn it is in this round."""

    def deviation(self, step: Callable[..., Result], release: str, message: Message) -> Tensor:
        """Return the standard deviation of the noise on each coordinate of one client's message, if `step` were asked
        with `message` in this round: public."""

    def ask(self, who: Sequence[int], step: Callable[..., Result], message: Message) -> Replies:
        """Charge what `step` sends, run it at clients, and return what left them.

        Ask within the loop over `rounds`: a question before it would be asked again on resume.

        Args:
            who: Numbers of the clients, each at most once.
            step: A function of the method that is decorated with `@sends`.
            message: Values for the step, by name. Every client gets its own row of an `Each`.
        """


@dataclass(frozen=True)
class Method:
    """A federated learning method: subclass it as a frozen dataclass of hyper-parameters."""

    title: ClassVar[str]
    """Description in one line."""
    paper: ClassVar[str]
    """Citation."""
    unit: ClassVar[Unit] = Unit.CLIENT
    """Unit that its epsilon protects."""
    counts_labels: ClassVar[bool] = False
    """Whether it pays for a noisy count of the labels, from which balanced weights of classes may follow."""
    caveats: ClassVar[dict[Variant, str]] = {}
    """Warning about the epsilon of a variant, in a sentence."""

    variant: Variant = "sound"
    """`sound`: the epsilon holds as stated. `paper`: the mechanism as published, its true epsilon printed."""
    privacy: Privacy = "dp"
    """`dp`: what leaves is bounded and noised. `none`: nothing is, and epsilon is infinite, as in the papers' NoDP."""

    epochs: Epochs = 5
    """Passes over the local records in each round. FedDPA: 2 to 4; ACDP-pFSD, AdaDP-CFL, PAC-DP: 5; FedGLP-ADP: 1."""
    batch: Count = 16
    """Records in a local step. FedDPA, FedGLP-ADP: 16; ACDP-pFSD: 64; AdaDP-CFL: 20."""
    optimizer: Optimizer = "sgd"
    """The local optimizer, started anew in each round. FedDPA, FedGLP-ADP: `adam`."""
    rate: Positive = 0.1
    """The local learning rate. FedDPA, FedGLP-ADP: 1e-3 with Adam."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of SGD."""
    class_weight: str = field(default="none", metadata=ADDED_LATER)
    """Weights of the records in training, by class. `balanced`: each class counts the same at a client, by the client's
    own frequencies; where records are protected these would have to be paid for, and weights are declared: `1,9` in the
    order of the classes, or `healthy:1,ill:9`. They multiply losses before anything is limited, and cost no
    privacy."""

    def __init_subclass__(cls, **keys: Any) -> None:
        super().__init_subclass__(**keys)
        cls.unit = Unit(cls.unit)  # users may write it as a text

    def run(self, fed: Federation, model: Tensor) -> None:
        """Train: the server's script, from the initial `model` (a flat vector) to the last round.

        It makes its state with `fed.state` and asks within `fed.rounds`. Whatever stands before the loop is done again
        when a run resumes, so it must not depend on answers of clients.
        """
        raise NotImplementedError

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        """Return the memory of a client before its first round: names, shapes and first values of `Result.keep`."""
        return {"model": model}

    def public_memory(self, model: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return the public half of a client's memory before its first round: names, shapes and first values of what
        `learn` returns.

        Bounds and masks of releases may depend on it, because it follows from messages that have been charged. A step
        reads it from `me`, but cannot write it. A client's later messages may reveal the noise on those from which it
        learned; so, from its next release on, all observers are charged the server's price for them.
        """
        return {}

    def learn(
        self, public: dict[str, Tensor], message: Message, sent: dict[str, Tensor], layout: Layout
    ) -> dict[str, Tensor]:
        """Return what a client remembers publicly of what it sent; no data are seen here.

        Args:
            public: Its public memory so far.
            message: The server's message.
            sent: What left the client, with its noise, by release.
            layout: Names and shapes of the model's parameters.
        """
        return public

    def descent(self, data: Records) -> Descent:
        """Return local training on `data` with this method's hyper-parameters."""
        return Descent(data, self.optimizer, self.rate, self.batch, self.momentum)

    def steps(self) -> dict[str, Releases]:
        """Return the releases of each step, by the step's name, under these hyper-parameters."""
        found = {}
        for name, step in inspect.getmembers(type(self), inspect.isfunction):
            declare = getattr(step, "releases", None)
            if declare is not None:
                declared: Releases = check_returned(self, f"@sends of {name}", declare(self), Mapping)
                found[name] = declared if self.privacy == "dp" else without_privacy(declared)
        return found

    def record_needs(self) -> RecordNeeds:
        """Return what the steps release of a client's records besides noisy gradients."""
        return record_needs(self.steps())

    def is_private(self) -> bool:
        """Whether anything that leaves carries noise."""
        return any(release.private for release in all_releases(self.steps()))

    def sends_sums(self) -> bool:
        """Whether sums over all clients' records leave, whose noise is shared out over the clients' messages."""
        return any(release.sums_records for release in all_releases(self.steps()))

    def passes(self) -> int:
        """Return how often a client passes over its records in a round."""
        return self.epochs

    def switched_off(self) -> list[str]:
        """Return the parts of the method that these hyper-parameters switch off, in words."""
        return []

    def settled(self, clients: int) -> Method:
        """Return the method with those hyper-parameters filled in that depend on the number of clients."""
        return self

    def needs_public(self) -> bool:
        """Whether the server judges models on records that belong to no client."""
        return False

    def check_data(self, people: str) -> None:
        """Refuse data that this method must not be used on; `people` is the fingerprint of the persons in them."""
        return

    def check_task(self, task: Task) -> None:
        """Refuse a task that this method cannot learn, before anything is spent."""
        return

    def files(self) -> tuple[str, ...]:
        """Return the names of hyper-parameters that name files. The JSON of `file_contents` may stand in their place: a
        site never opens a file because a server names it."""
        return ()

    def file_contents(self) -> dict[str, Any]:
        """Return the present contents of the files that decide the run's results, besides code, by name."""
        return {}

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor] | None:
        """Return the server's models, one row each, and the row of each client's model; None where it has none."""
        model = state.__dict__.get("model")
        return None if model is None else (model.unsqueeze(0), torch.zeros(clients, dtype=torch.int64))

    def pictures(self, state: State, folder: Path) -> None:
        """Draw pictures of a finished run, besides its curves, into `folder`."""
        return

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        """Return sentences that a user should read before a run with this schedule and budget."""
        return []

    def discloses(self) -> list[str]:
        """Return sentences on what the method reveals beyond its epsilon, besides `Bare` releases."""
        return []

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float | None:
        """Return the noise multiplier that the paper's own accounting gives for a budget, right or wrong; None where
        the paper accounts as Sordino does. The `paper` variant uses it.

        Args:
            epsilon: The budget.
            delta: The delta of that budget.
            rounds: Number of rounds; of a method that protects records those in which a client takes part, unless the
                method `counts_all_rounds`.
            records: Number of training records of all clients together.
        """
        return None
