"""The draft of a schema, from what a folder's tables look like: every guess is a question to the user in the file."""

from __future__ import annotations

import itertools
import re
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sordino.data.column_kinds import (
    check_class_labels,
    differ_in_case,
    looks_continuous,
    note_numeric_classes,
    round_outwards,
    sorted_labels,
    spread_of,
    suggest_bins,
    suggest_cuts,
)
from sordino.data.formats import quote
from sordino.data.own import client_paths
from sordino.data.questions import (
    FEW_CODES,
    INTEGER_CODES,
    RANGES,
    VALUES,
    ColumnQuestion,
    ask_of_codes,
    ask_of_scales,
    ask_of_sites,
    ask_of_units,
    find_spellings,
    find_units,
    merge,
    number_of,
)
from sordino.data.schema import (
    MAX_MAGNITUDE,
    MISSING_CELLS,
    PERSON_KEYS,
    Category,
    Column,
    Event,
    Format,
    Identifier,
    Label,
    NumberColumn,
    Schema,
    Target,
    Time,
    canonical,
)
from sordino.data.tables import DECIMAL_COMMA, TextTable, guess_format, read_table
from sordino.errors import UserError, refuse, unknown
from sordino.tasks import TASKS, Classification, Regression, SeveralLabels, Survival
from sordino.util.toml import toml_key, toml_value

MAX_CATEGORIES = 20
"""Texts with more different values than this are no categories, unless most values come often."""
FEW_TEXTS = 0.2
"""Largest share of texts with which a column is still one of numbers, with some odd cells."""
OFTEN_MISSING = 0.05
"""From this share on, that a value is missing may mean something."""
NAMES_OF_IDS = re.compile(r"(^|[_\s.-])(id|ids|uuid|mrn|ssn|nr|no|number|name|email|key)$", re.IGNORECASE)
NAMES_OF_PERSONS = re.compile(
    r"(^|[_\s.-])(patient|person|subject|participant|member|customer|user|insured|mrn|ssn|pid)s?"
    r"([_\s.-]*(id|nr|no|number|code|key))?$",
    re.IGNORECASE,
)
CODE = re.compile(r"^[^\W\d]{0,5}[-_ ]?\d+$")
"""A code of a person or a thing: a few letters, and a number."""
FEWEST_PERSONS = 5
"""Fewest different codes, at the site with most, that may name persons."""
MAX_MEAN_ROWS = 20
"""Most rows that a person has in the mean, where codes may name persons."""
DATE = re.compile(r"^(\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([ T]\d{1,2}:\d{2}.*)?$")


@dataclass(frozen=True)
class Draft:
    """A schema as it was guessed, and as it is written."""

    schema: Schema
    questions: list[str]
    """Sentences on guesses that the user should check."""
    text: str
    files: int


@dataclass(frozen=True)
class _Guess:
    """Guess at one column."""

    column: Column
    seen: str
    """Range or number of values that occur, and the share of missing ones."""
    questions: tuple[ColumnQuestion, ...] = ()


@dataclass(frozen=True)
class Wishes:
    """Answers that the user gives before anything is guessed."""

    labels: tuple[str, ...]
    """Names of the columns to predict."""
    positive: str | None = None
    """The label that is looked for; None for the rarer of two."""
    drop: Sequence[str] = ()
    """Columns that are left out."""
    task: str | None = None
    """Kind of task; None to guess whether the label is a number to predict or a class."""
    event: str | None = None
    """Column that says whether an event happened at the time in the label column."""
    categorical: Sequence[str] = ()
    """Columns that are categories even if they hold numbers; the label, if its numbers are classes."""
    bins: Sequence[float] = ()
    """Bounds between the classes of a label that is a number."""
    missing_codes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Numbers that stand for missing values, by column."""
    person: str | None = None
    """The column with codes of persons."""


@dataclass(frozen=True)
class _Cells:
    """Cells of one column."""

    name: str
    there: dict[str, list[str]]
    """Texts of the cells that have a value, of each site."""
    missing: float
    """Share of cells without a value."""

    def texts(self) -> list[str]:
        """Texts of all sites' cells that have a value."""
        return [text for texts in self.there.values() for text in texts]

    def canonical(self) -> dict[str, list[str]]:
        """The texts as values of a category are compared."""
        return {site: [canonical(text) for text in texts] for site, texts in self.there.items()}


