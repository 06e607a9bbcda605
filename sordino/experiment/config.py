"""`Experiment`: the configuration of a run. Keys of a TOML file and options of the command line are the same."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from sordino.data.own import Reading
from sordino.data.schema import (
    LARGEST_MAX_ROWS,
    LARGEST_MAX_SITES,
    MAX_MAGNITUDE,
    PERSON_KEYS,
    PersonRules,
    Schema,
    list_values,
)
from sordino.data.selection import PublicChoice
from sordino.errors import UserError, explain_invalid, quoted, unknown
from sordino.experiment.defaults import (
    COMPARED,
    DEFAULT_EPSILON,
    DEFAULT_STORE,
    FOR_TABLES,
    LEAST_RECORDS,
    RECOMMENDED,
    for_tables,
)
from sordino.experiment.hyperparameters import address, check_known, concerns, make_method
from sordino.features import heads
from sordino.features.choice import FeatureChoice, merged, read_choice
from sordino.method import Epsilon, Method
from sordino.models import linear
from sordino.models.tokens import LARGEST_VOCABULARY
from sordino.util.toml import read_toml

Settings = dict[str, Any]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
LARGEST_COUNT = 1_000_000_000
"""The largest number of clients, records or rounds between evaluations that is taken for meant."""
MOST_SEEDS = 1000
SCHEMA = "schema"
"""The key that names a schema's file; what stands there becomes the key `table`."""
FEATURES = "features."
"""Prefix of the settings of features in the table `set`."""
BUDGETS = ("epsilon", "noise_multiplier")
"""The keys that say how much noise there is."""
SHOWN = ("model", "rounds", "personal")
"""Keys that the sentence on a recommended method names."""
CLIPPING = "clipping"
"""The hyper-parameter that an experiment without a method has by default."""
OF_TASKS = ("task", "target_range", "event", "cuts", "loss", "vocabulary")
"""The keys that say what is predicted, where it is no class."""
ADDED = ("table", "drop", "categorical", "features", *PERSON_KEYS, "evaluation_share", *OF_TASKS)
"""The keys that a run's identity holds only where they are given: earlier versions did not know them."""
DEPLOYED = ("columns", "records_each", "active_server", "spare_turns", "metrics_share")
"""The keys that a simulation does not look at."""


