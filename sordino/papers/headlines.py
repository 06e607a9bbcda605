"""Headlines: the main numbers that the papers print, beside what Sordino reaches at that epsilon, truly.

`experiments/headlines.toml` describes them: data, clients and figure as in the paper, and the experiment whose epsilon
holds. Training alone stands in each row, because it spends no privacy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

import sordino.version
from sordino.data.sources import SOURCES, catalogue
from sordino.errors import UserError, writing
from sordino.experiment.config import Experiment
from sordino.papers.claims import side
from sordino.papers.description import Keys, Part, folder, read_description
from sordino.papers.sources import source_digests
from sordino.report.wording import epsilon_words, markdown_table
from sordino.store.run_summary import Summary
from sordino.study.run_cells import results_of
from sordino.study.sweep import Cell
from sordino.study.verdict import difference
from sordino.util.display import Display
from sordino.util.files import read_text, write_whole

FILE = "headlines.toml"
KEPT = "headlines.json"
"""File of measured headlines, below `papers` of a store or of the folder of results that comes with Sordino."""
SEEDS = 3
BEGIN, END = "<!-- headlines -->", "<!-- end of headlines -->"
"""Marks in a page between which the headlines stand."""
SHORT_BEGIN, SHORT_END = "<!-- headlines in short -->", "<!-- end of headlines in short -->"
"""Marks in a page between which a table of the measured ones stands."""
HEAD = ("paper", "data", "claimed epsilon", "printed", "Sordino", "true epsilon", "training alone", "")
State = Literal["run", "not run", "changed"]
"""State of a row: measured with the methods as they are, not measured, or measured before a method's code changed."""


class Printed(Part):
    """Number that a paper prints."""

    claimed_epsilon: float | None = None
    """Epsilon that the paper names; None where it names none."""
    published: float
    at: str = ""
    """Column of the paper's table, where one epsilon has several."""
    keys: Keys = Field(default_factory=dict)
    """Keys of our experiment, besides those of its group."""


class HeadlineGroup(Part):
    """Numbers of one paper on one data set."""

    paper: str
    table: str
    """Table or figure in which the numbers are printed."""
    data: str
    setting: str
    """Clients and split, in words."""
    measure: Literal["personal", "global"]
    """Models whose accuracy is printed."""
    keys: Keys
    """Keys of our experiment."""
    alone: Keys
    """Keys of training alone, besides data, clients and split of `keys`."""
    note: str = ""
    """Difference from the paper, in words."""
    numbers: list[Printed] = Field(min_length=1)


