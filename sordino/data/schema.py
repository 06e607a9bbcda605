"""Schema of a user's tables: the kinds of their columns, and the rules by which a row becomes a record.

It is written as `schema.toml`:

    delimiter = ";"
    decimal = ","
    person = "patient"      # whom a row is about

    [columns.age]
    kind = "number"
    range = [0, 120]        # public: held to it and scaled to -spread..spread
    missing = "centre"

    [columns.sex]
    kind = "category"
    values = ["f", "m"]

    [columns.patient]
    kind = "id"             # dropped

    [columns.outcome]
    kind = "label"
    values = ["well", "ill"]
    positive = "ill"

In the place of a label, a number is predicted where a column has `kind = "target"` with a `range`, and a time to an
event where two columns have `kind = "time"`, with the `cuts` at which the event is looked at, and `kind = "event"`.
Several targets are several numbers, several labels of two values each several yes/no outcomes.

Nothing is learned from records here. What `sordino data schema` read from them says `public = false`, and every run
with it tells that epsilon does not cover it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_serializer, model_validator

from sordino.errors import UserError, explain_invalid, quoted
from sordino.tasks import Classification, Regression, SeveralLabels, SeveralNumbers, Survival, Task
from sordino.tasks.regression import USUAL_LOSS
from sordino.util.formatting import canonical
from sordino.util.toml import read_toml

MISSING_CELLS = ("", "NA", "N/A", "NaN", "nan", "null", "?")
"""Texts of cells without a value, unless the schema names others."""
MAX_MAGNITUDE = 1e30
"""Larger numbers, up or down, are refused in tables."""
LEAST_SIZE = 0.3
"""Least deviation by which a category's features are divided: rare values are not to outweigh all other columns."""
SHOWN = 12
"""Values of a column that are shown to people."""
MOST_CUTS = 100
"""Most intervals in which an event may be looked for."""
MAX_ROWS = 8
"""Rows of one person that are trained on at most, where nobody says how many."""
PERSON_KEYS = ("person", "max_rows_per_person", "max_sites_per_person")
"""Keys on persons, of schemas and of experiments. Earlier versions did not know them: files and identities hold them
only where they are given."""
LARGEST_MAX_ROWS = 10_000
LARGEST_MAX_SITES = 100
"""Largest declarations of a person's rows and clients that are taken for meant."""
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE)]
Name = Annotated[str, Field(min_length=1)]


Feature = dict[str, Any]
"""Rule for one number of a record, as JSON can carry it. `feature` is its name, `column` where it is read.

A number is held to `low` and `high` where they are given; `subtract` is subtracted, and the rest divided by `divide`.
Where there are `units`, a number with one of them behind it is multiplied by the unit's factor first; numbers in
`missing_codes` are missing values. For a value of a category, the feature is 1 where the cell `equals` it or one of its
other spellings (`or_equals`), else 0: without space around it, whole numbers without decimals, and in small letters
where `fold_case` says so; `subtract` and `divide` follow, where they are given. Where the cell has no value, the
feature is `missing`; None where there must be one. A feature that has none of these keys is 0 where the cell has a
value."""


