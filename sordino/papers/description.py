"""Description of a paper's table or figure: rows, columns, printed numbers, and its setting at each scale.

Each paper has a folder with one TOML file for each table and figure, and `paper.toml` with what they share: settings as
published, and what a smaller scale changes in them.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sordino.errors import UserError, quoted, unknown
from sordino.util.toml import read_toml

Scale = Literal["quick", "small", "medium", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Measure = Literal["personal", "global", "start", "loss", "rounds", "seconds", "personal-share"]
"""Figure that a table prints: an accuracy in %, a loss, rounds to a target accuracy, seconds a round, or the percentage
of parameters that stay personal (`personal_share`)."""
Variant = Literal["sound", "paper"]
ABOUT = "paper.toml"
Keys = dict[str, Any]
Description = TypeVar("Description", bound="Part")


class Part(BaseModel):
    """Part of a description: keys that it does not have are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class At(Part):
    """A setting at one scale."""

    keys: Keys = {}
    """Keys of an experiment; at a smaller scale, those that differ from the published setting."""
    departs: str = ""
    """Differences from the paper, in words for the page."""
    like: str = ""
    """Another setting of the paper whose keys at this scale come first."""


class Setting(Part):
    """One of a paper's settings: data, network, clients, training."""

    paper: At
    medium: At | None = None
    """For tables that have a decisive experiment on this setting."""
    small: At
    quick: At

    def at(self, scale: Scale) -> At:
        """Changes of a scale."""
        found: At | None = getattr(self, scale)
        return At() if found is None else found


class Paper(Part):
    """Description of a paper: what its tables share."""

    name: str = ""
    place: Path = Path()
    """Folder of its files."""
    title: str
    citation: str
    main: str
    """Table that its claim rests on."""
    view: Literal["outsider", "server"] = "outsider"
    """Observer whose true epsilon is shown."""
    epsilon_note: str = ""
    """Sentence on the true epsilon of its mechanism as published."""
    grid: str = ""
    """Grid of `--tune paper`, the same for every method."""
    own: dict[str, str] = {}
    """Grids for methods' own settings, with as many points as the others get."""
    settings: dict[str, Setting]
    tables: dict[str, PaperTable] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for setting in self.settings.values():
            for scale in SCALES:
                like = setting.at(scale).like
                _check_known("setting", [like] if like else None, list(self.settings))
                if like and self.settings[like].at(scale).like:
                    raise ValueError(f"the setting {like!r}, which another is like, is itself like another")
        return self

    def sources(self, setting: str, scale: Scale) -> list[Keys]:
        """Keys of a setting at a scale, later ones winning: the published ones, then the differences."""
        chosen = self.settings[setting]
        scales: list[Scale] = ["paper"] if scale == "paper" else ["paper", scale]
        return [
            keys
            for one in scales
            for keys in (
                self.settings[chosen.at(one).like].at(one).keys if chosen.at(one).like else {},
                chosen.at(one).keys,
            )
        ]

    def departs(self, setting: str, scale: Scale) -> str:
        """Differences from the paper in a setting at a scale, in words."""
        at = self.settings[setting].at(scale)
        return at.departs or (self.settings[at.like].at(scale).departs if at.like else "")


class PaperColumn(Part):
    """Column of a table: a point of the setting, and the noise that the paper had there."""

    name: str
    setting: str = ""
    """Name of the paper's setting; the table's by default."""
    at: Keys = {}
    """Keys of an experiment that make this column."""
    as_published: Keys = {}
    """Keys that replace them where the method runs as published: the published noise."""
    unpublished: str = ""
    """Why it cannot be run as published, if it cannot."""
    measure: Measure | None = None
    """Figure that this column prints, if it is not that of the table."""
    round: int | None = Field(default=None, ge=1)
    """Round after which the figure is taken, if not the last; a share of the rounds at smaller scales."""
    nominal: str = ""
    """Epsilon that the paper names."""
    target: float | None = None
    """Accuracy in % to be reached, where rounds are counted."""
    ours: str = ""
    """Name of the row that the paper proposes here, if it is not the same in all columns."""

    def keys(self, variant: Variant) -> Keys:
        """Keys that make this column; the published noise takes the place of a budget."""
        if variant == "sound":
            return self.at
        noise = {"epsilon", "noise_multiplier"}
        replaced = noise if noise & set(self.as_published) else set()
        return {key: value for key, value in self.at.items() if key not in replaced} | self.as_published