class Headlines(Part):
    """All headlines."""

    groups: list[HeadlineGroup] = Field(min_length=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadlineRow:
    """One printed number beside ours."""

    paper: str
    table: str
    data: str
    setting: str
    measure: str
    claimed_epsilon: float | None
    published: float
    ours: float | None = None
    """Mean over seeds in %; None where it was not run."""
    ours_interval: list[float] | None = None
    """95 % interval of the mean."""
    true_epsilon: float | None = None
    """Epsilon of ours against whoever sees sums and models; the largest over seeds."""
    server_epsilon: float | None = None
    """Epsilon of ours against a server that sees single messages."""
    delta: float | None = None
    unit: str | None = None
    alone: float | None = None
    """Training alone: mean over seeds in %, the better of the method `local` and of the models that clients of ours
    train alone, where they mix them with the federation's."""
    alone_interval: list[float] | None = None
    seeds: int = 0
    state: State = "not run"
    why: str = ""
    """Reason why it was not run."""
    note: str = ""
    command: str = ""
    """Command of the first seed of ours."""
    alone_command: str = ""
    runs: list[str] = dataclasses.field(default_factory=list)
    version: str = ""
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    """Digests of the code of the methods that the figures come from."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the row."""
        return dataclasses.asdict(self)

    @property
    def key(self) -> tuple[str, ...]:
        """Description by which a stored row is recognised: printed number and both commands."""
        return (
            self.paper,
            self.table,
            str(self.claimed_epsilon),
            f"{self.published:g}",
            self.command,
            self.alone_command,
        )


@dataclasses.dataclass(frozen=True)
class HeadlineOptions:
    """Options for measuring headlines."""

    store: Path
    seeds: int = SEEDS
    data_dir: Path | None = None
    jobs: int | None = None
    paper: str | None = None
    """Paper to which the rows are limited."""


def read_headlines() -> Headlines:
    """Read the description of all headlines."""
    return read_description(folder() / FILE, Headlines)


def measure(options: HeadlineOptions, display: Display) -> list[HeadlineRow]:
    """Measure all rows whose data are at hand; runs that the store has are taken from there. The others are taken from
    the documents at hand, or are left without figures."""
    here = {entry.name for entry in catalogue(options.data_dir) if entry.present}
    wanted = [(row, ours, alone) for row, ours, alone in _experiments(options)]
    ready = [found for found in wanted if found[1].data in here or found[1].data not in SOURCES]
    cells = {cell.key: cell for _, *both in ready for one in both for cell in _cells(one, options.seeds)}
    made = dict(zip(cells, _run(list(cells.values()), options, display), strict=True))
    rows = {row.key: row for row in stored_rows([options.store], options)}
    for row, ours, alone in ready:
        summaries = [[made[cell.key] for cell in _cells(one, options.seeds)] for one in (ours, alone)]
        rows[row.key] = _filled(row, *summaries)
    return list(rows.values())


def stored_rows(stores: Sequence[Path], options: HeadlineOptions) -> list[HeadlineRow]:
    """Rows of all headlines as documents have them: those that come with Sordino, then those of some stores; the last
    one that has figures counts. Figures of methods whose code has changed since are left out."""
    rows = {row.key: row for row, _, _ in _experiments(options)}
    places = [folder() / "results", *stores]
    for path in [place / "papers" / KEPT for place in places]:
        for found in _read_rows(path):
            if found.key in rows and found.ours is not None:
                rows[found.key] = found if _is_current(found) else _outdated(rows[found.key], found)
    return list(rows.values())


def keep(rows: Sequence[HeadlineRow], place: Path) -> None:
    """Write rows to a folder that `stored_rows` reads; rows of other papers that it has stay."""
    path = place / "papers" / KEPT
    kept = {row.key: row for row in _read_rows(path)} | {row.key: row for row in rows}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"rows": [row.to_dict() for row in kept.values()]}, indent=1) + "\n")


def page(rows: Sequence[HeadlineRow]) -> str:
    """Page of the headlines in Markdown."""
    body = [cells_of(row) for row in rows]
    notes = dict.fromkeys(f"{row.paper}, {row.data}: {row.note}" for row in rows if row.note)
    lead = (
        "Accuracy in %. *Sordino*: mean and 95 % interval over seeds, at the epsilon that the paper names or a smaller "
        "one, which holds for the stated unit at delta 1e-5 against whoever sees sums and models. What the papers' "
        "own mechanisms cost stands in their tables. *Training alone* spends no privacy: where it wins, "
        "federating did not pay."
    )
    commands = ["```", *dict.fromkeys(f"{row.command}" for row in rows if row.state == "run"), "```"]
    return "\n\n".join(
        [
            lead,
            markdown_table(HEAD, body),
            count_words(rows),
            *notes,
            "The first seed of each row; training alone has the same data, clients and network:",
            "\n".join(commands),
        ]
    )


def short_table(rows: Sequence[HeadlineRow]) -> str:
    """Table of the measured headlines in few columns, with a sentence that counts them."""
    measured = [row for row in rows if row.state == "run"]
    body = [
        [
            f"{row.paper}: {row.data}, {row.setting.partition(',')[0]}",
            f"{row.published:g}{', epsilon ' if row.claimed_epsilon is None else ' at '}{claimed_words(row)}",
            f"{_figure(row.ours, None)} at {epsilon_words(row.true_epsilon)}",
            _figure(row.alone, None),
        ]
        for row in measured
    ]
    head = ["", "printed, at the claimed epsilon", "Sordino, at the true epsilon", "training alone"]
    return f"{markdown_table(head, body)}\n\n{count_words(rows)}"


