"""Small heads on frozen features beside LeNet on pixels: `experiments/heads.md` says how to run it.

python experiments/heads.py run [PART/PARTS]
python experiments/heads.py write

Data sets lie where `sordino data` finds them ($SORDINO_DATA). `experiments/results/heads` keeps a line for each try
(`tries.jsonl`) and for each cell (`cells.jsonl`) as soon as it is finished, so that `run` can be stopped and started
again, and so that several processes can share the work, each with a part of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import sordino
from sordino.data.sources import missing_files, places, source

PAGE = Path(__file__).with_suffix(".md")
RESULTS = PAGE.parent / "results" / "heads"
TRIES, CELLS = RESULTS / "tries.jsonl", RESULTS / "cells.jsonl"
SEEDS = (1, 2, 3)
"""Seeds that are reported."""
TUNING_SEED = 100
Epsilons = tuple[float | None, ...]
EPSILONS: Epsilons = (8.0, 2.0, 1.0, None)
"""Budgets; None is without privacy."""
SIDES = ("head", "LeNet")
Settings = dict[str, Any]

SUMS: Settings = {"rounds": 100, "sampling": 0.05}


def grid(level: str, side: str, epsilon: float | None) -> list[Settings]:
    """Tries of a side at a level and budget, beside the defaults of its method: three for each."""
    if level == "client" and epsilon is None:  # nothing limits the number of rounds, and no update is scaled
        few, steps = (60, {}) if side == "head" else (30, {"epochs": 1, "batch": 4})
        return [{"rounds": times * few, **steps} for times in (1, 2, 4)]
    if level == "client" and side == "head":
        return [{"clip": clip} for clip in (15.0, 30.0, 60.0)]
    if level == "client":  # thirty passes, in as many rounds as the budget can fill
        rounds, clips = (30, (2.0, 4.0, 8.0)) if epsilon == 8 else (10, (1.0, 2.0, 4.0))
        steps = {"epochs": 30 // rounds, "batch": 4}
        return [{"rounds": rounds, **steps, "clipping": "normalised", "clip": clip} for clip in clips]
    if side == "head":
        return [{"walk": walk} for walk in (0.15, 0.3, 0.6)]
    return [
        SUMS,
        {**SUMS, "clip": 0.5, "served": "last", "server": "momentum", "server.rate": 0.3, "server.beta": 0.9},
        {**SUMS, "clipping": "normalised", "served": "last", "server": "adam", "server.rate": 0.005},
    ]


TUNED_AT: dict[str, Epsilons] = {"client": (8.0, 2.0, None), "record": (1.0,)}
"""Budgets of the tries. Every other budget takes the choice of the next smaller of them, or of the smallest."""


@dataclass(frozen=True)
class Bench:
    """Data that are dealt to clients, at one level."""

    data: str
    level: str
    clients: int | None = None
    records: int | None = None
    partition: str | None = None
    tuned_as: str | None = None
    """Bench whose choice is taken over."""
    keeps: tuple[str, ...] = ()
    """Sides whose clients predict with the shared model alone, because blending would take too long."""

    @property
    def keys(self) -> Settings:
        """Keys of the experiment, without those of a side."""
        dealt = {"clients": self.clients, "records": self.records, "partition": self.partition}
        method = "dp-fedavg" if self.level == "client" else "dp-fedsgd"
        return {"data": self.data, "method": method, "delta": 1e-5} | {key: one for key, one in dealt.items() if one}

    @property
    def features(self) -> str:
        """Scattering, projected to 128 numbers by public images that are not the clients'; CIFAR-10 has none here, and
        is projected by random numbers."""
        return "scattering:width=128" + (",public=mnist" if self.data == "fashion-mnist" else "")


def clients(data: str) -> Bench:
    """300 clients with 20 images each and skewed labels."""
    return Bench(data, "client", 300, 6000, partition="dirichlet:0.5,min=10")


def silos(data: str, number: int, records: int | None = None, keeps: tuple[str, ...] = ()) -> Bench:
    """Some silos with equal shares of the images; the choice made in 10 silos serves in 20."""
    tuned_as = None if number == 10 else f"{data} in 10 silos"
    return Bench(data, "record", number, records, partition="iid", tuned_as=tuned_as, keeps=keeps)


WRITERS = "femnist, 296 writers"
BENCHES = {
    WRITERS: Bench("femnist", "client", keeps=("LeNet",)),
    **{f"{data}, 300 clients": clients(data) for data in ("fashion-mnist", "mnist", "cifar10")},
    **{f"femnist in {number} silos": silos("femnist", number, keeps=SIDES) for number in (10, 20)},
    **{
        f"{data} in {number} silos": silos(data, number, 6000)
        for data in ("fashion-mnist", "mnist", "cifar10")
        for number in (10, 20)
    },
}
ORDER = [(bench, side) for bench in BENCHES for side in SIDES]


def budgets(bench: str) -> Epsilons:
    """Budgets of a bench. Without privacy, 20 silos with equal shares train the model of 10."""
    return tuple(one for one in EPSILONS if one is not None or not bench.endswith("in 20 silos"))


@dataclass(frozen=True)
class Cell:
    """One run: a side on a bench at a budget, with the settings of a seed."""

    bench: str
    side: str
    epsilon: float | None
    seed: int
    settings: Settings = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name by which a finished cell is known."""
        settings = json.dumps(self.settings, sort_keys=True)
        return f"{self.bench} | {self.side} | {self.epsilon} | {self.seed} | {settings}"

    def run(self, folder: Path | None, personal: str) -> dict[str, Any]:
        """Run the cell on the data sets in `folder`, by default where they usually lie, and return its line."""
        bench, settings = BENCHES[self.bench], dict(self.settings)
        keys = bench.keys | ({"features": bench.features} if self.side == "head" else {"model": "lenet"})
        keys |= {"privacy": "none"} if self.epsilon is None else {"epsilon": self.epsilon}
        keys |= {"rounds": settings.pop("rounds")} if "rounds" in settings else {}
        keys |= {"seed": self.seed, "personal": personal, "set": settings, "data_dir": folder}
        keys |= {"workers": 1, "evaluate_every": 1_000_000}
        if bench.level == "client" and self.side == "LeNet":
            keys["engine"] = "stacked"  # twice as fast as one by one, for batches as small as these
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as store:
            found = sordino.run(**keys, store=store)
        figures, tenth = {"global": found["accuracy"]["global"]}, {"global": found["fairness"]["worst_tenth"]}
        if personal == "blend":
            accuracy, tenths = found["blend"]["accuracy"], found["blend"]["worst_tenth"]
            figures |= {"alone": accuracy["local"], "blend": accuracy["blend"]}
            tenth = {"alone": tenths["local"], "global": tenths["global"], "blend": tenths["blend"]}
        line: dict[str, Any] = {"bench": self.bench, "side": self.side, "epsilon": self.epsilon, "seed": self.seed}
        line |= {"settings": self.settings, "parameters": found["parameters"], "clients": found["clients"]}
        return {"key": self.key, **line, **figures, "tenth": tenth, "seconds": time.monotonic() - begin}