class Experiment(BaseModel):
    """Everything that decides what a run does. Without any key it is the built-in example."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str = Field(default="digits", min_length=1)
    """A known data set, or a folder with one file per client."""
    data_dir: Path | None = None
    """Where data sets lie; by default $SORDINO_DATA, then the cache folder."""
    label: str | None = None
    """The label column of own tabular data."""
    labels: tuple[str | int, ...] | None = None
    """The labels that records of own data may have, in the order of the classes: declared, they are public. Without
    them the labels that occur are read from the data, which epsilon does not cover."""
    task: Literal["classification", "regression", "survival", "multi-label"] | None = None
    """Task, which is to predict a class, a number, the time to an event, or several labels. By default what the schema
    declares, and a class where there is no schema."""
    target_range: tuple[Number, Number] | None = None
    """For a regression without a schema: smallest and largest value of the target, which is held to them. Declared, it
    is public. Without it the range is read from the data, which epsilon does not cover."""
    event: str | None = Field(default=None, min_length=1)
    """For survival without a schema: the column that is 1 where the event happened and 0 where the record was last seen
    at its time, which stands in the label column."""
    cuts: tuple[Number, ...] | None = Field(default=None, min_length=1)
    """For survival without a schema: ends of the intervals of time, rising. Without them they are read from the data,
    which epsilon does not cover."""
    loss: Literal["squared", "huber"] | None = None
    """Loss of a regression: `squared`, the default, or `huber`, to which large errors count less."""
    vocabulary: int | None = Field(default=None, ge=2, le=LARGEST_VOCABULARY)
    """Number of tokens, where records are sequences (the array `tokens` of NPZ files) of which the next token is
    predicted. Declared, it is public. Without it the largest token is read from the data, which epsilon does not
    cover."""
    shape: tuple[int, ...] | None = None
    """The shape of one record of own tabular data that holds images."""
    table: Schema | None = None
    """Schema of own tabular data: the meaning of its columns. The key `schema` names the file that holds it
    (`sordino data schema` writes one)."""
    drop: tuple[str, ...] = ()
    """Columns of own tabular data that are left out, where there is no schema."""
    categorical: tuple[str, ...] = ()
    """Columns of own tabular data whose values have no order, where there is no schema. The values that occur are read
    from the data, which epsilon does not cover."""
    person: str | None = Field(default=None, min_length=1)
    """The column of own tabular data, or the array of an NPZ file, with a code of the person that a record is about.
    Where it is given, here or in the schema, methods that protect records protect persons with all of their records."""
    max_rows_per_person: int | None = Field(default=None, ge=1, le=LARGEST_MAX_ROWS)
    """Records of one person at a client that are trained on; of more, so many are drawn at random. By default 8."""
    max_sites_per_person: int | None = Field(default=None, ge=1, le=LARGEST_MAX_SITES)
    """The largest number of clients that one person may be known to, or of codes that it may have; by default one. What
    a person pays grows with it."""
    records: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    """Use at most so many of the training records, chosen by the seed: for quick studies on large data sets."""
    partition: str | None = None
    """Rule that deals records to clients: iid, dirichlet:ALPHA (skewed labels), quantity:ALPHA (clients of different
    sizes), shards:S, labels:P%, natural, or `package.module:function`, a function of labels, number of clients and a
    random generator that gives each record's client. The first three may have a least number of records for each
    client, as in dirichlet:0.5,min=20."""
    clients: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    """Number of clients; by default all natural ones, else 100."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """The share of each client's records kept for testing."""
    test: Literal["own", "official"] = "own"
    """Test each client on its own records, or all on the published test set."""
    public: str | None = None
    """Records that belong to no client, for methods that judge models on the server: a data set, a folder, or
    `holdout:0.1` to set a share of the records aside. `default`, and what is set aside when a method asks: the
    published test set, else `holdout:0.1`. Where records have owners, only other data can be public."""
    features: FeatureChoice | None = None
    """A frozen, public function of one record between data and network, whose output the network is trained on:
    `scattering` (images), `package.module:factory` or `backbone.py:factory` for a network of your own with its
    `weights`, a torch.export program, or `none`. Settings stand behind a colon, as in `scattering:pool=3,width=128`, or
    in a table `[features]`."""
    model: str | None = Field(default=None, min_length=1)
    """A network by name or dotted name. By default `logistic` for rows of numbers, whatever their number, and images of
    up to 64 numbers (`hazards` where the time to an event is predicted), `lenet` for images of 28x28 and more, `mlp`
    for others; with `features` a linear one."""
    method: str = RECOMMENDED["method"]
    """A method by name, or `package.module:Class`. An experiment that names none has `dp-fedavg` with `personal =
    "blend"` and `clipping = "quantile"`. For tables (rows of numbers) at up to 50 sites, with 20 training records or
    more at the site in the middle, it has `dp-fedsgd` with a linear `model`, `rounds = 60` and `personal =
    "recalibrate"` instead. What it says itself it keeps."""
    variant: Literal["sound", "paper"] = "sound"
    """`sound`: the epsilon holds. `paper`: as published, with its true epsilon."""
    privacy: Literal["dp", "none"] = "dp"
    """`dp`: what leaves is clipped and noised. `none`: nothing is, with any method, and epsilon is infinite."""
    personal: Literal["own", "blend", "recalibrate"] = "own"
    """The model that a client predicts with in the end: the method's own personal model; a `blend` of it, the server's
    models (the last one and their mean over the rounds) and models that the client trains alone, weighed by records
    that they were not trained on; or, with `recalibrate`, the server's model with a slope and class offsets fitted to
    the client's records, where the client has many records in the mean with a model that it trains alone. Nothing of it
    leaves."""
    rounds: int = Field(default=30, ge=1, le=1_000_000)
    """Number of rounds. For tables at a few sites, where no method is named, the default is 60."""
    participation: float = Field(default=1.0, gt=0, le=1)
    """The share of clients in a round; they take turns."""
    epsilon: Epsilon | None = None
    """The budget for the protected observer; 8 when neither it nor a noise multiplier is given."""
    delta: float | None = Field(default=None, ge=1e-100, lt=1)
    """Delta of the budget; by default min(1e-5, N^-1.1 / 10) for N clients, or, where records are protected, for the N
    records of the client with most."""
    noise_multiplier: float | None = Field(default=None, ge=1e-9, le=1e9, allow_inf_nan=False)
    """Noise over sensitivity for the protected observer in one round, in place of epsilon."""
    protect_from: Literal["outsider", "server"] = "outsider"
    """Who must not learn more than epsilon: those who see sums and models, or the server too."""
    minimum_cohort: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    """The fewest clients with which a round is used; noise is shared out over these. By default all asked."""
    colluders: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    """Number of clients that may tell the outsider their noise."""
    allow_vacuous_delta: bool = False
    """Admit delta >= 1/clients, or at record level 1/records, with a warning."""
    budget_over_runs: Epsilon | None = None
    """The epsilon that all runs of the store on the same people may come to together; a run beyond it is refused."""
    noise: Literal["float", "integers"] = "float"
    """In which numbers noise is simulated. `integers`: in the whole numbers of a deployment, drawn from the seed; a
    deployment that draws them from the same seed gives the same models, and epsilon is infinite in both."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the partition, the initial model, batches and simulated noise."""
    columns: tuple[str, ...] | None = None
    """On real machines: the names of the features of tabular data, in their order: declared, they are public."""
    records_each: int | None = Field(default=None, ge=1, le=LARGEST_COUNT)
    """On real machines: about how many training records a site has. Declared, it is public; what each site has decides
    its own noise. Needed where records are protected."""
    active_server: bool = True
    """On real machines: whether the secure sum must hold against a server that lies about who answered, or only against
    one that follows the protocol and is curious."""
    spare_turns: int = Field(default=0, ge=0, le=1_000_000)
    """On real machines: how many more turns of each client are paid for than the rounds need, for rounds that have to
    be repeated."""
    metrics_share: float = Field(default=0.0, ge=0, le=0.9, allow_inf_nan=False)
    """On real machines: which share of the budget pays for the means of the sites' accuracies, which the server learns
    with noise after the last round. At zero accuracies stay at the sites."""
    evaluation_share: float = Field(default=0.0, ge=0, le=0.5, allow_inf_nan=False)
    """Share of the budget (of mu^2) that pays for one noised histogram of all clients' test records by class and score,
    of the shared model, after the last round: AUC, accuracy, recall and calibration follow from it. At zero nothing of
    test records leaves."""
    workers: int | None = Field(default=None, ge=1, le=1024)
    """Processes; by default one per core. Results do not depend on it."""
    engine: Literal["auto", "stacked", "one-by-one"] = "auto"
    """Whether clients are trained stacked or one by one; `auto` goes by the sizes of network and batches."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """In which format a network's layers compute in local training; what leaves is clipped and noised in fp32. `bf16`
    is taken where it is measured to be faster when a run begins, else `fp32`: the run's configuration says which."""
    compiled: Literal["auto", "never", "always"] = "auto"
    """Whether the noisy gradient steps of record-level methods are compiled, which takes half a minute once and needs a
    C++ compiler. `auto`: where the run is long enough to gain from it. Results differ by rounding."""
    device: str = "cpu"
    """Where training happens: a torch device. Workers are for the CPU. Elsewhere values differ in their last bits, and
    noise is drawn from a random number of the run."""
    evaluate_every: int = Field(default=1, ge=1, le=LARGEST_COUNT)
    """Evaluate each so many rounds, and after the last."""
    store: Path = DEFAULT_STORE
    """The folder for runs."""
    set: Settings = Field(default_factory=dict)
    """Hyper-parameters of the method (`method.tau`, `feddpa.tau` or `tau`) and of the model (`model.hidden`)."""
    _ungiven: frozenset[str] = PrivateAttr(default=frozenset())
    """Those keys for which data may recommend other values, and which nobody gave."""

    @field_validator("data", mode="before")
    @classmethod
    def _name_of(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("set", mode="before")
    @classmethod
    def _dotted(cls, value: Any) -> Any:
        return dotted(value) if isinstance(value, Mapping) else value

    @field_validator("features", mode="before")
    @classmethod
    def _read_features(cls, value: Any) -> Any:
        return read_choice(value)

    @classmethod
    def make(cls, *sources: Mapping[str, Any], methods: Sequence[str] = ()) -> Experiment:
        """An experiment from several sources, later ones winning; mistakes become one sentence.

        With `methods`, those to be compared, a hyper-parameter is right when one of them has it.
        """
        values: dict[str, Any] = {}
        settings: Settings = {}
        unnamed = not methods and not any(_names_method(source) for source in sources)
        for source in sources:
            check_representable(source)
            given = {key.replace("-", "_"): value for key, value in source.items() if value is not None}
            more = given.pop("set", {})
            if not isinstance(more, Mapping):
                raise UserError('"set" must be a table of hyper-parameters, for example [set] with tau = 0.3.')
            flat = dotted(more)
            of_features = {key.removeprefix(FEATURES): flat.pop(key) for key in list(flat) if key.startswith(FEATURES)}
            own = {key for key in flat if key.replace("-", "_") in {*cls.model_fields, SCHEMA} and key != "set"}
            within = {key.replace("-", "_"): flat.pop(key) for key in own}
            _check_agreement(given, within)
            given |= within
            _read_schema(given)
            given |= merged(given.get("features", values.get("features")), of_features)
            settings |= flat
            values |= given
            if "epsilon" in given and "noise_multiplier" not in given:
                values.pop("noise_multiplier", None)
            if "noise_multiplier" in given and "epsilon" not in given:
                values.pop("epsilon", None)
            if given.get("privacy") == "none":  # a budget of an earlier source is of no use any more
                values = {key: value for key, value in values.items() if key in given or key not in BUDGETS}
        _add_defaults(values, settings, unnamed, methods)
        try:
            experiment = cls(**values, set=settings)
        except ValidationError as error:
            raise _sentence(error, values) from error
        for key, value in values.items():
            if isinstance(value, bool) and not isinstance(getattr(experiment, key), bool):  # Python takes True for 1
                raise UserError(f"{key} cannot be {value!r}: it must be a number.")
        experiment._check_keys()
        experiment._ungiven = _ungiven_by(sources) - ({"method"} if methods else set())
        if methods:
            experiment.check_settings(methods)
        elif not (unnamed and experiment._fits(FOR_TABLES["method"])):  # data may yet say that this is its method
            experiment.build_method()
        return experiment

    def _check_keys(self) -> None:
        """Refuse keys that contradict each other, or that say something of what is not there."""
        if self.person_rules is None and (self.max_rows_per_person or self.max_sites_per_person):
            raise UserError(
                "max_rows_per_person and max_sites_per_person say something of persons: name the column with their "
                "codes with --person, or in the schema."
            )
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise UserError("Give either epsilon or noise_multiplier, not both: each decides the other.")
        useless = [key for key in BUDGETS if getattr(self, key) is not None]
        if self.privacy == "none" and useless:
            raise UserError(
                f'privacy = "none" adds no noise, and epsilon is infinite: leave out either it or {useless[0]}.'
            )

    def __eq__(self, other: object) -> bool:
        """Whether both have the same values, whoever gave them."""
        return isinstance(other, Experiment) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment] # it holds a table of hyper-parameters

    @property
    def unnamed(self) -> bool:
        """Whether nobody named a method, and the data may still recommend one: `for_data` settles it."""
        return "method" in self._ungiven

    def for_data(self, shape: tuple[int, ...] | None, sites: int, records: float | None) -> tuple[Experiment, str]:
        """Choose what is recommended for data where no method is named. This is the one place that does.

        Args:
            shape: shape of one record; None where it is not known.
            sites: number of clients.
            records: training records of the client in the middle; None where they are not known.

        Returns:
            The experiment, with a method that is settled, and a sentence on the choice; empty where there was none.
        """
        if not self.unnamed:
            return self, ""
        chosen, told = self, ""
        if self._for_tables(shape, sites, records) and not self.metrics_share:  # which is for what protects sites
            keys = {key: value for key, value in self._table_keys().items() if key in self._ungiven}
            chosen = self.model_copy(update=keys | {"set": self._given_settings()})
            unit = "record" if self.person_rules is None else "person"
            keys_told = ", ".join(f"{key} = {getattr(chosen, key)}" for key in SHOWN)
            told = (
                f"Tables at {sites} site{'' if sites == 1 else 's'}, and no method named: {chosen.method}, which "
                f"protects each {unit}, with {keys_told}. Name another with --method."
            )
            ranged = [] if self.table is None else self.table.scaled_by_range()
            if ranged:
                told += (
                    f" Scaled to -1..1 by their ranges: {list_values(ranged)}. It learns faster from columns of about "
                    "unit variance: declare `mean` and `deviation` where these are public, write `spread = 3`, or "
                    "release mean and deviation with noise (`sordino data normalise`)."
                )
        elif self._too_small(shape, sites, records):
            told = (
                f"Tables at {sites} site{'' if sites == 1 else 's'} of about {records:.0f} training records each, and "
                f"no method named: {chosen.method}, which protects whole sites. Below {LEAST_RECORDS} records a site "
                f"may be one person, whom a promise to each record would not protect; if it is not, --method "
                f"{FOR_TABLES['method']} does."
            )
        chosen = chosen.model_copy()
        chosen._ungiven = frozenset()
        chosen.build_method()  # refuses hyper-parameters that it does not have
        return chosen, told

    def contenders(
        self, shape: tuple[int, ...] | None, sites: int, records: float | None
    ) -> tuple[list[str], Experiment]:
        """Methods to compare on data where nobody names any, and the experiment that they share. Arguments are those
        of `for_data`."""
        if not self._for_tables(shape, sites, records):
            return list(COMPARED), self
        open_keys = {key: value for key, value in self._table_keys().items() if key in self._ungiven}
        own = [f"{key}={open_keys[key]}" for key in ("rounds", "personal") if key in open_keys]
        blend = "[personal=blend]" if "personal" in open_keys else ""
        shared = {key: value for key, value in open_keys.items() if key == "model"}
        summed = FOR_TABLES["method"] + (f"[{','.join(own)}]" if own else "")
        return ["local", f"dp-fedavg-record{blend}", summed], self.model_copy(update=shared)

    def with_defaults(
        self, names: Sequence[str], shape: tuple[int, ...] | None, sites: int, records: float | None
    ) -> list[str]:
        """Contenders, where the method that is recommended for the data, named without settings, has those that a run
        would choose for it. Further arguments are those of `for_data`."""
        if not self._for_tables(shape, sites, records):
            return list(names)
        keys = self._table_keys()
        chosen = [f"{key}={value}" for key, value in keys.items() if key != "method" and key in self._ungiven]
        method = FOR_TABLES["method"]
        return [f"{method}[{','.join(chosen)}]" if name == method and chosen else name for name in names]

    def _table_keys(self) -> dict[str, Any]:
        """`FOR_TABLES`, with the linear network of the task."""
        return FOR_TABLES | {"model": linear(self.reading().kind)}

    def _for_tables(self, shape: tuple[int, ...] | None, sites: int, records: float | None) -> bool:
        """Whether `FOR_TABLES` was measured for such data: features are rows too, and have other defaults."""
        return self.features is None and for_tables(shape, sites, records)

    def _too_small(self, shape: tuple[int, ...] | None, sites: int, records: float | None) -> bool:
        """Whether data are tables at a few sites, but of so few records that whole sites are protected."""
        few = records is not None and records < LEAST_RECORDS
        return few and self.features is None and for_tables(shape, sites, LEAST_RECORDS) and not self.metrics_share

    def _fits(self, method: str) -> bool:
        """Whether a method has all hyper-parameters that were given."""
        try:
            make_method(method, self.variant, self.privacy, self._given_settings(), KEYS)
        except UserError:
            return False
        return True

    def _given_settings(self) -> Settings:
        """Hyper-parameters that somebody gave: all but a rule for the threshold that is there by default."""
        return {key: value for key, value in self.set.items() if key != CLIPPING or CLIPPING not in self._ungiven}

    def check_settings(self, methods: Sequence[str]) -> None:
        """Refuse a hyper-parameter that none of the methods has."""
        for key in self.set:
            check_known(key, methods, KEYS)

    def for_method(self, name: str, settings: Mapping[str, Any]) -> Experiment:
        """The experiment with another method; settings that only other methods know are left out."""
        kept = {key: value for key, value in self.set.items() if concerns(key, name)}
        values = self.model_dump()
        if "rounds" not in self.model_fields_set:  # a method that trains on features has its own number of them
            del values["rounds"]
        return type(self).make(values | {"method": name, "set": kept}, {"set": settings})

    @classmethod
    def read(cls, path: Path, *overrides: Mapping[str, Any], methods: Sequence[str] = ()) -> Experiment:
        """An experiment from a TOML file, with overrides."""
        try:
            values = read_toml(path)
        except FileNotFoundError as error:
            raise UserError(f"There is no experiment file {path}.") from error
        except RecursionError as error:
            raise UserError(f"The experiment file {path} is nested too deeply to be read.") from error
        except OSError as error:
            raise UserError(f"The experiment file {path} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
            raise UserError(f"The experiment file {path} is not valid TOML: {error}.") from error
        return cls.make(values, *overrides, methods=methods)

    def build_method(self) -> Method:
        """The method with its hyper-parameters."""
        return make_method(self.method, self.variant, self.privacy, self.set, KEYS)

    @property
    def asked_epsilon(self) -> float:
        """The budget that noise is made for, where no noise is given: the default where none is named."""
        return self.epsilon or DEFAULT_EPSILON

    def model_options(self) -> dict[str, Any]:
        """The options of the network."""
        return {k.removeprefix("model."): v for k, v in self.set.items() if k.startswith("model.")}

    def process_count(self) -> int:
        """Return the number of worker processes."""
        if self.device != "cpu":
            return 1
        return self.workers or max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)

    def decisive(self) -> dict[str, Any]:
        """The keys that decide a simulation's results: the place, the number of processes and the device do not, nor
        what earlier runs have spent, nor what concerns real machines only."""
        indifferent = {"store", "workers", "data_dir", "data", "budget_over_runs", *DEPLOYED}
        unused = {key for key in ADDED if not getattr(self, key)}
        decided = self.model_dump(mode="json", exclude=indifferent | unused)
        decided["device"] = "cpu"  # wherever it is: earlier versions held it, and their runs keep their identity
        if self.features is not None:
            decided["features"] = self.features.document()
        for key, value in decided["set"].items():
            if not key.startswith("model."):  # options of a network have no declared type: it may tell 1.0 from 1
                decided["set"][key] = shortest(value)
        return decided

    @property
    def person_rules(self) -> PersonRules | None:
        """Declaration of whom records belong to, of the experiment or of its schema; None where there is none."""
        declared = None if self.table is None else self.table.person_rules
        column = self.person or (None if declared is None else declared.column)
        if column is None:
            return None
        rules = declared or PersonRules(column)
        return PersonRules(
            column, self.max_rows_per_person or rules.max_rows, self.max_sites_per_person or rules.max_sites
        )

    def reading(self) -> Reading:
        """Return the options with which own files are read."""
        of_whom = self.person_rules
        of_tasks = (self.task, self.target_range, self.event, self.cuts, self.loss, self.vocabulary)
        return Reading(self.label, self.labels, self.shape, self.table, self.drop, self.categorical, of_whom, *of_tasks)

    def public_choice(self) -> PublicChoice:
        """Return the rule by which public records are chosen."""
        chosen = None if self.public == "default" else self.public
        return PublicChoice(chosen, self.data_dir, self.reading(), self.test, self.seed)


