"""How long the program takes to answer from the shell."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time


def measured(turns: int) -> dict[str, float]:
    """Median seconds until the help page is printed, and until a run of one round of the built-in example is over."""
    with tempfile.TemporaryDirectory() as folder:
        commands = {"help": ["--help"], "first_round": ["run", "--rounds", "1", "--store", folder, "--json"]}
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(turns):
            for name, arguments in commands.items():
                begin = time.perf_counter()
                subprocess.run([sys.executable, "-m", "sordino", *arguments], stdout=subprocess.PIPE, check=True)
                found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in found.items()}