def lines(path: Path) -> list[dict[str, Any]]:
    """Finished lines of a file; one that was cut off is left out."""
    found = []
    for one in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(one))
    return found


def work(cells: list[Cell], made: Path, tuning: bool) -> None:
    """Run the tries or cells that have no line yet, and add a line for each as soon as it is finished.

    Args:
        cells: cells, or tries.
        made: folder in which data sets for tuning are made.
        tuning: whether they are tries.
    """
    path = TRIES if tuning else CELLS
    known = {one["key"] for one in lines(path)}
    for cell in cells:
        if cell.key in known:
            continue
        bench = BENCHES[cell.bench]
        personal = "own" if tuning or cell.side in bench.keeps else "blend"
        line = cell.run(tuning_folder(made) if tuning else None, personal)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        told = " ".join(f"{name} {100 * line[name]:.1f}" for name in ("alone", "global", "blend") if name in line)
        print(f"{cell.key}: {told}; {line['seconds']:.0f} s", flush=True)


def tuning_folder(made: Path) -> Path:
    """Make the data sets for tuning in the folder `made`, once, and return it.

    Their test records are such that no reported figure is measured on. FEMNIST: the training records, a fifth of each
    writer's held out in the place of the published test split. Others: the images of the published test split, which
    reported runs do not use, in the place of the training split.
    """
    for data in dict.fromkeys(one.data for one in BENCHES.values()):
        place = made / data
        if not place.exists():
            known = source(data)
            published = next(one for one in places(data, None) if not missing_files(known, one)).resolve()
            place.mkdir()
            {"femnist": _hold_out, "cifar10": _cut}.get(data, _exchange)(published, place)
    return made