def draft(folder: Path, label: str, positive: str | None = None, **wishes: Any) -> Draft:
    """Guess the schema of a folder's tables.

    Args:
        folder: one CSV or Parquet file per client; arrays are passed over.
        label: name of the label column, or several names with commas between them.
        positive: the label that is looked for; None for the rarer of two.
        wishes: further fields of `Wishes`: task, event, drop, categorical, bins, missing_codes, person.
    """
    paths, notes = client_paths(folder)
    paths = [path for path in paths if path.suffix.lower() != ".npz"]
    if not paths:
        raise UserError(f"The folder {folder} holds arrays only, which need no schema.")
    written, tables, problems = _read_tables(paths)
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    labels = (label,) if label in names else tuple(one.strip() for one in label.split(","))
    wanted = Wishes(labels, positive, **wishes)
    _check_wishes(wanted)
    if any(abs(code) > MAX_MAGNITUDE for code in (*wanted.bins, *itertools.chain(*wanted.missing_codes.values()))):
        raise UserError(f"Bounds and codes may be up to {MAX_MAGNITUDE:g}, up or down: give smaller ones.")
    drop = [*wanted.drop, *([] if wanted.person is None else [wanted.person])]
    event = [] if wanted.event is None else [wanted.event]
    for name in (*labels, *event, *drop, *wanted.categorical, *wanted.missing_codes):
        if tables and name not in names:
            raise unknown("column", name, names)
    problems += [
        f"The file {table.path} has no column {name!r}, which others have: add it there, or drop it with --drop {name}."
        for table in tables
        for name in names
        if name not in table.columns and name not in drop
    ]
    refuse(str(folder), problems)
    usual = Counter(written.values()).most_common(1)[0][0]
    guesses = {
        name: _Guess(Identifier(), "whom a row is about" if name == wanted.person else "dropped, as you said")
        if name in drop
        else _guess(_cells(name, tables, wanted), wanted)
        for name in names
    }
    _check_features(folder, label, labels, guesses)
    schema = Schema.parse(
        {
            **usual.model_dump(),
            "files": {name: one for name, one in written.items() if one != usual},
            "columns": {name: guess.column for name, guess in guesses.items()},
            "person": wanted.person,
        }
    )
    questions = [*notes, *_odd_formats(schema), *merge({name: guess.questions for name, guess in guesses.items()})]
    return Draft(schema, questions, _text(schema, guesses, folder, len(tables)), len(tables))


def _read_tables(paths: Sequence[Path]) -> tuple[dict[str, Format], list[TextTable], list[str]]:
    """Formats of files by client, the tables that could be read, and sentences on those that could not."""
    written: dict[str, Format] = {}
    tables, problems = [], []
    for path in paths:
        try:
            written[path.stem] = guess_format(path)
            tables.append(read_table(path, written[path.stem]))
        except UserError as error:
            problems.append(str(error))
    return written, tables, problems


def _check_features(folder: Path, label: str, labels: Sequence[str], guesses: Mapping[str, _Guess]) -> None:
    """Refuse tables without a column to learn from; say why each was dropped."""
    if any(isinstance(guess.column, NumberColumn | Category) for guess in guesses.values()):
        return
    dropped = "; ".join(
        f"{name}: {guess.questions[0].text if guess.questions else guess.seen}"
        for name, guess in guesses.items()
        if name not in labels
    )
    raise UserError(
        f"The tables of {folder} have nothing beside the label {label!r} to learn from"
        f"{' (' + quote(dropped) + ')' if dropped else ''}: add a column with numbers or categories."
    )


def _odd_formats(schema: Schema) -> list[str]:
    """Sentences on files that are written in another way than most."""
    return [
        f"{site} is read with {one.delimiter!r} between cells, {one.decimal!r} before decimals and the encoding "
        f"{one.encoding}, unlike most (files.{site}): is that right?"
        for site, one in schema.files.items()
    ]


