"""A million clients of 20 rows each, 1,000 of them a round, on made-up data: time and memory of `sordino run`.

    python benchmarks/million.py FOLDER           # writes two gigabytes there, and removes them

The rows are 8 random numbers and a label that depends on them; the program reads them from one file and deals them to
the clients by itself. Memory is the peak of the command and its worker processes together.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import machine
from scale import Peak

ROWS, FEATURES = 20, 8


def write_rows(folder: Path, clients: int) -> None:
    """Write the rows of all clients into one file of a new folder."""
    random = np.random.default_rng(0)
    x = random.normal(size=(clients * ROWS, FEATURES)).astype(np.float32)
    folder.mkdir()
    np.savez(folder / "everybody.npz", x=x, y=(x @ random.normal(size=FEATURES) > 0).astype(np.int64))


def main() -> None:
    """Make the data, run the experiment once, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        rows = Path(folder) / "rows"
        write_rows(rows, given.clients)
        command = [
            *(sys.executable, "-m", "sordino", "run", "--data", str(rows), "--labels", "0,1"),
            *("--partition", "iid", "--clients", str(given.clients), "--participation", str(1000 / given.clients)),
            *("--method", "dp-fedavg", "--model", "logistic", "--rounds", str(given.rounds), "--epsilon", "4"),
            *("--delta", "1e-7", "--store", str(Path(folder) / "store"), "--json"),
        ]
        begun = time.perf_counter()
        with Peak() as peak:
            found = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        took, document = time.perf_counter() - begun, json.loads(found.stdout)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        disk = sum(file.stat().st_blocks * 512 for file in (Path(folder) / "store").rglob("*") if file.is_file())
    print(machine())
    print(
        f"{given.clients:,} clients, {given.rounds} rounds: {took:.1f} s in all, {document['seconds']:.1f} s in rounds"
    )
    print(f"{used.ru_utime + used.ru_stime:.1f} s of a processor")
    print(f"peak {peak.value / 2**20:,.0f} MiB, of it {given.clients * ROWS * (FEATURES + 2) * 4 / 2**20:,.0f} records")
    print(f"disk {disk / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
