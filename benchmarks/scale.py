"""How time and memory grow: with the number of clients, of rounds, and of parameters.

    make bench-scale                              # about five minutes on two cores
    python benchmarks/scale.py --only clients     # the picture keeps what was found before of the others

Each point is a run of the program in a process of its own, on generated data. Time is the median over rounds, from the
end of one to the end of the next. Memory is the peak of the main process and its workers together, pages that they
share counted once, read several times a second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from measuring import machine
from workloads import W3, Workload

STUDIES: dict[str, list[int]] = {
    "clients": [100, 1_000, 10_000, 100_000],
    "rounds": [100, 1_000, 10_000],
    "parameters": [10_000, 100_000, 1_000_000, 10_000_000],
}
ABOUT = {
    "clients": "W3's shapes, 100 clients a round",
    "rounds": "W3: 1,000 clients, 100 a round",
    "parameters": "10 of 100 clients a round, MLP 64-h-10",
}


def workload(study: str, size: int) -> Workload:
    """What is run at one point of a study."""
    if study == "clients":
        return replace(W3, clients=size, rounds=100)
    if study == "rounds":
        return replace(W3, rounds=size)
    hidden = round((size - 10) / 75)  # 64 h + h weights and biases, then 10 h + 10
    rounds = 100 if size < 10**6 else 10
    return replace(W3, clients=100, cohort=10, rounds=rounds, options={"hidden": hidden})


def run_point(study: str, size: int) -> dict[str, Any]:
    """Run one point in this process and say what it took."""
    from sordino.experiment.config import Experiment
    from sordino.experiment.prepare import prepare
    from sordino.experiment.run import start
    from sordino.federation.rounds import RoundWatch

    chosen = workload(study, size)
    data = chosen.data()
    held = sum(tensor.nbytes for tensor in (data.train.x, data.train.y))
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Peak() as peak:
        experiment = Experiment.make(chosen.keys() | {"rounds": chosen.rounds + 2, "store": Path(folder)})
        result = start(prepare(experiment, data), watch=RoundWatch(lambda _: stamps.append(time.perf_counter())))
        disk = sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*") if file.is_file())
    spans = [after - before for before, after in itertools.pairwise(stamps[:-1])]
    tenth = max(1, len(spans) // 10)
    return {
        "size": size,
        "rounds": chosen.rounds,
        "parameters": result.parameters,
        "milliseconds": 1e3 * statistics.median(spans),
        "last_tenth": 1e3 * statistics.median(spans[-tenth:]),
        "data_mib": held / 2**20,
        "peak_mib": peak.value / 2**20,
        "disk_mib": disk / 2**20,
    }


def point(study: str, size: int) -> dict[str, Any]:
    """One point of a study, run in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--point", study, str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Peak:
    """The largest memory of this process and all that it started while the block runs, in bytes."""

    value = 0

    def __enter__(self) -> Peak:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            self.value = max(self.value, sum(proportional(process) for process in family(os.getpid())))


def family(process: int) -> list[int]:
    """A process, its children and theirs."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has just ended
        return []
    return [process, *(one for child in children for one in family(int(child)))]


def proportional(process: int | str) -> int:
    """The memory of a process in bytes, a page shared by n processes counted as 1/n of it."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def draw(result: dict[str, Any], path: Path) -> None:
    """Time a round and memory against each size, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    studies = result["studies"]
    figure, rows = pyplot.subplots(2, len(studies), figsize=(3.6 * len(studies), 5.6), squeeze=False, sharex="col")
    for column, (study, points) in enumerate(studies.items()):
        sizes = [one["size"] for one in points]
        time_axis, memory_axis = rows[0][column], rows[1][column]
        time_axis.loglog(sizes, [one["milliseconds"] for one in points], "o-")
        memory_axis.loglog(sizes, [one["peak_mib"] for one in points], "o-", label="all")
        without = [max(1, one["peak_mib"] - one["data_mib"]) for one in points]
        memory_axis.loglog(sizes, without, "o--", label="without records")
        time_axis.set_title(f"{study}\n{ABOUT[study]}", fontsize=8)
        time_axis.set_ylabel("milliseconds a round")
        memory_axis.set_ylabel("peak memory, MiB")
        memory_axis.set_xlabel(study)
        memory_axis.legend(frameon=False, fontsize=8)
        for axis in (time_axis, memory_axis):
            axis.grid(alpha=0.3, which="both")
            low, high = axis.get_ylim()
            axis.set_ylim(low / 2, high * 2)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def show(study: str, points: list[dict[str, Any]]) -> None:
    """Print one study as a table."""
    print(f"{study}: {ABOUT[study]}")
    print(f"  {study:>12}  ms a round  last tenth  records MiB  peak MiB  disk MiB")
    for one in points:
        figures = f"{one['milliseconds']:10.1f}  {one['last_tenth']:10.1f}  {one['data_mib']:11,.0f}"
        print(f"  {one['size']:12,}  {figures}  {one['peak_mib']:8,.0f}  {one['disk_mib']:8,.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(STUDIES), default=list(STUDIES))
    parser.add_argument("--json", type=Path, default=Path(".bench/scale.json"))
    parser.add_argument("--picture", type=Path, default=Path(".bench/scale.png"))
    parser.add_argument("--point", nargs=2, metavar=("STUDY", "SIZE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.point:
        print(json.dumps(run_point(chosen.point[0], int(chosen.point[1]))))
        return
    kept = json.loads(chosen.json.read_text())["studies"] if chosen.json.exists() else {}
    result: dict[str, Any] = {"machine": machine(), "studies": {name: kept[name] for name in STUDIES if name in kept}}
    for study in chosen.only:
        points = []
        for size in STUDIES[study]:
            points.append(point(study, size))
            print(f"  {study} {size:,}: {points[-1]['milliseconds']:.1f} ms a round", file=sys.stderr, flush=True)
        result["studies"][study] = points
        show(study, points)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(result, indent=1))
    draw(result, chosen.picture)
    print(f"Written to {chosen.json} and {chosen.picture}; load at the start {result['machine']['load']:.2f}.")


if __name__ == "__main__":
    main()