def _cells(name: str, tables: Sequence[TextTable], wanted: Wishes) -> _Cells:
    """The cells of a column; those with a code that stands for a missing value are missing."""
    texts = {table.path.stem: table.texts(name) for table in tables}
    codes = {f"{code:g}" for code in wanted.missing_codes.get(name, ())}
    there = {
        site: [text for text in mine if text not in MISSING_CELLS and canonical(text.replace(",", ".")) not in codes]
        for site, mine in texts.items()
    }
    total = sum(map(len, texts.values()))
    return _Cells(name, there, (total - sum(map(len, there.values()))) / max(1, total))


def _guess(cells: _Cells, wanted: Wishes) -> _Guess:
    used = (*wanted.labels, wanted.event)
    if cells.name not in used and cells.name not in wanted.categorical and _names_persons(cells):
        seen = f"{len(set(cells.texts()))} different codes, {cells.missing:.1%} missing"
        return _Guess(Identifier(), seen, (_ask_of_persons(cells.name),))
    if cells.name == wanted.event:
        return _event(cells)
    if cells.name in wanted.labels:
        return _outcome(cells, wanted)
    categorical = cells.name in wanted.categorical
    codes = tuple(float(code) for code in wanted.missing_codes.get(cells.name, ()))
    numbers = None if categorical else _numbers(cells.there)
    if numbers is not None:
        return _number(cells, numbers, codes)
    units = None if categorical else find_units(cells.there)
    if units is not None:
        plain = {site: [number_of(text) for text in texts] for site, texts in cells.there.items()}
        small = all(abs(number) <= MAX_MAGNITUDE for mine in plain.values() for number in mine)
        found = _number(cells, plain, codes) if small else _category(cells, categorical)
        if isinstance(found.column, NumberColumn):
            factors = {unit: 1.0 for unit in units if unit}
            column = found.column.model_copy(update={"units": factors})
            return _Guess(column, found.seen, (ask_of_units(units), *found.questions))
    if codes:
        raise UserError(
            f"--missing-code is for numbers, and the column {cells.name!r} is none: name its code in the schema's "
            "missing_cells."
        )
    return _category(cells, categorical)


def _names_persons(cells: _Cells) -> bool:
    """Whether a column seems to say whom a row is about: many codes, some of which come again at one site.

    Whole numbers are taken for codes where the column is called like one; letters with a number, always.
    """
    texts = cells.texts()
    by_name = NAMES_OF_PERSONS.search(cells.name) or NAMES_OF_IDS.search(cells.name)
    lettered = all(CODE.match(text) and not text[0].isdigit() for text in texts)
    if not texts or not (lettered or (by_name and all(CODE.match(text) for text in texts))):
        return False
    different = {site: len(set(mine)) for site, mine in cells.there.items() if mine}
    many = all(MAX_MEAN_ROWS * count >= len(cells.there[site]) for site, count in different.items())
    return many and max(different.values()) >= FEWEST_PERSONS and sum(different.values()) < len(texts)


def _ask_of_persons(name: str) -> ColumnQuestion:
    return ColumnQuestion(
        f"codes that come again: do they say whom a row is about? Then write person = {toml_value(name)} above the "
        f"columns (`sordino data schema` with --person {shlex.quote(name)} does it): all rows of a person are then "
        "protected together. Dropped."
    )


def _numbers(there: Mapping[str, Sequence[str]]) -> dict[str, list[float]] | None:
    """Cells as numbers, with a point or a comma before the decimals; None where that fails, one is too large for a
    range, or there are no cells."""
    try:
        found = {
            site: [float(text.replace(",", ".") if DECIMAL_COMMA.match(text) else text) for text in texts]
            for site, texts in there.items()
        }
    except ValueError:
        return None
    everything = [number for numbers in found.values() for number in numbers]
    return found if everything and all(abs(number) <= MAX_MAGNITUDE for number in everything) else None


LABELS = "the labels that occur were read from the records: are these all that may occur?"