def _flag(name: str, **more: Any) -> Feature:
    """The feature that says that a value is missing."""
    return {"feature": f"{name} is missing", "column": name, "missing": 1.0, **more}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Format(_Part):
    """Format of a table's file."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """Character between two cells."""
    encoding: str = "utf-8"
    """Encoding of the text."""
    decimal: Literal[".", ","] = "."
    """Character before the decimals of a number."""

    @model_validator(mode="after")
    def _readable(self) -> Format:
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError) as error:
            raise ValueError(f"there is no text encoding {self.encoding!r}; utf-8 and cp1252 are usual") from error
        if self.delimiter == self.decimal or self.delimiter in '"\n\r':
            raise ValueError(f"{self.delimiter!r} cannot stand between cells")
        return self


NEWER = ("units", "missing_codes", "aliases", "bins")
"""Keys of columns that earlier versions did not know: where they are not given, they are left out of what is stored, so
that the identity of a run stays what it was."""


class _Column(_Part):
    public: bool = True
    """Whether what stands here is known to everybody; if not, it was read from records, and no epsilon covers it."""

    @model_serializer(mode="wrap")
    def _without_newer(self, dump: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value or key not in NEWER}


class NumberColumn(_Column):
    """A measurement."""

    kind: Literal["number"] = "number"
    range: tuple[Finite, Finite] | None = None
    """The smallest and largest value that make sense: others are held to it."""
    spread: Annotated[Finite, Field(gt=0)] | None = None
    """The ends of the range become -spread and spread, unless `mean` is given; 1 where nothing is said. With 3 most
    measurements get a deviation of about one, from which networks learn fastest."""
    mean: Finite | None = None
    """Value that becomes 0."""
    deviation: Annotated[Finite, Field(gt=0)] | None = None
    """Distance from the mean that becomes 1."""
    released: str | None = None
    """Run that released mean and deviation with noise, and its epsilon; None where they are public."""
    missing: Literal["refuse", "drop", "centre", "flag"] | Finite = "refuse"
    """Rule for missing values: `refuse` the file, `drop` the record, put in the `centre` (what becomes 0), `flag` (the
    centre, and a feature of its own), or a number to put in."""
    missing_codes: tuple[Finite, ...] = ()
    """Numbers that stand for a missing value, such as 0 or 999."""
    units: dict[Name, Annotated[Finite, Field(gt=0)]] = Field(default_factory=dict)
    """Units that may stand behind a number ("281.0 mg/dl"), each with the factor by which the number is multiplied."""

    @model_validator(mode="after")
    def _scaled(self) -> NumberColumn:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError("the range's first number must be the smaller one")
        if (self.mean is None) != (self.deviation is None):
            raise ValueError("`mean` and `deviation` go together")
        if self.spread is not None and self.range is None:
            raise ValueError("`spread` says what a range becomes, and there is no range")
        if self.released is not None and self.mean is None:
            raise ValueError("`released` says where `mean` and `deviation` come from, which are not here")
        return self

    @property
    def scale(self) -> tuple[float, float]:
        """(centre, size): a value becomes (value - centre) / size."""
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        if self.range is not None:
            low, high = self.range
            return (low + high) / 2, (high - low) / (2 * (self.spread or 1.0))
        return 0.0, 1.0

    def describe(self) -> str:
        """Declared values, in words."""
        return "any number" if self.range is None else f"{self.range[0]:g} to {self.range[1]:g}"

    def recipe(self, name: str) -> list[Feature]:
        """Rules by which the column `name` becomes features."""
        centre, size = self.scale
        held = {} if self.range is None else dict(zip(("low", "high"), self.range, strict=True))
        filled = self.missing if isinstance(self.missing, float) else centre
        absent = None if self.missing in ("refuse", "drop") else (filled - centre) / size
        more: Feature = {} if not self.missing_codes else {"missing_codes": list(self.missing_codes)}
        more |= {} if not self.units else {"units": {unit_key(unit): factor for unit, factor in self.units.items()}}
        scaled = {"feature": name, "column": name, **held, "subtract": centre, "divide": size, "missing": absent}
        return [scaled | more, *([_flag(name, **more)] if self.missing == "flag" else [])]


class Category(_Column):
    """One of several values that have no order; each becomes a feature that is 1 or 0, or these two scaled."""

    kind: Literal["category"] = "category"
    values: tuple[Name, ...] = Field(min_length=1, max_length=100_000)
    """All values that may occur."""
    missing: Literal["refuse", "drop", "flag"] | str = "refuse"
    """Rule for missing values: `refuse` the file, `drop` the record, `flag` it in a feature of its own, or one of the
    values to put in."""
    fold_case: bool = False
    """Whether `Yes` and `yes` are the same."""
    aliases: dict[Name, str] = Field(default_factory=dict)
    """Other spellings of values, as sites write them: `aliases = {male = "m"}`."""
    centred: bool = False
    """Whether its features have the mean 0 and, up to ten values, the deviation 1 that they would have if all values
    were equally frequent. Networks learn faster from these than from 1 and 0."""

    @model_validator(mode="after")
    def _distinct(self) -> Category:
        check_distinct(self.values, self.fold_case)
        check_aliases(self.aliases, self.values, self.fold_case)
        if self.missing not in ("refuse", "drop", "flag", *self.values):
            raise ValueError(f"missing = {self.missing!r} is neither refuse, drop or flag nor one of the values")
        return self

    def describe(self) -> str:
        """Declared values, in words."""
        return list_values(self.values)

    def recipe(self, name: str) -> list[Feature]:
        """Rules by which the column `name` becomes features."""
        about: Feature = {"column": name, "fold_case": self.fold_case}
        centre, size = self.scale
        scaled = {"subtract": centre, "divide": size} if self.centred else {}
        found = [
            {
                **{"feature": f"{name} = {value}", **about},
                **{"equals": canonical(value, self.fold_case), "missing": self._absent(value), **scaled},
                **({"or_equals": also} if (also := self._spellings(value)) else {}),
            }
            for value in self.values
        ]
        return [*found, *([_flag(name)] if self.missing == "flag" else [])]

    def _spellings(self, value: str) -> list[str]:
        """Other spellings of a value, as they are compared."""
        return [canonical(alias, self.fold_case) for alias, meant in self.aliases.items() if meant == value]

    def _absent(self, value: str) -> float | None:
        """Feature of a value for a record without one; None where there must be one."""
        if self.missing in ("refuse", "drop"):
            return None
        centre, size = self.scale
        return 0.0 if self.missing == "flag" else (float(value == self.missing) - centre) / size

    @property
    def scale(self) -> tuple[float, float]:
        """(centre, size): 1 and 0 become (1 - centre) / size and -centre / size."""
        share = 1 / len(self.values)
        if not self.centred or share == 1:
            return 0.0, 1.0
        return share, max(math.sqrt(share * (1 - share)), LEAST_SIZE)


class Identifier(_Column):
    """A column that names a person or a row, or is of no use: dropped."""

    kind: Literal["id"] = "id"

    def describe(self) -> str:
        """Declared values, in words."""
        return "dropped"

    def recipe(self, name: str) -> list[Feature]:
        """No rules: the column becomes no feature."""
        return []


class Label(_Column):
    """The column to predict."""

    kind: Literal["label"] = "label"
    values: tuple[Name, ...] = Field(min_length=1, max_length=100_000)
    """The classes, in the order of their numbers."""
    positive: str | None = None
    """The class that is looked for; of two the second, unless another is named."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Rule for missing labels: `refuse` the file, or `drop` the record."""
    fold_case: bool = False
    """Whether `Yes` and `yes` are the same."""
    aliases: dict[Name, str] = Field(default_factory=dict)
    """Other spellings of values, as sites write them: `aliases = {male = "m"}`."""
    bins: tuple[Finite, ...] | None = None
    """Bounds between the classes of a label that is a number: the first class is below the first bound, the last has
    the last bound and all above it."""

    @model_validator(mode="after")
    def _distinct(self) -> Label:
        check_distinct(self.values, self.fold_case)
        check_aliases(self.aliases, self.values, self.fold_case)
        if self.positive is not None and self.positive not in self.values:
            raise ValueError(f"positive = {self.positive!r} is not among the values {', '.join(self.values)}")
        if self.bins is not None:
            if list(self.bins) != sorted(set(self.bins)) or len(self.values) != len(self.bins) + 1:
                raise ValueError("`bins` are bounds in rising order, and `values` names one class more than there are")
            if self.aliases:
                raise ValueError("`aliases` are for texts, and with `bins` the label is a number")
        return self

    def describe(self) -> str:
        """Declared values, in words."""
        return list_values(self.values)

    def recipe(self, name: str) -> list[Feature]:
        """No rules: the column becomes no feature."""
        return []