def insert(rows: Sequence[HeadlineRow], written: str) -> str:
    """Insert the headlines, or their table in short, into a page between its marks; a page without marks becomes the
    headlines alone."""
    for first, last, text in ((SHORT_BEGIN, SHORT_END, short_table(rows)), (BEGIN, END, page(rows))):
        before, begin, rest = written.partition(first)
        _, end, after = rest.partition(last)
        if begin and end:
            return f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page(rows) + "\n"


def claimed_words(row: HeadlineRow) -> str:
    """Epsilon that the paper names, in words."""
    return "none named" if row.claimed_epsilon is None else f"{row.claimed_epsilon:g}"


def compare_words(row: HeadlineRow) -> str:
    """Words on ours against the printed number and against training alone."""
    if row.ours is None or row.ours_interval is None or row.alone is None:
        return "made before a method changed: repeat it" if row.state == "changed" else f"not run{_reason(row)}"
    if _is_dearer(row):
        return DEARER
    low, high = row.ours_interval
    printed = "above" if low > row.published else "below" if high < row.published else "level with"
    against = "alone wins" if row.alone > row.ours else ""
    return f"{printed} the paper{'; ' + against if against else ''}"


DEARER = "costs more than the paper names"
"""Words on a row whose epsilon is larger than the one that it is measured for: it is compared with nothing."""


def _is_dearer(row: HeadlineRow) -> bool:
    """Whether ours truly cost more than the epsilon that the paper names."""
    claimed, true = row.claimed_epsilon, row.true_epsilon
    return claimed is not None and (true is None or true > claimed * (1 + 1e-6))


def _reason(row: HeadlineRow) -> str:
    return f": {row.why}" if row.why else ""


def count_words(rows: Sequence[HeadlineRow]) -> str:
    """Sentences that count the rows by how they come out."""
    measured = [row for row in rows if row.state == "run"]
    told = [compare_words(row) for row in measured]
    words = ("above", "below", "level", DEARER)
    above, below, level, dearer = (sum(text.startswith(word) for text in told) for word in words)
    alone = sum("alone wins" in text for text in told)
    more = f", and costs more than the paper names in {dearer}" if dearer else ""
    return (
        f"Of {len(measured)} numbers that were measured, Sordino is above {above}, below {below} and level with "
        f"{level}{more}; training alone wins in {alone}. {len(rows) - len(measured)} were not run."
    )


def cells_of(row: HeadlineRow) -> list[str]:
    """Cells of a row, below `HEAD`."""
    words = f"one {row.unit}" if row.unit else ""
    epsilon = "-" if row.ours is None else f"{epsilon_words(row.true_epsilon)}, {words}"
    return [
        f"{row.paper}, {row.table}",
        f"{row.data}, {row.setting}",
        claimed_words(row),
        f"{row.published:g}",
        _figure(row.ours, row.ours_interval),
        epsilon,
        _figure(row.alone, row.alone_interval),
        compare_words(row),
    ]