def _check_wishes(wanted: Wishes) -> None:
    """Refuse answers that contradict each other."""
    if wanted.task not in (None, *TASKS):
        raise unknown("task", wanted.task, TASKS)
    classes = wanted.task in (None, Classification.name, SeveralLabels.name)
    if not classes and (wanted.bins or wanted.positive is not None or set(wanted.labels) & set(wanted.categorical)):
        raise UserError(
            f"--bins, --positive and a label among --categorical are for classes, but the task is {wanted.task}: leave "
            "them out."
        )
    if len(set(wanted.labels)) < len(wanted.labels):
        raise UserError(f"--label names a column twice: {', '.join(wanted.labels)}.")
    if len(wanted.labels) > 1 and wanted.task in (Classification.name, Survival.name):
        raise UserError(
            f"--label names {len(wanted.labels)} columns, but --task {wanted.task} predicts one: name one, or take "
            f"{Regression.name} (several numbers) or {SeveralLabels.name} (several labels of two values)."
        )
    if len(wanted.labels) > 1 and wanted.positive is not None:
        raise UserError("--positive is for one label: write `positive` into the schema, below each of several.")
    if (wanted.event is None) == (wanted.task == Survival.name):
        raise UserError(
            "--task survival and --event go together: name the column that says whether the event happened, and with "
            "--label that of the time."
        )
    if wanted.event in wanted.labels:
        raise UserError(f"{wanted.event!r} cannot be both the time and the event: name the time's column with --label.")


def _outcome(cells: _Cells, wanted: Wishes) -> _Guess:
    """The column that is predicted: as the user says, or a number where the label looks like one."""
    if wanted.bins:
        return _binned_label(cells, wanted)
    if wanted.task == Survival.name:
        return _time(cells)
    there = [text for texts in cells.canonical().values() for text in texts]
    guessed = wanted.task is None and looks_continuous(there) and cells.name not in wanted.categorical
    guessed = guessed and wanted.positive is None
    if wanted.task == Regression.name or guessed:
        return _target(cells, wanted, guessed)
    return _label(cells, wanted)


def _target(cells: _Cells, wanted: Wishes, guessed: bool) -> _Guess:
    """A number to predict."""
    codes = tuple(float(code) for code in wanted.missing_codes.get(cells.name, ()))
    everything = _measured(cells)
    low, high = min(everything), max(everything)
    if high - low < 1 / MAX_MAGNITUDE:
        raise UserError(
            f"The column {cells.name!r} has the same value in all records, {low:g}: there is nothing to predict. Name "
            "another with --label."
        )
    asked = [ColumnQuestion(TARGET_RANGE)]
    if guessed:
        bounds = ",".join(f"{bound:g}" for bound in suggest_bins(everything))
        name = shlex.quote(cells.name)
        asked.insert(
            0,
            ColumnQuestion(
                f"a number with {len(set(everything))} different values: it is predicted as one (regression). If a few "
                f"classes are wanted, --bins {bounds} makes them; if its numbers are codes of classes, --categorical "
                f"{name} says so."
            ),
        )
    if cells.missing:
        asked.append(ColumnQuestion(f"{cells.missing:.1%} of the records have none and are dropped."))
    column = Target(
        range=round_outwards(low, high),
        missing="drop" if cells.missing else "refuse",
        missing_codes=codes,
        public=False,
    )
    return _Guess(column, f"{low:g} to {high:g}, {cells.missing:.1%} missing", tuple(asked))


def _measured(cells: _Cells) -> list[float]:
    """Numbers of an outcome's cells."""
    numbers = _numbers(cells.there)
    if numbers is None:
        texts = [text for text in cells.texts() if _numbers({"": [text]}) is None]
        shown = f", for example {quote(texts[0])!r}" if texts else ""
        raise UserError(
            f"The column {cells.name!r} is to be predicted as a number, but {len(texts)} of its cells are none{shown}: "
            "give numbers, name codes of missing values with --missing-code, or name another column with --label."
        )
    return [number for mine in numbers.values() for number in mine]


def _time(cells: _Cells) -> _Guess:
    """The time to an event."""
    everything = _measured(cells)
    if min(everything) < 0:
        raise UserError(
            f"The time {cells.name!r} has negative values, {min(everything):g} for example: times count from a start "
            "at 0."
        )
    asked = [ColumnQuestion(CUTS)]
    if cells.missing:
        asked.append(ColumnQuestion(f"{cells.missing:.1%} of the records have none and are dropped."))
    column = Time(cuts=suggest_cuts(everything), missing="drop" if cells.missing else "refuse", public=False)
    return _Guess(column, f"{min(everything):g} to {max(everything):g}, {cells.missing:.1%} missing", tuple(asked))


