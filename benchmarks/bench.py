"""Speed as ratios of one run: Sordino, privacy included, against bare PyTorch loops without it.

    make bench                                    # everything, about ten minutes on two cores
    python benchmarks/bench.py --only W1 W3       # some workloads

Contenders take turns and medians over the turns are compared, so that a busy machine hurts all of them alike. Loop B
(two single-threaded processes) is the denominator.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from bare import Bare
from contenders import Contender, Sordino
from workloads import W2, WORKLOADS, Workload

Entry = Callable[[], Contender]
LOOP_B = "loop B (2 processes)"
"""The denominator."""


def entries(workload: Workload) -> dict[str, Entry]:
    """Who is measured on a workload."""
    found: dict[str, Entry] = {
        "loop A (1 process, 2 threads)": lambda: Bare(workload, 1, 2),
        LOOP_B: lambda: Bare(workload, 2, 1),
        "sordino": lambda: Sordino(workload),
    }
    if workload is W2:
        found["sordino, bf16"] = lambda: Sordino(workload, precision="bf16")
        found["sordino, feddpa"] = lambda: Sordino(replace(workload, method="feddpa"))
    return found


def started(found: dict[str, Entry]) -> dict[str, Contender]:
    """The contenders, each after a round that is not measured."""
    contenders = {name: make() for name, make in found.items()}
    for contender in contenders.values():
        contender.rate(1)
    return contenders


def measured(workload: Workload, contenders: dict[str, Contender], turns: int) -> dict[str, list[float]]:
    """Samples a second of each contender in each turn."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name, contender in contenders.items():
            rates[name].append(contender.rate(workload.rounds))
            print(f"  {workload.name} turn {turn + 1}: {name:32} {rates[name][-1]:12,.0f} samples/s", flush=True)
    return rates


def compared(workload: Workload, contenders: dict[str, Contender], turns: int) -> dict[str, Any]:
    """What is reported of a workload; it is printed too, with ratios to loop B, and the contenders are closed."""
    rates = measured(workload, contenders, turns)
    for contender in contenders.values():
        contender.close()
    medians = {who: statistics.median(values) for who, values in rates.items()}
    print(f"{workload.name}: {workload.about}")
    for who, value in medians.items():
        print(f"  {who:32} {value:12,.0f} samples/s   {value / medians[LOOP_B]:.2f} x B")
    return {"about": workload.about, "turns": rates, "median": medians}


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sordino": version("sordino"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(WORKLOADS), default=sorted(WORKLOADS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(".bench/bench.json"))
    chosen = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "workloads": {}}
    for name in chosen.only:
        workload = WORKLOADS[name]
        result["workloads"][name] = compared(workload, started(entries(workload)), chosen.turns)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(result, indent=1))
    print(f"Written to {chosen.json}; load at the start {result['machine']['load']:.2f}.")


if __name__ == "__main__":
    main()
