"""How contenders are measured: in turns, and against what machine."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from contenders import Contender


def measured(name: str, rounds: int, contenders: Mapping[str, Contender], turns: int) -> dict[str, list[float]]:
    """Samples a second of each contender in each turn, over so many rounds; contenders are closed afterwards."""
    rates: dict[str, list[float]] = {who: [] for who in contenders}
    for contender in contenders.values():
        contender.rate(1)
    for turn in range(turns):
        for who, contender in contenders.items():
            rates[who].append(contender.rate(rounds))
            print(f"  {name}, turn {turn + 1}: {who:32} {rates[who][-1]:12,.0f} samples/s", flush=True)
    for contender in contenders.values():
        contender.close()
    return rates


def medians(rates: Mapping[str, list[float]]) -> dict[str, float]:
    """The middle turn of each."""
    return {who: statistics.median(values) for who, values in rates.items()}


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sordino": version("sordino"),
    }