def _hold_out(published: Path, place: Path) -> None:
    """Write FEMNIST's training records with a fifth of each writer's as its test records."""
    arrays = dict(np.load(published / "femnist.npz"))
    kept, random = ~arrays["is_test"].astype(bool), np.random.default_rng(TUNING_SEED)
    held_out = np.zeros_like(kept)
    for writer in range(len(arrays["writer_ids"])):
        mine = random.permutation(np.flatnonzero((arrays["writer"] == writer) & kept))
        held_out[mine[: len(mine) // 5]] = True
    arrays["is_test"] = held_out
    chosen = {name: arrays[name][kept] for name in ("X", "y", "writer", "is_test")}
    np.savez(place / "femnist.npz", **{**arrays, **chosen})


def _cut(published: Path, place: Path) -> None:
    contents = (published / "test_batch.bin").read_bytes()
    length = len(contents) // 5
    for number in range(5):
        (place / f"data_batch_{number + 1}.bin").write_bytes(contents[number * length : (number + 1) * length])
    (place / "test_batch.bin").write_bytes(contents[:length])


def _exchange(published: Path, place: Path) -> None:
    for path in sorted(published.glob("t10k-*")):
        os.symlink(path, place / path.name)
        os.symlink(path, place / path.name.replace("t10k", "train"))


def tuned_at(bench: str, epsilon: float | None) -> tuple[str, float | None]:
    """Bench and budget whose tries choose the settings of a bench at a budget."""
    name, there = BENCHES[bench].tuned_as or bench, TUNED_AT[BENCHES[bench].level]
    budgets_tried = [one for one in there if one is not None]
    smaller = [one for one in budgets_tried if epsilon is None or one <= epsilon]
    return name, epsilon if epsilon in there else max(smaller, default=min(budgets_tried))


def tries(bench: str, side: str) -> list[Cell]:
    """Tries that choose the settings of a bench and side."""
    needed = dict.fromkeys(tuned_at(bench, one) for one in budgets(bench))
    return [
        Cell(name, side, budget, TUNING_SEED, settings)
        for name, budget in needed
        for settings in grid(BENCHES[name].level, side, budget)
    ]


def choices() -> dict[tuple[str, str, float | None], Settings]:
    """By bench, side and budget of the tries, the settings with the best shared model, where all were tried."""
    found: dict[tuple[str, str, float | None], list[dict[str, Any]]] = {}
    for one in lines(TRIES):
        if one["settings"] in grid(BENCHES[one["bench"]].level, one["side"], one["epsilon"]):
            found.setdefault((one["bench"], one["side"], one["epsilon"]), []).append(one)
    return {
        which: max(made, key=lambda one: float(one["global"]))["settings"]
        for which, made in found.items()
        if len(made) == len(grid(BENCHES[which[0]].level, which[1], which[2]))
    }


def cells(bench: str, side: str) -> list[Cell]:
    """Cells of a bench and side, whose tries are finished."""
    chosen = choices()
    settings = {one: chosen[tuned_at(bench, one)[0], side, tuned_at(bench, one)[1]] for one in budgets(bench)}
    return [Cell(bench, side, one, seed, settings[one]) for one in budgets(bench) for seed in SEEDS]


def run(part: str = "1/1") -> None:
    """Make the tries and run the cells of one bench and side after the other.

    Args:
        part: "2/3" for the second of three processes: benches of one kind of data and a side belong to one of them.
    """
    mine, parts = map(int, part.split("/"))
    kinds = list(dict.fromkeys((BENCHES[bench].tuned_as or bench, side) for bench, side in ORDER))
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        for bench, side in ORDER:
            if kinds.index((BENCHES[bench].tuned_as or bench, side)) % parts == mine - 1:
                work(tries(bench, side), Path(made), tuning=True)
                work(cells(bench, side), Path(made), tuning=False)


def write() -> None:
    """Write the tables of finished cells and tries into the page."""
    text = PAGE.read_text()
    for name, table in (("cells", cell_table()), ("tries", try_table())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(text)


def cell_table() -> str:
    """Table of finished cells, means and spread over seeds, and the list of what was not run."""
    rows = ["| data | side | epsilon | seeds | alone | global | blend |", "|---|---|---|---|---|---|---|"]
    found: dict[tuple[str, str, float | None], list[dict[str, Any]]] = {}
    chosen = choices()
    for one in lines(CELLS):
        name, at = tuned_at(one["bench"], one["epsilon"])
        if chosen.get((name, one["side"], at)) == one["settings"]:
            found.setdefault((one["bench"], one["side"], one["epsilon"]), []).append(one)
    left: dict[tuple[str, str], list[str]] = {}
    for bench in BENCHES:
        for epsilon in budgets(bench):
            for side in SIDES:
                made = found.get((bench, side, epsilon), [])
                budget = "none" if epsilon is None else f"{epsilon:g}"
                if made:
                    figures = " | ".join(_figures(made, name) for name in ("alone", "global", "blend"))
                    rows.append(f"| {bench} | {side} | {budget} | {len(made)} | {figures} |")
                else:
                    left.setdefault((bench, side), []).append(budget)
    told = [
        f"- {bench}, {side}" + ("" if len(missing) == len(budgets(bench)) else f": epsilon {', '.join(missing)}")
        for (bench, side), missing in left.items()
    ]
    return "\n".join([*rows, "", "Not run:" if told else "Everything was run.", "", *told, ""])


def _figures(made: list[dict[str, Any]], name: str) -> str:
    """Mean and standard deviation over seeds in %, in brackets the mean of the worst tenth of the clients."""
    if name not in made[0]:
        return "-"
    values = [100 * one[name] for one in made]
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{spread} ({100 * np.mean([one['tenth'][name] for one in made]):.1f})"


def try_table() -> str:
    """Table of the tries and their accuracies, in the order of the benches."""
    rows = ["| data | side | epsilon | shared model's accuracy: settings |", "|---|---|---|---|"]
    chosen = choices()
    for bench, side in ORDER:
        for budget in TUNED_AT[BENCHES[bench].level]:
            mine = [one for one in lines(TRIES) if (one["bench"], one["side"]) == (bench, side)]
            tried = [
                one
                for one in mine
                if one["epsilon"] == budget and one["settings"] in grid(BENCHES[bench].level, side, budget)
            ]
            if tried:
                told = "; ".join(_describe_try(one, chosen.get((bench, side, budget))) for one in tried)
                rows.append(f"| {bench} | {side} | {'none' if budget is None else f'{budget:g}'} | {told} |")
    return "\n".join([*rows, ""])


def _describe_try(one: dict[str, Any], chosen: Settings | None) -> str:
    """A try's accuracy and settings, in bold where they were taken."""
    text = f"{100 * one['global']:.1f}: {', '.join(f'{key}={value}' for key, value in one['settings'].items())}"
    return f"**{text}**" if one["settings"] == chosen else text


if __name__ == "__main__":
    {"run": run, "write": write}[sys.argv[1]](*sys.argv[2:])
