"""How much sooner a study is done with two workers: `--cluster local:2` against `local:1`, and without a cluster.

    OMP_NUM_THREADS=1 python benchmarks/study_speedup.py

Eight runs of some ten seconds each, made by each arm in turn, in a process and a store of its own; a run has one core
in every arm. Seconds are those of a whole command, start and end of Ray included. Needs two quiet cores, and some five
minutes. Printed beside them is what takes the processors from the runs: the seconds that the command's own process
computes, and how long Ray takes to start. Where the cores are not quiet, look at these.

`apart` is what the machine can give: half of the runs in each of two processes that know nothing of each other. Two
cores that share caches, memory or one physical core are not twice as fast as one, whoever hands out the work.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sordino.cluster.study import connect_cluster
from sordino.experiment.config import Experiment
from sordino.study.compare import compare
from sordino.study.run_cells import Crew, InTurn

METHODS, SEEDS = ("dp-fedavg", "feddpa"), 4
ARMS = ("local:1", "local:2", "plain", "apart")


def study(arm: str, store: Path, rounds: int, seeds: range) -> dict[str, float]:
    """Make the study once in this process; seconds."""
    begin = time.perf_counter()
    keys = {"data": "digits", "clients": 60, "partition": "iid", "model": "mlp", "workers": 1, "rounds": rounds}
    keys |= {"seed": seeds.start}
    # One by one: a round is arithmetic of one core, whichever method it is.
    experiment = Experiment.make(keys, {"epsilon": 8.0, "engine": "one-by-one", "store": store}, {"set": {"epochs": 2}})
    with connect_cluster(None if arm == "plain" else arm) as cluster:
        started = time.perf_counter()
        crew: Crew = InTurn() if cluster is None else cluster
        compare(experiment, METHODS, len(seeds), crew=crew)
        done = time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "start": started - begin,
        "study": done - started,
        "end": time.perf_counter() - done,
        "own": used.ru_utime + used.ru_stime,
    }


def arm_of(arm: str, rounds: int) -> dict[str, float]:
    """An arm in a process and a store of its own, or `apart` in two, with one thread for each run."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    shares = [range(SEEDS)] if arm != "apart" else [range(SEEDS // 2), range(SEEDS // 2, SEEDS)]
    with tempfile.TemporaryDirectory() as folder:
        begin, processes = time.perf_counter(), []
        for seeds in shares:
            command = [sys.executable, __file__, "--arm", "plain" if arm == "apart" else arm, "--rounds", str(rounds)]
            command += ["--store", f"{folder}/{seeds.start}", "--seeds", str(seeds.start), str(seeds.stop)]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | threads, text=True))
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(1)
        found = [json.loads(output.splitlines()[-1]) for output in outputs]
        longest = max(found, key=lambda one: one["study"])
        return longest | {"all": time.perf_counter() - begin}


def main() -> None:
    """Measure all arms, in turns, and print them with their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1, help="how often each arm is measured")
    parser.add_argument("--rounds", type=int, default=24, help="rounds of each run")
    parser.add_argument("--arm", choices=ARMS, help="measure this arm here, and print a line of JSON")
    parser.add_argument("--store", type=Path, default=Path("store"), help="with --arm: an empty folder")
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(0, SEEDS), help="with --arm: first seed, and after the last"
    )
    given = parser.parse_args()
    if given.arm is not None:
        print(json.dumps(study(given.arm, given.store, given.rounds, range(*given.seeds))))
        return
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"{len(METHODS) * SEEDS} runs of {given.rounds} rounds; load {load:.1f} on {cores} cores")
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for _ in range(given.turns):
        for arm in ARMS:
            one = arm_of(arm, given.rounds)
            found[arm].append(one)
            times = ", ".join(f"{name} {one[name]:.1f}" for name in ("start", "study", "end"))
            print(f"{arm:8} {one['all']:6.1f} s: {times}; own process computes {one['own']:.1f} s", flush=True)
    whole = {arm: statistics.median(one["all"] for one in figures) for arm, figures in found.items()}
    alone = {arm: statistics.median(one["study"] for one in figures) for arm, figures in found.items()}
    print(f"two workers against one: {whole['local:1'] / whole['local:2']:.2f} times as fast", end="")
    print(f", without start and end of Ray {alone['local:1'] / alone['local:2']:.2f}")
    print(f"two workers against no cluster: {whole['plain'] / whole['local:2']:.2f} times as fast")
    print(f"two processes apart against one: {whole['plain'] / whole['apart']:.2f} times as fast, the machine's limit")


if __name__ == "__main__":
    main()
