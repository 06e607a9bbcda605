"""What a method is, and what it may ask of a federation. Read this first.

A method is a frozen dataclass of hyper-parameters with a server side and a client side. The server side,
`run`, is a script in the order of the paper's algorithm. The client side is one or more *steps*: pure
functions `step(message, me, data)` of what the server sent, what the client remembered (`me`, with
`me["participations"]`, how often it has taken part) and the client's data. What a step sends is
declared beside it with `@sends` and leaves through the gate.

Where whole clients are protected, a step sees its client's records as they are: whatever it sends is bounded and
noised. Where records are protected, it sees them through noisy gradients alone (`PrivateRecords`); single values that
it may hand to the gate come sealed.
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
from sordino.privacy.budget.record_plan import RecordNeeds, RecordPlan
from sordino.privacy.release import Releases, Unit, record_needs, unprotected
from sordino.tasks import Task

Variant = Literal["sound", "paper"]
Privacy = Literal["dp", "none"]

# What a hyper-parameter may be: configuration refuses the rest.
LARGEST = 1e18
"""Numbers beyond this, and those nearer to zero than one over it, have squares that float32 cannot hold."""
LEAST_SHARE = 1e-9
"""A smaller share of a budget would ask for noise that float32 cannot hold beside what it protects."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Epochs = Annotated[int, Field(ge=1, le=100_000)]
Positive = Annotated[float, Field(ge=1 / LARGEST, le=LARGEST, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=LEAST_SHARE, le=1 - LEAST_SHARE, allow_inf_nan=False)]
LEAST_EPSILON, LARGEST_EPSILON = 1e-6, 1e9
"""What a budget may be: less asks for noise that float32 cannot hold, more is a number without meaning."""
Epsilon = Annotated[float, Field(ge=LEAST_EPSILON, le=LARGEST_EPSILON, allow_inf_nan=False)]


@dataclass(frozen=True)
class Result:
    """What a step hands over at the end of its work at one client."""

    send: dict[str, Any] = field(default_factory=dict)
    """What shall leave the client: tensors, and at record level sealed values. It passes the gate first."""
    keep: dict[str, Tensor] = field(default_factory=dict)
    """What the client remembers: private, it never leaves. `model` is what the client predicts with. What may be
    remembered of what was sent is written by `Method.learn`, which sees no data."""
    start: Tensor | None = None
    """The model with which the client began the round, for the accuracy at round start."""


RETURNED = {Result: "a Result", Mapping: "a dictionary", list: "a list"}
"""Names of the types that a method's own functions return."""


def returned(method: object, name: str, value: Any, kind: type) -> Any:
    """Check the value that a function of a user's method returned: anything but a `kind` is refused. A function without
    `return` returns None."""
    if not isinstance(value, kind):
        words = RETURNED.get(kind, f"a {kind.__name__}")
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{type(method).__name__}: {name} must return {words}, but returned {found}.")
    return value


def result_of(method: object, step: str, value: Any) -> Result:
    """Check the value that a step of a user's method returned: a `Result` of two dictionaries."""
    result: Result = returned(method, step, value, Result)
    for part, table in (("send", result.send), ("keep", result.keep)):
        returned(method, f"{step}, as what it shall {part},", table, Mapping)
    return result


class Replies(Protocol):
    """What came back from the clients that were asked, bounded and noised."""

    who: Sequence[int]
    """Who answered."""

    def mean(self, release: str) -> Tensor:
        """The average over the cohort, whose size is public."""

    def rows(self, release: str) -> Tensor:
        """One row per client. Where noise covers sums only, this exposes single messages, and everybody pays for them
        what the server pays."""

    def deviation(self, release: str) -> Tensor:
        """The noise on each coordinate of the sum over the cohort: public."""

    def has(self, release: str) -> bool:
        """Whether it was due in this round."""


class State:
    """What the server keeps between rounds, by name: tensors and numbers. Restored when a run resumes."""

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
    """What may be spent, decided before the first round: public."""

    delta: float
    multiplier: float
    """Noise over sensitivity that the protected observer meets in one round; at record level the median over clients
    of that of a gradient; zero where nothing is private."""