def _event(cells: _Cells) -> _Guess:
    """Whether the event happened."""
    texts = [canonical(text) for text in cells.texts()]
    counted = Counter(texts)
    values = sorted_labels(texts)
    if len(values) != 2:
        raise UserError(
            f"The event {cells.name!r} has {len(values)} different values ({', '.join(values[:5])}): it must have two, "
            "one for records last seen at their time and one for those with the event, as 0 and 1."
        )
    asked = []
    if values != ("0", "1"):
        asked.append(
            ColumnQuestion(f"{values[1]!r} is taken for the event, and {values[0]!r} for none: is that right?")
        )
    if cells.missing:
        asked.append(ColumnQuestion(f"{cells.missing:.1%} of the records have none and are dropped."))
    column = Event(values=(values[0], values[1]), missing="drop" if cells.missing else "refuse")
    return _Guess(column, ", ".join(f"{value}: {counted[value]}" for value in values), tuple(asked))


TARGET_RANGE = (
    "the range was read from the records: which values are possible? Others are held to it. Name the unit, too (unit)."
)
CUTS = (
    "the cuts, at which the event is looked at, were read from the records: which ones are of use? Later events count "
    "as none."
)


def _label(cells: _Cells, wanted: Wishes) -> _Guess:
    by_site = cells.canonical()
    there = [text for texts in by_site.values() for text in texts]
    if looks_continuous(there) and cells.name not in wanted.categorical:
        check_class_labels(there, cells.name, f"say so (--categorical {shlex.quote(cells.name)})")
    fold = differ_in_case(there) is not None
    by_site = {site: [canonical(text, fold) for text in texts] for site, texts in by_site.items()}
    aliases, odd = find_spellings(by_site, cells.there)
    counted = Counter(aliases.get(text, text) for texts in by_site.values() for text in texts)
    values = sorted_labels(list(counted))
    asked = [LABELS]
    if fold:
        asked.append("Some differ only in case and are taken as one (fold_case).")
    if cells.missing:
        asked.append(f"{cells.missing:.1%} of the records have none and are dropped.")
    questions = [*_positive_question(wanted, values, counted, fold), ColumnQuestion(" ".join(asked))]
    if cells.name not in wanted.categorical:
        questions += [ColumnQuestion(text) for text in note_numeric_classes(values, cells.name)]
    column = Label(
        values=values or ("none",),
        positive=_positive(wanted, values, counted, fold),
        missing="drop" if cells.missing else "refuse",
        fold_case=fold,
        aliases=aliases,
        public=False,
    )
    seen = ", ".join(f"{value}: {counted[value]}" for value in values[:10])
    return _Guess(column, seen, (*odd, *questions, *ask_of_sites(by_site)))


def _binned_label(cells: _Cells, wanted: Wishes) -> _Guess:
    """A label whose numbers are grouped into classes by bounds that the user gave."""
    numbers = _numbers(cells.there)
    if numbers is None:
        raise UserError(f"--bins groups numbers, but the label {cells.name!r} has other values: leave it out.")
    bins = sorted(set(wanted.bins))
    inner = [f"{low:g} to below {high:g}" for low, high in itertools.pairwise(bins)]
    values = (f"below {bins[0]:g}", *inner, f"{bins[-1]:g} or more")
    everything = [number for mine in numbers.values() for number in mine]
    counted = Counter(values[bisect_right(bins, number)] for number in everything)
    empty = [value for value in values if not counted[value]]
    if empty:
        raise UserError(
            f"No record has the label {empty[0]!r}: the numbers of {cells.name!r} lie between {min(everything):g} and "
            f"{max(everything):g}. Give other bounds with --bins."
        )
    questions = [
        *_positive_question(wanted, values, counted, False),
        ColumnQuestion(
            "a number that is grouped into classes: are its bounds your choice, and not read from the records?"
        ),
    ]
    column = Label(
        values=values,
        positive=_positive(wanted, values, counted, False),
        missing="drop" if cells.missing else "refuse",
        bins=tuple(bins),
        public=False,
    )
    return _Guess(column, ", ".join(f"{value}: {counted[value]}" for value in values), tuple(questions))