class PaperRow(Part):
    """Row of a table: a method with its settings."""

    name: str
    method: str
    """As `compare` takes it: a name, or `name[key=value,...]`."""
    times_epochs: float = Field(default=1, gt=0)
    """Factor on the setting's epochs, of which there is at least one: a fair rival passes over the records as often as
    the method that it meets."""
    published: dict[str, float] = {}
    """Printed numbers by column."""
    unpublished: str = ""
    """Why it cannot be run as published, if it cannot."""
    ours: bool = False
    """Whether the paper proposes it."""
    added: bool = False
    """Whether it is not in the paper's table: then no claim is made against it."""
    scales: list[Scale] = list(SCALES)
    """Scales that run it."""
    settings: dict[Scale, dict[str, str]] = {}
    """Settings of the method at some scales, besides those of `method`, as `compare` takes them."""
    published_settings: dict[str, dict[str, str]] = {}
    """Settings of the method in columns of some of the paper's settings, at the published scale, whose networks these
    fit."""


class FormulaNumber(Part):
    """A printed number that follows from a formula, and must come out the same here."""

    name: str
    formula: str
    given: dict[str, float]
    published: float
    digits: int = 2
    """Number of decimals that the paper prints."""
    note: str = ""


class Selection(Part):
    """Part of a table that a scale runs."""

    columns: list[str] | None = None
    rows: list[str] | None = None


class Decisive(Selection):
    """Part of a table that the scale `medium` runs, where the paper's mechanism can show, in hours on two cores."""

    grid: str
    """Grid that every row is tuned on in each column, in the place of the paper's: the same tries for all, and no
    settings of single methods, where the paper compares something else."""
    seeds: int = Field(ge=3)
    """Number of reported seeds."""
    seconds: float = Field(gt=0)
    """Seconds of one core that a run of the table takes on average, as measured."""
    note: str = ""
    """Departures of the experiment from what the table prints, in words."""
    claim: str = ""
    """Claim of the paper that the experiment tests, where it is not that of the table."""


class PaperTable(Part):
    """One table or figure."""

    name: str = ""
    title: str
    claim: str
    """Claim that the paper makes with the table."""
    setting: str
    measure: Measure = "personal"
    curves: bool = False
    """Whether the picture shows what is measured over the rounds; else it shows the table."""
    reference: str = ""
    """Row to whose figure the others are a ratio, where seconds are measured."""
    headline: str = ""
    """Column by which the claim is told in one line; the first by default."""
    published_note: str = ""
    """Note on the printed numbers: read off a picture, or missing."""
    columns: list[PaperColumn] = Field(min_length=1)
    rows: list[PaperRow] = Field(min_length=1)
    figures: list[FormulaNumber] = []
    quick: Selection = Selection()
    small: Selection = Selection()
    medium: Decisive | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, found in (("row", self.rows), ("column", self.columns)):
            names = [one.name for one in found]
            if len(set(names)) < len(names):
                raise ValueError(f"a {what} has the name of another")
        for row in self.rows:
            _check_known("column", list(row.published), [one.name for one in self.columns])
        for column in self.columns:
            if self.measured(column) == "rounds" and column.target is None:
                raise ValueError(f"the column {column.name!r} counts rounds to a target, and has no `target`")
            _check_known("row", [column.ours] if column.ours else None, [row.name for row in self.rows])
        if self.measure == "seconds" and self.reference not in [row.name for row in self.rows]:
            raise ValueError("seconds are ratios to those of a row: `reference` must name one")
        for scale in (self.quick, self.small, *([self.medium] if self.medium else [])):
            _check_known("column", scale.columns, [one.name for one in self.columns])
            _check_known("row", scale.rows, [one.name for one in self.rows])
        _check_known("column", [self.headline] if self.headline else None, [one.name for one in self.columns])
        return self

    def taken(self, scale: Scale) -> tuple[list[PaperRow], list[PaperColumn]]:
        """Rows and columns that a scale runs."""
        chosen = Selection() if scale == "paper" else self._selection(scale)
        known = [row for row in self.rows if scale in row.scales]
        rows = [row for row in known if chosen.rows is None or row.name in chosen.rows]
        return rows, [one for one in self.columns if chosen.columns is None or one.name in chosen.columns]

    def claim_at(self, scale: Scale) -> str:
        """Claim that is tested at a scale."""
        return (self.medium.claim if scale == "medium" and self.medium is not None else "") or self.claim

    def decisive(self) -> Decisive:
        """The experiment of the scale `medium`; a table without one is refused."""
        if self.medium is None:
            raise UserError(
                f"{self.name} has no decisive experiment: `--scale medium` is for the main table of each paper "
                "(`sordino reproduce --list` names it); take another scale here."
            )
        return self.medium

    def _selection(self, scale: Scale) -> Selection:
        found: Selection = self.decisive() if scale == "medium" else getattr(self, scale)
        return found

    def printed(self, row: PaperRow, column: PaperColumn) -> float | None:
        """Number that the paper prints."""
        return row.published.get(column.name)

    def proposes(self, row: PaperRow, column: PaperColumn) -> bool:
        """Whether a row is what the paper proposes, as a column shows it."""
        return row.name == column.ours if column.ours else row.ours

    def measured(self, column: PaperColumn) -> Measure:
        """Figure that is measured in a column."""
        return column.measure or self.measure

    def setting_of(self, column: PaperColumn) -> str:
        """The name of a column's setting."""
        return column.setting or self.setting