def _add_defaults(values: dict[str, Any], settings: Settings, unnamed: bool, methods: Sequence[str]) -> None:
    """Add the keys and hyper-parameters that nobody has given: those recommended where no method is named, and those of
    small networks on features."""
    values["features"] = read_choice(values.get("features"))
    recommended = dict(RECOMMENDED if unnamed else {})
    known: Settings = dict(recommended.pop("set", {}))
    for key, value in recommended.items():
        values.setdefault(key, value)
    if values["features"] is None:
        del values["features"]
    elif not methods and values.get("variant", "sound") == "sound":
        epsilon = values.get("epsilon") or (None if values.get("noise_multiplier") else DEFAULT_EPSILON)
        head = heads.defaults(values.get("method", RECOMMENDED["method"]), epsilon)
        values |= {key: value for key, value in head.keys.items() if key not in values}
        known |= head.settings
    given = {found.field for found in map(address, settings) if found is not None}
    added = {key: value for key, value in known.items() if key.partition(".")[0] not in given}
    merged_settings = {**added, **settings}
    settings.clear()
    settings.update(merged_settings)


def _check_agreement(given: Mapping[str, Any], within: Mapping[str, Any]) -> None:
    """Refuse a key that a source gives both by itself and `within` its table `set`, as something else."""
    for key, value in within.items():
        if key in given and given[key] != value and str(given[key]) != str(value):
            raise UserError(
                f"{key} is given twice, as {quoted(given[key])} and by `set` as {quoted(value)}: leave one of them out."
            )