def _positive(wanted: Wishes, values: Sequence[str], counted: Mapping[str, int], fold: bool) -> str | None:
    """The label that is looked for: the one that was named, or the rarer of two, or of several labels the second."""
    if wanted.positive is not None:
        if canonical(wanted.positive, fold) not in values:
            raise unknown("label", wanted.positive, values)
        return canonical(wanted.positive, fold)
    if len(values) != 2:
        return None
    # Of several yes/no outcomes the second by its spelling: 1, true, yes or present.
    return values[1] if len(wanted.labels) > 1 else min(reversed(values), key=lambda value: counted[value])


def _positive_question(
    wanted: Wishes, values: Sequence[str], counted: Mapping[str, int], fold: bool
) -> list[ColumnQuestion]:
    """Ask about the label that is looked for, where nobody named it."""
    chosen = _positive(wanted, values, counted, fold)
    if chosen is None or wanted.positive is not None:
        return []
    other = next(value for value in values if value != chosen)
    if len(wanted.labels) > 1:
        return [
            ColumnQuestion(
                f"The one that is looked for (positive) is taken to be {chosen!r}, and not {other!r}: is it?"
            )
        ]
    return [
        ColumnQuestion(
            f"The one that is looked for (positive) is taken to be the rarer of two, {chosen!r}: is it? Recall and AUC "
            f"are those of this one; --positive {shlex.quote(other)} takes the other."
        )
    ]


def _number(cells: _Cells, numbers: Mapping[str, Sequence[float]], codes: tuple[float, ...]) -> _Guess:
    everything = [number for mine in numbers.values() for number in mine]
    low, high, different = min(everything), max(everything), set(everything)
    whole = all(number.is_integer() for number in different)
    seen = f"{low:g} to {high:g}, {cells.missing:.1%} missing"
    if whole and len(different) == len(everything) > 1 and NAMES_OF_IDS.search(cells.name):
        dropped = ColumnQuestion("every record has another number: dropped as an identifier. Is it one?")
        return _Guess(Identifier(), seen, (dropped,))
    if high - low < 1 / MAX_MAGNITUDE:
        return _Guess(Identifier(), seen, (ColumnQuestion("all records have the same value: dropped."),))
    column = NumberColumn(
        range=round_outwards(low, high),
        spread=spread_of(everything),
        missing=_rule(cells.missing),
        missing_codes=codes,
        public=False,
    )
    asked = [*ask_of_codes(cells.name, numbers), *ask_of_scales(numbers)]
    shown = {site: [f"{number:g}" for number in mine] for site, mine in numbers.items()}
    asked += [*ask_of_sites(shown), RANGES]
    if whole and 2 < len(different) <= FEW_CODES:
        asked.append(INTEGER_CODES)
    return _Guess(column, seen, tuple(asked))


def _category(cells: _Cells, wanted: bool) -> _Guess:
    by_site = cells.canonical()
    there = [text for texts in by_site.values() for text in texts]
    different = Counter(there)
    seen = f"{len(different)} different values, {cells.missing:.1%} missing"
    if not there:
        return _Guess(Identifier(), seen, (ColumnQuestion("no record has a value: dropped."),))
    if not wanted and all(DATE.match(text) for text in different):
        asked = "dates: dropped. If they matter, put a number in their place, such as an age or days since a visit."
        return _Guess(Identifier(), seen, (ColumnQuestion(asked),))
    if not wanted and len(different) > MAX_CATEGORIES and len(different) > len(there) / 20:
        asked = "too many different texts for a category: dropped. Is it a name or a text?"
        return _Guess(Identifier(), seen, (ColumnQuestion(asked + _odd_cells(cells.there)),))
    fold = differ_in_case(there) is not None
    by_site = {site: [canonical(text, fold) for text in texts] for site, texts in by_site.items()}
    aliases, odd = find_spellings(by_site, cells.there)
    values = sorted_labels([aliases.get(text, text) for texts in by_site.values() for text in texts])
    column = Category(
        values=values,
        missing="flag" if cells.missing else "refuse",
        fold_case=fold,
        aliases=aliases,
        centred=True,
        public=False,
    )
    case = [ColumnQuestion("some values differ only in case and are taken as one (fold_case).")] if fold else []
    meant = {site: [aliases.get(text, text) for text in texts] for site, texts in by_site.items()}
    return _Guess(column, seen, (*odd, *case, *ask_of_sites(meant), VALUES))


