"""Stored result of a run (`Summary`): a typed value, written and printed as a flat JSON document. It is computed by
`sordino.experiment.result`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from sordino.privacy.unit import Unit

if TYPE_CHECKING:  # a list of runs is on the screen before torch would be loaded
    from sordino.privacy.views import View
    from sordino.store.spending import Spent

    Figures = dict[View, float | None]
    """One figure per observer; None where it is infinite."""

Against = dict[str, int]
"""Number of clients that `gain` by one model against another, that `lose`, and for which both are the `same`."""
MIXTURES = ("blend", "recalibrate")
"""Keys of the figures of mixtures: the values of an experiment's key `personal` besides `own`."""
Accuracies = dict[str, float | None]
"""Mean accuracies over clients, each measured on the client's own test records; None where there is no such model."""


@dataclass(frozen=True)
class MixtureFigures:
    """Accuracies of the clients' blended or recalibrated models and of the models that these are made of."""

    accuracy: Accuracies
    """Accuracy of what clients predict with, the `blend` or the `recalibrated` models; of the `local` models that each
    client trained alone, of the method's `own` personal models, and of the server's `global` model."""
    worst_tenth: Accuracies
    """Mean over the tenth of the clients that are worst off with each model, by the same names."""
    weights: dict[str, float]
    """Mean weight of each member of the mixture."""
    against_local: Against | None = None
    """Clients that gain and lose by it against the models that they trained alone; None in runs of versions that
    did not count them."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the figures; a count that is not known is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric over the clients of a run."""

    mean: float | None
    worst_tenth: float | None
    """Mean over the tenth of the clients that are worst off by this metric."""
    overall: float | None = None
    """Metric over all clients' test records together, so that a client with many records counts for more."""
    clients: int
    """Number of clients that have the metric; the others have no test records of the kind that it needs."""


@dataclass(frozen=True)
class Fairness:
    """Spread over clients of the accuracy of what they predict with, each on its own test records."""

    worst_tenth: float
    """Mean over the tenth of the clients that are worst off."""
    gini: float
    """Gini coefficient: 0 where all clients are equally well off, near 1 where one has everything."""
    variance: float
    """Variance over clients, of accuracies as shares of one."""