def _read_schema(given: dict[str, Any]) -> None:
    """Read the schema that a source names: a run keeps what stands there, whatever becomes of the file."""
    named = given.pop(SCHEMA, None)
    if named is not None:
        if not isinstance(named, str | Path):
            raise UserError(f"schema must be the name of a file, not {quoted(named)}.")
        given["table"] = Schema.read(Path(named))


KEYS = tuple(name for name in (*Experiment.model_fields, SCHEMA) if name not in ("set", "table"))
"""The names of all keys of an experiment, hyper-parameters apart."""


def _ungiven_by(sources: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Keys for which data may recommend values and that no source gives; options of a network, and settings of a
    threshold's rule, count as giving these."""
    found = {*FOR_TABLES, CLIPPING}
    for source in sources:
        found -= {key.replace("-", "_") for key, value in source.items() if value is not None}
        for key in dotted(source.get("set") or {}):
            found -= {key.replace("-", "_"), *({CLIPPING, "model"} & set(key.split(".")))}
    return frozenset(found)


def _names_method(source: Mapping[str, Any]) -> bool:
    """Whether a source of keys says which method it is about."""
    table = source.get("set")
    within = table.get("method") if isinstance(table, Mapping) else None
    return source.get("method") is not None or isinstance(within, str)


def dotted(table: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested tables as one, by dotted keys."""
    flat: Settings = {}
    for key, value in table.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def setting(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; the value is read as TOML, or taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--set wants key=value, not {text!r}; for example --set method.tau=0.3.")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except RecursionError as error:
        raise UserError(f"The value of {quoted(key)} is nested too deeply to be read.") from error
    except ValueError:  # not TOML, or a number of thousands of digits
        return key, value


def settings_of(texts: Iterable[str]) -> Settings:
    """Settings by key, from texts `key=value`; a key that is given twice is refused: one value would be lost."""
    found: Settings = {}
    for text in texts:
        key, value = setting(text)
        twice = next((one for one in found if _plain(one) == _plain(key)), None)
        if twice is not None:
            again = f"{key} is given twice," if key == twice else f"{twice} and {key} are the same setting, given"
            raise UserError(f"{again} as {quoted(found[twice])} and as {quoted(value)}: leave one of them out.")
        found[key] = value
    return found


def _plain(key: str) -> str:
    """A key without what makes no difference to it."""
    return key.replace("-", "_").removeprefix("method.")


def shortest(value: Any) -> Any:
    """A setting in its shortest form: 1 where 1.0 is written, which is the same. Zero stays as it is written: both
    ways are in use in the experiments that come with Sordino, and neither may draw other noise than it did."""
    return int(value) if isinstance(value, float) and value.is_integer() and value else value


def check_representable(table: Mapping[str, Any]) -> None:
    """Refuse values that no file, database or system call can carry: integers beyond 64 bits and zero bytes."""
    try:
        flat = dotted(table)
    except RecursionError as error:
        raise UserError("The experiment's tables are nested too deeply to be read.") from error
    for key, value in flat.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise UserError(f"{quoted(key)} has a number beyond 64 bits, which is more than can be meant.")
            if "\0" in str(key) or (isinstance(item, str | Path) and "\0" in str(item)):
                raise UserError(f"{quoted(key)} has a zero byte in it, which no name may have.")


def check_seeds(seeds: int) -> None:
    """Refuse a number of seeds that is none, or that would take for ever."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"There must be at least one seed and at most {MOST_SEEDS:,}, not {seeds}.")


def _sentence(error: ValidationError, values: Mapping[str, Any]) -> UserError:
    """The first problem that pydantic found, as a sentence."""
    problem = error.errors()[0]
    key = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return unknown("key", key, KEYS)
    if key == "columns" and isinstance(values.get(key), Mapping):
        return UserError(
            "`columns` is a table, as in a schema: name that file with --schema, or with the key `schema` of an "
            "experiment."
        )
    hint = " 1 is strong, 8 is common." if key == "epsilon" else ""
    if problem["type"] == "tuple_type":
        return UserError(f"{key} cannot be {quoted(values.get(key))}: write a list in brackets.")
    return UserError(f"{key} cannot be {quoted(values.get(key))}: {explain_invalid(problem)}.{hint}")