class _Outcome(_Column):
    """A column of what is predicted; it becomes no feature."""

    missing: Literal["refuse", "drop"] = "refuse"
    """Rule for missing values: `refuse` the file, or `drop` the record."""

    def recipe(self, name: str) -> list[Feature]:
        """No rules: the column becomes no feature."""
        return []


class Target(_Outcome):
    """The number to predict."""

    kind: Literal["target"] = "target"
    range: tuple[Finite, Finite]
    """Smallest and largest value that make sense: others are held to it."""
    unit: Name | None = None
    """Unit of the number, for people: days, mmHg or EUR."""
    mean: Finite | None = None
    deviation: Annotated[Finite, Field(gt=0)] | None = None
    """Mean and deviation by which the number is scaled in training; by default the range's centre and a sixth of it."""
    released: str | None = None
    """Run that released mean and deviation with noise, and its epsilon; None where they are public."""
    missing_codes: tuple[Finite, ...] = ()
    """Numbers that stand for a missing value, such as -1 or 999."""

    @model_validator(mode="after")
    def _scaled(self) -> Target:
        if not self.range[0] < self.range[1]:
            raise ValueError("the range's first number must be the smaller one")
        if (self.mean is None) != (self.deviation is None):
            raise ValueError("`mean` and `deviation` go together")
        if self.released is not None and self.mean is None:
            raise ValueError("`released` says where `mean` and `deviation` come from, which are not here")
        return self

    def describe(self) -> str:
        """Declared values, in words."""
        return f"{self.range[0]:g} to {self.range[1]:g}{'' if self.unit is None else ' ' + self.unit}"