@dataclass(frozen=True)
class RecordFigures:
    """Figures of a run that protects single records, for the observer whom its noise is planned against; the document
    of a run has them beside its other keys."""

    epsilon_clients: dict[str, float | None] | None
    """`min`, `median` and `max` of epsilon over clients; None where no client was asked anything."""
    epsilon_replace_one: float | None
    """Epsilon for one record whose contents are replaced by another's; None where it is infinite."""
    stopped_clients: list[int]
    """Indices of the clients whose budget was used up before the last round."""
    delta_replace_one: float | None = None
    """Delta at which `epsilon_replace_one` holds; larger than the run's where only epsilon and delta of a client's
    records are known. None in runs of versions that did not store it."""
    epsilon_rows: dict[str, float | None] | None = None
    """Epsilon of a person with 3 and with 5 rows at one client, by number of rows; empty where it is not known, None in
    runs of versions that did not store it. Earlier versions stored upper bounds."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the figures; those that versions before did not store are left out where there are none."""
        found = {
            "epsilon_clients": self.epsilon_clients,
            "epsilon_replace_one": self.epsilon_replace_one,
            "delta_replace_one": self.delta_replace_one,
            "epsilon_rows": self.epsilon_rows,
            "stopped_clients": self.stopped_clients,
        }
        later = ("delta_replace_one", "epsilon_rows")
        return {key: value for key, value in found.items() if value is not None or key not in later}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Result of a run. Infinite figures are None.

    Fields with a default came later than the others or do not apply to every run. `to_dict` leaves them out where they
    have it, and `from_dict` opens the documents of earlier versions, which lack them.
    """

    run: str
    """Name of the run in its store."""
    method: str
    """Name of the method."""
    called: str
    """Name of the method with the hyper-parameters that are not its defaults, as in `feddpa[tau=2]`."""
    variant: str
    """`sound`, or `paper` for the mechanism as published."""
    privacy: str
    """`dp`, or `none` for a run without noise."""
    rounds: int
    """Number of planned rounds."""
    rounds_done: int
    """Number of rounds that were run."""
    accuracy: Accuracies
    """`personal`, `personal_worst`, `start` (models at the start of the last round) and `global`. Personal is what
    clients predict with: the method's own models, or the blended or recalibrated ones."""
    epsilon: Figures
    """Epsilon for each observer: of what was charged or, where clients' answers may have decided when the run ended or
    which clients were asked, of the whole plan."""
    attack_accuracy: dict[View, float]
    """Share of correct answers of the best attack, between 0.5 (guessing) and 1."""
    delta: float
    """Delta at which `epsilon` holds."""
    unit: Unit
    """Unit that epsilon protects."""
    neighbours: str | None = None
    """The two worlds that epsilon compares, in words."""
    protect_from: View
    """Observer whom the noise was planned against."""
    noise_multiplier: float | None
    """Noise multiplier of each round; None where nothing is noised or each client has its own."""
    not_covered: list[str]
    """Sentences on what epsilon does not cover; where something left without noise, why epsilon is infinite."""
    spent: Spent
    """Spending of the unit that has spent most."""
    upload_bytes: int
    """Bytes that all clients sent."""
    clients: int
    """Number of clients."""
    parameters: int
    """Number of parameters of the network."""
    seed: int
    """Seed of the run."""
    notes: list[str]
    """Sentences that whoever reads the figures should know."""
    seconds: float
    """Duration of the run in seconds, over all of its sessions."""
    charged: Figures | None = None
    """Epsilon charged so far, where `epsilon` is that of the whole plan; no guarantee."""
    records: int | None = None
    """Training records of all clients, where the simulation knows them."""
    persons: int | None = None
    """Persons whom these records are about, where persons are protected and the simulation knows them."""
    download_bytes: int | None = None
    """Bytes that the server sent to all clients; None where a version before did not count them."""
    fairness: Fairness | None = None
    """Spread of accuracy over clients; None in deployments, and where no client has test records."""
    metrics: dict[str, Metric] | None = None
    """Metrics of what clients predict with, each on its own test records, by the names of
    `sordino.learning.metrics`."""
    positive: str | None = None
    """Class that the metric `recall` is about; None where there is none."""
    record_level: RecordFigures | None = None
    """Figures of a run that protects single records."""
    blend: MixtureFigures | None = None
    """Where clients blend models: accuracies of the blend and of each of its members."""
    recalibrate: MixtureFigures | None = None
    """Where clients recalibrate the server's model: accuracies of what they predict with and of its members."""
    planned_away: tuple[str, ...] = ()
    """Parts of the method that the plan switched off, because the budget cannot pay for them."""
    features: str | None = None
    """Features that the network was trained on, in one line; None where it saw the records themselves."""
    task: str = "classification"
    """Kind of task: `classification`, `regression` or `survival`."""
    score: str = "accuracy"
    """Metric that `accuracy` and the figures of mixtures hold: `accuracy`, `r2` or `concordance`."""
    curve: dict[str, float] | None = None
    """Kaplan-Meier curve of all clients' training records for a time to an event, from one noised histogram of events
    and of records last seen, by interval; the run's epsilon covers it."""
    deployed: bool = False
    """Whether the run was on the clients' own machines."""
    trial_of: str | None = None
    """Name of the data of a trial deployment, whose server and sites were processes of one machine."""
    evaluation: dict[str, Any] | None = None
    """Figures of the shared model over all clients' test records, from a noised histogram, where a share of the budget
    paid for it: `figures` (each with a 95 % interval that holds the noise), `noise` on each of the `cells`, `records`
    and, in a simulation, the `true` figures."""
    accuracy_noise: float | None = None
    """In a deployment whose sites share accuracies: standard deviation of the noise on them."""

    @property
    def epsilon_rows(self) -> dict[str, float | None]:
        """Epsilon of persons by the number of their rows at one client; empty at client level and where none is
        known."""
        return (None if self.record_level is None else self.record_level.epsilon_rows) or {}

    @property
    def summed_securely(self) -> bool:
        """Whether a secure sum kept single messages from the server of a deployment."""
        return self.deployed and self.epsilon["outsider"] != self.epsilon["server"]

    @property
    def mixture(self) -> MixtureFigures | None:
        """Figures of what clients made of their own and the server's models at the end; None where they did not."""
        return self.blend or self.recalibrate

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the run, as it is stored and printed."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "record_level":
                found |= {} if value is None else value.to_dict()
            elif field.name in MIXTURES:
                found |= {} if value is None else {field.name: value.to_dict()}
            elif field.name == "fairness":
                found |= {} if value is None else {"fairness": asdict(value)}
            elif field.name == "metrics":
                found |= {} if value is None else {"metrics": {name: asdict(one) for name, one in value.items()}}
            elif field.name == "positive":  # says what `recall` is about, and says so where it is about no class
                found |= {} if self.metrics is None else {"positive": value}
            elif value != field.default:
                found[field.name] = value
        return found

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Summary:
        """Inverse of `to_dict`, also for documents of earlier versions; keys that are no fields are ignored."""
        known = {field.name: document[field.name] for field in fields(cls) if field.name in document}
        known = {"called": document["method"], "privacy": "dp"} | known | {"unit": Unit(document["unit"])}
        known |= {"planned_away": tuple(document.get("planned_away", ()))}
        if document.get("metrics") is not None:
            known["metrics"] = {name: Metric(**one) for name, one in document["metrics"].items()}
        if document.get("fairness") is not None:
            known["fairness"] = Fairness(**document["fairness"])
        known |= {name: MixtureFigures(**document[name]) for name in MIXTURES if name in document}
        if "epsilon_replace_one" in document:
            names = [field.name for field in fields(RecordFigures) if field.name in document]
            known["record_level"] = RecordFigures(**{name: document[name] for name in names})
        return cls(**known)