def _figure(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ({interval[0]:.1f} to {interval[1]:.1f})" if interval else f"{value:.1f}"


def _experiments(options: HeadlineOptions) -> list[tuple[HeadlineRow, Experiment, Experiment]]:
    """Each row without figures, with the experiments of ours and of training alone."""
    place: Keys = {"store": options.store, "data_dir": options.data_dir}
    found = []
    for group in [one for one in read_headlines().groups if options.paper in (None, one.paper)]:
        for number in group.numbers:
            keys = group.keys | number.keys
            alone = {key: value for key, value in keys.items() if key not in OWN} | group.alone | {"method": "local"}
            row = HeadlineRow(
                paper=group.paper,
                table=group.table,
                data=group.data,
                setting=f"{group.setting}{', ' + number.at if number.at else ''}",
                measure=group.measure,
                claimed_epsilon=number.claimed_epsilon,
                published=number.published,
                why=f"{group.data} is not here",
                note=group.note,
                command=_command(keys),
                alone_command=_command(alone),
            )
            found.append((row, Experiment.make(keys, place), Experiment.make(alone, place)))
    return found


OWN = ("method", "set", "epsilon", "delta", "personal", "rounds", "features", "model")
"""Keys of ours that training alone does not take over: it has its own."""


def _command(keys: Mapping[str, Any]) -> str:
    """Command of the first seed of an experiment."""
    settings = keys.get("set", {})
    known = {key: value for key, value in keys.items() if key != "set"}
    words = [f"--{key.replace('_', '-')} {value}" for key, value in known.items() if key in SPELLED]
    words += [f"--set {key}={value}" for key, value in known.items() if key not in SPELLED]
    words += [f"--set {key}={value}" for key, value in settings.items()]
    return f"sordino run {' '.join(words)} --seed 0"


SPELLED = (
    *("data", "partition", "clients", "features", "model", "method", "personal", "rounds", "epsilon", "delta"),
    *("participation",),
)
"""Keys that are options of their own."""


def _cells(experiment: Experiment, seeds: int) -> list[Cell]:
    return [Cell(experiment.method, {}, experiment.model_copy(update={"seed": seed})) for seed in range(seeds)]


def _run(cells: list[Cell], options: HeadlineOptions, display: Display) -> list[Summary]:
    return results_of(cells, display, options.jobs, cells[0].experiment) if cells else []


def _filled(row: HeadlineRow, ours: Sequence[Summary], alone: Sequence[Summary]) -> HeadlineRow:
    """Row with the figures of its runs."""
    mine, theirs = _percent(ours, row.measure), _trained_alone(ours, alone)
    known = [one.epsilon["outsider"] for one in ours]
    server = [one.epsilon["server"] for one in ours]
    return dataclasses.replace(
        row,
        ours=sum(mine) / len(mine),
        ours_interval=_interval(mine),
        true_epsilon=_largest(known),
        server_epsilon=_largest(server),
        delta=max(one.delta for one in ours),
        unit=str(ours[0].unit),
        alone=sum(theirs) / len(theirs),
        alone_interval=_interval(theirs),
        seeds=len(mine),
        state="run",
        why="",
        runs=[one.run for one in (*ours, *alone)],
        version=sordino.version.VERSION,
        sources=source_digests({one.method for one in (*ours, *alone)}),
    )


def _trained_alone(ours: Sequence[Summary], alone: Sequence[Summary]) -> list[float]:
    """Accuracy of training alone for each seed: the better of two ways."""
    ways = [_percent(alone, "personal")]
    mixed = [one.mixture.accuracy["local"] for one in ours if one.mixture is not None]
    known = [100 * value for value in mixed if value is not None]
    if len(known) == len(ours):
        ways.append(known)
    return max(ways, key=sum)


def _percent(summaries: Sequence[Summary], measure: str) -> list[float]:
    found = [one.accuracy[measure] for one in summaries]  # type: ignore[literal-required]
    if any(value is None for value in found):
        raise UserError(f"A run has no {measure} accuracy: no client has records to test models on.")
    return [100 * value for value in found if value is not None]


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _interval(values: Sequence[float]) -> list[float] | None:
    """Student's 95 % interval of a mean over seeds, held to 0 and 100 %."""
    if len(values) < 2:
        return None
    found = difference(side("", "", values), side("", "", [0.0] * len(values)))
    assert found.low is not None
    assert found.high is not None
    return [max(0.0, found.low), min(100.0, found.high)]


def _read_rows(path: Path) -> list[HeadlineRow]:
    if not path.is_file():
        return []
    try:
        return [HeadlineRow(**row) for row in json.loads(read_text(path))["rows"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: delete it and run `sordino reproduce --headlines`.") from error


def _is_current(row: HeadlineRow) -> bool:
    return bool(row.sources) and row.sources == source_digests(row.sources)


def _outdated(row: HeadlineRow, found: HeadlineRow) -> HeadlineRow:
    """Row without the figures of code that has changed, unless another document has better ones."""
    return row if row.ours is not None else dataclasses.replace(row, state="changed", why="", version=found.version)