def _odd_cells(there: Mapping[str, Sequence[str]]) -> str:
    """A sentence on the few texts of a column of numbers, with their sites; empty where most cells are texts."""
    texts = {site: [text for text in mine if _numbers({site: [text]}) is None] for site, mine in there.items()}
    odd, total = sum(map(len, texts.values())), sum(map(len, there.values()))
    if not odd or odd > total * FEW_TEXTS:
        return ""
    where = ", ".join(f"{mine[0]!r} at {site}" for site, mine in texts.items() if mine)
    return (
        f" Most cells are numbers, but not all ({where}): if those stand for a missing value, name them in "
        'missing_cells, and give this column kind = "number".'
    )


def _rule(missing: float) -> Literal["refuse", "flag", "centre"]:
    if not missing:
        return "refuse"
    return "flag" if missing >= OFTEN_MISSING else "centre"


def _text(schema: Schema, guesses: dict[str, _Guess], folder: Path, files: int) -> str:
    """The schema as TOML, with comments on what was seen and what the user should check."""
    comments = {name: [guess.seen, *(one.text for one in guess.questions)] for name, guess in guesses.items()}
    head = f"What the columns of {folder.name} are, as {files} files look. Guesses: read them, and correct them."
    return toml(schema, [head, "", *EXPLANATION], comments)


EXPLANATION = (
    "kind: number, category, id (dropped), and for what is predicted label (a class), target (a number), or time and",
    "event. What says public = false was read from the records, and a run",
    "with it says that epsilon does not cover it. Put in what is public, and write public = true.",
    "spread: the ends of a number's range become -spread and spread. With 3 most measurements vary by about 1, which",
    "is learned best from. mean and deviation, where they are public, do it better. centred: the same for categories.",
    "missing: refuse the file (where nothing is said), drop the record, or for numbers the centre of the range, flag",
    "(the centre, and a feature of its own) or a number; for categories flag or one of the values. missing_codes are",
    "numbers that stand for a missing value, units texts behind numbers with the factor for each, aliases other",
    "spellings of values, bins the bounds between classes of a label that is a number, cuts the ends of the intervals",
    "of a time to an event.",
    "Comments tell what was seen in the records: take them out before you give this file to anybody.",
)


def toml(schema: Schema, head: Sequence[str], comments: Mapping[str, Sequence[str]]) -> str:
    """A schema as it is written, with lines of comment before all of it and after the names of columns."""
    lines = [
        *(f"# {_line(text)}".rstrip() for text in head),
        "",
        *_assignments(schema, ("delimiter", "encoding", "decimal")),
        f"missing_cells = {toml_value(list(schema.missing_cells))}",
        *_assignments(schema, [key for key in PERSON_KEYS if getattr(schema, key) is not None]),
    ]
    for name, one in schema.files.items():
        lines += ["", f"[files.{toml_key(name)}]", *_assignments(one, ("delimiter", "encoding", "decimal"))]
    for name, column in schema.columns.items():
        lines += ["", f"[columns.{toml_key(name)}]", *(f"# {_line(text)}" for text in comments.get(name, ()))]
        lines.append(f"kind = {toml_value(column.kind)}")
        given = column.model_dump(mode="json", exclude_none=True, exclude={"kind"}, exclude_defaults=True)
        lines += [f"{key} = {toml_value(value)}" for key, value in given.items()]
    return "\n".join(lines) + "\n"


def _assignments(part: Format, keys: Sequence[str]) -> list[str]:
    return [f"{key} = {toml_value(getattr(part, key))}" for key in keys]


def _line(text: str) -> str:
    """A text on one line, without what a comment must not hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