class Time(_Outcome):
    """Time until the event or, without one, until the record was last seen."""

    kind: Literal["time"] = "time"
    cuts: tuple[Annotated[Finite, Field(gt=0)], ...] = Field(min_length=1, max_length=MOST_CUTS)
    """Ends of the intervals in which the event is looked for, in rising order; later times count as the last one."""
    unit: Name | None = None
    """Unit of the times, for people."""

    @model_validator(mode="after")
    def _rising(self) -> Time:
        if list(self.cuts) != sorted(set(self.cuts)):
            raise ValueError("`cuts` must rise from one to the next")
        return self

    def describe(self) -> str:
        """Declared values, in words."""
        return f"times up to {self.cuts[-1]:g}{'' if self.unit is None else ' ' + self.unit}"


class Event(_Outcome):
    """Whether the event happened at the record's time, or the record was last seen then."""

    kind: Literal["event"] = "event"
    values: tuple[Name, Name] = ("0", "1")
    """Spelling of a record without the event, and of one with it."""
    fold_case: bool = False
    """Whether `Yes` and `yes` are the same."""

    @model_validator(mode="after")
    def _distinct(self) -> Event:
        check_distinct(self.values, self.fold_case)
        return self

    def describe(self) -> str:
        """Declared values, in words."""
        return list_values(self.values)


@dataclass(frozen=True)
class PersonRules:
    """Declaration of whom rows belong to, and of how much one person may contribute."""

    column: str
    """Column, or array, with a code of the person. It is no feature."""
    max_rows: int = MAX_ROWS
    """Rows of one person at a client that are trained on; of more, so many are drawn at random."""
    max_sites: int = 1
    """Largest number of pairs of client and code that one person may have: 2 for somebody known to two clients."""

    def keys(self) -> dict[str, Any]:
        """The declaration as keys of a schema or of an experiment."""
        return dict(zip(PERSON_KEYS, (self.column, self.max_rows, self.max_sites), strict=True))


Column = Annotated[NumberColumn | Category | Identifier | Label | Target | Time | Event, Field(discriminator="kind")]
TIMES = ["event", "time"]
"""Kinds of the columns that say together when an event happens, sorted."""