Paper.model_rebuild()


def _check_known(what: str, names: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in names or ():
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}")


def folder() -> Path:
    """Folder of the papers' files: beside the package, or where it was installed."""
    beside = Path(__file__).resolve().parents[2] / "experiments"
    installed = Path(sysconfig.get_path("data")) / "share" / "sordino" / "experiments"
    found = next((place for place in (beside, installed) if any(place.glob(f"*/{ABOUT}"))), None)
    if found is None:
        raise UserError(f"The papers' files are missing: they belong in {installed}; install Sordino again.")
    return found


def papers(place: Path | None = None) -> dict[str, Paper]:
    """All papers by name."""
    place = place or folder()
    return {found.parent.name: read_paper(found.parent) for found in sorted(place.glob(f"*/{ABOUT}"))}


def read_paper(place: Path) -> Paper:
    """Read a paper's description, with all its tables."""
    about = Paper(**{**_read(place / ABOUT, Paper), "name": place.name, "place": place})
    tables: dict[str, PaperTable] = {}
    for path in sorted(place.glob("*.toml"), key=_in_order):
        if path.name != ABOUT:
            table = tables[path.stem] = PaperTable(**{**_read(path, PaperTable), "name": path.stem})
            for column in table.columns:
                if table.setting_of(column) not in about.settings:
                    missing = unknown("setting", table.setting_of(column), about.settings)
                    raise UserError(f"{path}, column {column.name!r}: {missing}")
            for column in table.taken("medium")[1] if table.medium else ():
                setting = table.setting_of(column)
                if about.settings[setting].medium is None:
                    raise UserError(f"{path}, column {column.name!r}: the setting {setting!r} has no scale `medium`.")
    if about.main not in tables:
        raise UserError(f"{place / ABOUT}: {unknown('table', about.main, tables)}")
    return about.model_copy(update={"tables": tables})


def _in_order(path: Path) -> tuple[str, int]:
    """Sort tables before figures before others, by their numbers."""
    kind, _, number = path.stem.partition("-")
    order = {"table": "0", "figure": "1"}.get(kind, "2")
    return order + (path.stem if order == "2" else ""), int(number) if number.isdigit() else 0


def read_description(path: Path, kind: type[Description]) -> Description:
    """Read and check a file of descriptions; a mistake becomes one sentence."""
    return kind(**_read(path, kind))


def _read(path: Path, kind: type[Part]) -> Keys:
    """Read and check a file; a mistake becomes one sentence."""
    try:
        values = read_toml(path)
        kind(**values)
    except OSError as error:
        raise UserError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise UserError(f"{path}: {_problem(error)}.") from error
    except ValueError as error:
        raise UserError(f"The file {path} is not valid TOML: {error}.") from error
    return values


def _problem(error: ValidationError) -> str:
    """Sentence on the first problem; an unknown key comes before a missing one."""
    problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"there is no key {where!r}"
    said = problem["msg"].removeprefix("Value error, ")
    return f"{where + ': ' if where else ''}{said[:1].lower() + said[1:]}"


def find(name: str, table: str | None = None) -> tuple[Paper, list[PaperTable]]:
    """Find a paper and one of its tables, or all of them."""
    known = papers()
    if name not in known:
        raise unknown("paper", name, known)
    paper = known[name]
    if table is None:
        return paper, list(paper.tables.values())
    if table not in paper.tables:
        raise unknown(f"table or figure of {name} called", table, paper.tables)
    return paper, [paper.tables[table]]


def scale_of(scale: str) -> Scale:
    """Check the name of a scale."""
    if scale not in SCALES:
        raise UserError(f"Unknown scale {quoted(scale)}: choose quick, small, medium or paper.")
    return scale  # type: ignore[return-value]