class Federation(Protocol):
    """Clients that can be asked, in a simulation or on real machines."""

    schedule: Schedule
    budget: Budget
    layout: Layout
    features: int
    """How many numbers one record has."""
    task: Task
    """What is predicted for a record."""

    @property
    def classes(self) -> int:
        """Number of classes that records may have; a task without classes is refused."""

    @property
    def record_plan(self) -> RecordPlan:
        """At record level: the clients' budgets and noise."""

    def public(self) -> Records:
        """Records that belong to no client, for the server's own training."""

    def everyone(self) -> Sequence[int]:
        """All clients."""

    def judge(self, model: Tensor) -> tuple[float, float]:
        """Loss and accuracy of a model on public records that belong to no client."""

    def random(self, *purpose: object) -> Generator:
        """Randomness for the server's own choices, another for each purpose and round."""

    def state(self, **initial: Any) -> State:
        """What the server keeps: `initial` at the first round, what was kept when a run resumes.

        A value that takes long to make is given as a function without arguments, which is called at the first round
        only.
        """

    def rounds(self, state: State) -> Iterable[int]:
        """The rounds still to do. Evaluates, logs and checkpoints between them."""

    def sample(self) -> Sequence[int]:
        """The clients whose turn it is in this round."""

    def deviation(self, step: Callable[..., Result], release: str, message: Message) -> Tensor:
        """The noise on each coordinate of one client's message, if `step` were asked in this round: public."""

    def ask(self, who: Sequence[int], step: Callable[..., Result], message: Message) -> Replies:
        """Charge what `step` sends, run it at the clients `who` with `message`, and bring back what left.

        Questions belong into the loop over `rounds`: what is asked before it would be asked again on resume. A value of
        the message that is an `Each` reaches every client as its own row.
        """


@dataclass(frozen=True)
class Method:
    """A federated learning method: subclass it as a frozen dataclass of hyper-parameters."""

    title: ClassVar[str]
    """One line: what it does."""
    paper: ClassVar[str]
    """The citation."""
    unit: ClassVar[Unit] = "client"
    """What its epsilon protects."""
    caveats: ClassVar[dict[Variant, str]] = {}
    """What a reader must know of a variant's epsilon, in a sentence."""

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
    """Of SGD."""

    def run(self, fed: Federation, model: Tensor) -> None:
        """The server's script, from the initial `model` to the last round.

        It makes its state with `fed.state` and asks within `fed.rounds`. What it does before the loop is done again
        when a run resumes, so it must not depend on what clients have answered.
        """
        raise NotImplementedError

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        """What a client remembers before it has taken part: the names, shapes and first values of `keep`."""
        return {"model": model}

    def public_memory(self, model: Tensor, layout: Layout) -> dict[str, Tensor]:
        """The public half of what a client remembers: the names, shapes and first values of what `learn` gives.

        Bounds and masks of what leaves may be read from it, because the server has already been paid for. A step reads
        it from `me`, but cannot write it. Others, who knew sums only, pay the server's price for what it was learned
        from as soon as its client sends again: what a client sends then may tell of the noise that it added before.
        """
        return {}

    def learn(
        self, public: dict[str, Tensor], message: Message, sent: dict[str, Tensor], layout: Layout
    ) -> dict[str, Tensor]:
        """What a client may remember of what it sent: it sees the noisy message, and no data."""
        return public

    def descent(self, data: Records) -> Descent:
        """Local training with this method's hyper-parameters."""
        return Descent(data, self.optimizer, self.rate, self.batch, self.momentum)

    def steps(self) -> dict[str, Releases]:
        """The client's steps by name, each with what it sends under these hyper-parameters."""
        found = {}
        for name, step in inspect.getmembers(type(self), inspect.isfunction):
            declare = getattr(step, "releases", None)
            if declare is not None:
                declared: Releases = returned(self, f"@sends of {name}", declare(self), Mapping)
                found[name] = declared if self.privacy == "dp" else unprotected(declared)
        return found

    def record_needs(self) -> RecordNeeds:
        """What its steps release of a client's records besides noisy gradients."""
        return record_needs(self.steps())

    def is_private(self) -> bool:
        """Whether anything that leaves carries noise."""
        return any(release.private for releases in self.steps().values() for release in releases.values())

    def settled(self, clients: int) -> Method:
        """The method with choices made that depend on how many clients there are."""
        return self

    def needs_public(self) -> bool:
        """Whether the server judges models on records that belong to no client."""
        return False

    def check_data(self, people: str) -> None:
        """Refuse data that this method must not protect; `people` is who they are about (`sordino.data.people`)."""
        return

    def files(self) -> tuple[str, ...]:
        """The hyper-parameters that name files. What `file_contents` gives of them, as JSON, may stand in their place:
        on real machines nobody opens a file because a server names it."""
        return ()

    def file_contents(self) -> dict[str, Any]:
        """What it reads from files besides code, by name, as it stands there now: it decides the run's results."""
        return {}

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor] | None:
        """The models that the server holds, one row each, and the number of each client's; None where it has none."""
        model = state.__dict__.get("model")
        return None if model is None else (model.unsqueeze(0), torch.zeros(clients, dtype=torch.int64))

    def pictures(self, state: State, folder: Path) -> None:
        """Draw what a finished run has to show besides its curves."""
        return

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        """What a user should know before a run with this schedule and budget."""
        return []

    def discloses(self) -> list[str]:
        """What the method lets others know that its epsilon does not cover, besides what leaves bare; in sentences."""
        return []

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float | None:
        """The noise multiplier that the paper's own accounting gives for a budget, wrong or right.

        None where the paper accounts as Sordino does. `records` is the number of training records of all
        clients. Used by the `paper` variant only.
        """
        return None