class Schema(Format):
    """The columns of every client's table, in the order of the features, and how the tables are written."""

    missing_cells: tuple[str, ...] = MISSING_CELLS
    """Texts of cells without a value."""
    files: dict[str, Format] = Field(default_factory=dict)
    """Clients whose file is written in another way."""
    person: Name | None = None
    """The column with a code of the person that a row is about. It is no feature, and rows without a code are dropped.
    Where it is given, record-level methods protect persons with all of their rows."""
    max_rows_per_person: int | None = Field(default=None, ge=1, le=LARGEST_MAX_ROWS)
    """Rows of one person at a client that are trained on; of more, so many are drawn at random."""
    max_sites_per_person: int | None = Field(default=None, ge=1, le=LARGEST_MAX_SITES)
    """The largest number of clients that one person may be known to, or of codes that it may have."""
    columns: dict[str, Column] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_outcome(self) -> Schema:
        outcomes = {name: one for name, one in self.columns.items() if isinstance(one, Label | _Outcome)}
        kinds = sorted(column.kind for column in outcomes.values())
        if kinds != TIMES and set(kinds) not in ({"label"}, {"target"}):
            raise ValueError(
                'exactly one column must have kind = "label", or one kind = "target" (or several of one of these), or '
                f'one kind = "time" and one kind = "event", but {_counted(kinds)}'
            )
        for name, one in outcomes.items():
            if len(outcomes) > 1 and isinstance(one, Label) and len(one.values) != 2:
                raise ValueError(
                    f"of several labels each has two values, yes and no, but {name!r} has {len(one.values)}: predict "
                    "it in a run of its own, or give it two"
                )
        if not self.features():
            raise ValueError(f"there must be a number or a category beside the {kinds[-1]}")
        if self.person is not None and not isinstance(self.columns.get(self.person, Identifier()), Identifier):
            raise ValueError(f'person = {self.person!r} names a column that has another use; give it kind = "id"')
        if self.person is None and (self.max_rows_per_person or self.max_sites_per_person):
            raise ValueError("max_rows_per_person and max_sites_per_person need `person`, the column with the codes")
        return self

    @property
    def person_rules(self) -> PersonRules | None:
        """Declaration of whom rows belong to; None where there is none."""
        if self.person is None:
            return None
        return PersonRules(self.person, self.max_rows_per_person or MAX_ROWS, self.max_sites_per_person or 1)

    @property
    def outcomes(self) -> dict[str, Label | Target | Time | Event]:
        """Columns that say what is predicted; a time before its event."""
        found = {name: one for name, one in self.columns.items() if isinstance(one, Label | Target | Time | Event)}
        return dict(sorted(found.items(), key=lambda item: item[1].kind, reverse=True))

    @property
    def label_name(self) -> str:
        """The name of the column that is predicted."""
        return next(iter(self.outcomes))

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the columns that are predicted each by itself: of a time and its event, that of the time."""
        return tuple(name for name, one in self.outcomes.items() if not isinstance(one, Event))

    @property
    def label(self) -> Label:
        """The label's column, where classes are predicted."""
        return next(column for column in self.columns.values() if isinstance(column, Label))

    def task(self, loss: str | None = None, by: str | None = None) -> Task:
        """The task that the columns declare.

        Args:
            loss: that of a regression, where it is not the usual one.
            by: column by which records are dealt, of several; by default the first.
        """
        first = next(iter(self.outcomes.values()))
        if isinstance(first, Time):
            return Survival(first.cuts, first.unit)
        parts = tuple(_task_of(column, loss) for column in self.outcomes.values())
        if len(parts) == 1:
            return parts[0]
        kind = SeveralLabels if isinstance(first, Label) else SeveralNumbers
        found = kind(self.label_names, parts)
        return found if by is None else found.dealt_by(by)

    def with_persons(self, rules: PersonRules | None) -> Schema:
        """The schema with another declaration of whom rows belong to; None leaves it as it is."""
        return self if rules is None else Schema.parse(self.document() | rules.keys())

    def inputs(self) -> dict[str, NumberColumn | Category]:
        """The columns that a model sees, in order."""
        return {name: one for name, one in self.columns.items() if isinstance(one, NumberColumn | Category)}

    def scaled_by_range(self) -> list[str]:
        """The numbers that are scaled to -1..1 by their range: nothing says by how much they vary."""
        return [
            name
            for name, one in self.inputs().items()
            if isinstance(one, NumberColumn) and one.range is not None and one.mean is None and one.spread is None
        ]

    def features(self) -> list[str]:
        """The names of a record's numbers, in order."""
        return [one["feature"] for one in self.recipe()]

    def recipe(self) -> list[Feature]:
        """Rules for a record's numbers, in order."""
        return [one for name, column in self.columns.items() for one in column.recipe(name)]

    def format_of(self, client: str) -> Format:
        """Format of a client's table."""
        return self.files.get(client, self)

    def disclosed(self) -> tuple[str, ...]:
        """Sentences on what the schema holds that was read from records."""
        read = [
            name for name, column in self.columns.items() if not column.public and not isinstance(column, Identifier)
        ]
        sentences = []
        if read:
            sentences.append(
                f"What the schema says of these columns was read from the clients' records: {', '.join(read)}. Put "
                "public ranges and values in their place, and write public = true there."
            )
        by_run: dict[str, list[str]] = {}
        for name, column in self.columns.items():
            if isinstance(column, NumberColumn | Target) and column.released is not None:
                by_run.setdefault(column.released, []).append(name)
        sentences += [
            f"Mean and deviation of {', '.join(names)} come from the run {run}, which adds to this run's epsilon."
            for run, names in by_run.items()
        ]
        return tuple(sentences)

    @classmethod
    def read(cls, path: Path) -> Schema:
        """Read a schema from a TOML file; a UserError says what is wrong in it."""
        try:
            return cls.parse(read_toml(path), path)
        except FileNotFoundError as error:
            raise UserError(f"There is no schema {path}: `sordino data schema FOLDER` writes one.") from error
        except OSError as error:
            raise UserError(f"The schema {path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"The schema {path} is not valid TOML: {error}.") from error

    @classmethod
    def parse(cls, values: Mapping[str, Any], path: Path | None = None) -> Schema:
        """A schema from the `values` of a file, whose `path` is for the sentence that refuses them."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(_sentence(error, "The schema" if path is None else f"The schema {path}")) from error

    def document(self) -> dict[str, Any]:
        """The schema as JSON can carry it."""
        return self.model_dump(mode="json", exclude_none=True)


def _task_of(column: Label | Target | Time | Event, loss: str | None) -> Task:
    """The task that a label or a target declares by itself."""
    if isinstance(column, Label):
        return Classification.of(column.values, column.positive)
    assert isinstance(column, Target)
    about = (*column.range, column.unit, column.mean, column.deviation)
    return Regression(*about, loss=loss or USUAL_LOSS)


def list_values(values: Sequence[str]) -> str:
    """Values in one line, the first few of many."""
    return ", ".join(values[:SHOWN]) + (f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else "")


def check_distinct(values: tuple[str, ...], fold_case: bool) -> None:
    """Refuse values of which two are the same."""
    known: dict[str, str] = {}
    for value in values:
        other = known.setdefault(canonical(value, fold_case), value)
        if other != value or values.count(value) > 1:
            raise ValueError(f"the values {other!r} and {value!r} are the same")


def check_aliases(aliases: Mapping[str, str], values: Sequence[str], fold_case: bool) -> None:
    """Refuse other spellings of what is not among the values, and those that are values themselves."""
    known = {canonical(value, fold_case) for value in values}
    for alias, value in aliases.items():
        if value not in values:
            raise ValueError(f"the alias {alias!r} stands for {value!r}, which is not among the values")
        if canonical(alias, fold_case) in known:
            raise ValueError(f"the alias {alias!r} is one of the values: a value has no other meaning")


def _counted(kinds: Sequence[str]) -> str:
    """Kinds of outcomes that a schema has, in words."""
    if not kinds:
        return "none has"
    return "there are " + " and ".join(f"{kinds.count(kind)} of kind {kind}" for kind in dict.fromkeys(kinds))


def unit_key(unit: str) -> str:
    """A unit as it is compared: without spaces, in small letters."""
    return "".join(unit.split()).casefold()


def _sentence(error: ValidationError, what: str) -> str:
    """The first problem that pydantic found, with the place where it stands."""
    problem, *others = error.errors()
    loc, reason = problem["loc"], explain_invalid(problem)
    if loc and str(loc[-1]).startswith("literal["):  # the first of several kinds that a value may have
        also = [explain_invalid(one) for one in others if one["loc"][:-1] == loc[:-1]]
        loc, reason = loc[:-1], ", or ".join([reason, *(one.removeprefix("it must be ") for one in also)])
    place = [str(part) for number, part in enumerate(loc) if not (loc[0] == "columns" and number == 2)]  # its kind
    where = f" at {'.'.join(place)}" if place else ""
    if problem["type"] == "extra_forbidden":
        return f"{what} has an unknown key {quoted(place[-1])}{where}."
    if problem["type"].startswith("union_tag"):
        return f"{what} is wrong{where}: kind must be number, category, id, label, target, time or event."
    return f"{what} is wrong{where}: {reason[0].lower()}{reason[1:]}."
