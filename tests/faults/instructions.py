"""Processors of other ages, as far as this one can imitate them by leaving instructions unused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.cases import BASE
from faults.processes import command, options, warm_up
from faults.trials import Check, Part, kept

LIVES = "no run dies of an instruction"
REPEATS = "two runs agree on processors of every age"
TESTS = "the tests of the choice pass on processors of every age"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Age:
    """A kind of processor."""

    name: str
    flags: frozenset[str]
    """What this processor must have to imitate it."""
    environment: dict[str, str]


def _age(name: str, flags: str, torch: str, products: str) -> Age:
    return Age(name, frozenset(flags.split()), {"ATEN_CPU_CAPABILITY": torch, "ONEDNN_MAX_CPU_ISA": products})


AVX512 = "avx2 avx512f avx512bw avx512dq avx512vl"
AGES = (
    _age("SSE 4.1", "sse4_1", "default", "SSE41"),
    _age("AVX2", "avx2", "avx2", "AVX2"),
    _age("AVX-512", AVX512, "avx512", "AVX512_CORE"),
    _age("AVX-512 with VNNI", f"{AVX512} avx512_vnni", "avx512", "AVX512_CORE_VNNI"),
    _age("AVX-512 with bf16", f"{AVX512} avx512_bf16", "avx512", "AVX512_CORE_BF16"),
    Age("AMX", frozenset(["amx_tile", "amx_bf16"]), {"ONEDNN_MAX_CPU_ISA": "ALL"}),
    Age("this one", frozenset(), {}),
)
RUNS: dict[str, dict[str, Any]] = {
    "stacked": {"method": "dp-fedavg", "engine": "stacked", "workers": 2},
    "again": {"method": "dp-fedavg", "engine": "stacked", "workers": 1},
    "one by one": {"method": "feddpa", "engine": "one-by-one", "model": "mlp", "workers": 2},
    "chosen": {"method": "dp-fedavg"},
    "bf16": {"method": "dp-fedavg", "precision": "bf16", "model": "mlp"},
    "bf16 over workers": {"method": "local", "precision": "bf16", "model": "mlp", "workers": 2},
    "records": {"method": "dp-fedavg-record", "partition": "iid", "rounds": 2, "clients": 3},
}


def known() -> list[Age]:
    """The ages that this processor can imitate, oldest first."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
    return [age for age in AGES if age.flags <= flags]


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """A handful of runs, and the tests of the choice between engines and formats, as an older processor."""
    ages = known()
    if number >= len(ages):
        return
    age = ages[number]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {key: value for key, value in os.environ.items() if key not in AGES[0].environment}
    environment |= age.environment | {"PYTHONPATH": path, "TMPDIR": str(folder)}
    order = [sys.executable, "-m", "faults.instructions"]
    done = subprocess.run(order, env=environment, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout) if done.returncode == 0 else {}
    for name in RUNS:
        good, how, _ = told.get(name, (False, done.stderr[-1000:], None))
        yield kept(LIVES, good, f"{age.name}, {name}: {how}")
    if told:
        yield kept(REPEATS, told["stacked"][2] == told["again"][2], f"{age.name}: two runs of one experiment differ")
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(ROOT / "tests/simulator/test_choice.py"),
    ]
    done = subprocess.run(tests, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    yield kept(TESTS, done.returncode == 0, f"{age.name}: {done.stdout[-1500:]}")


def inside() -> None:
    """Make the runs in this process's environment, and print what came of each."""
    scratch = Path(tempfile.mkdtemp())
    warm_up(scratch)
    told = {}
    for name, keys in RUNS.items():
        ended = command("run", *options(BASE | {"rounds": 3} | keys), "--json", "--store", scratch / name)
        bf16 = "precision" in keys  # a processor that cannot is told so in a sentence
        numbers = {k: v for k, v in ended.document.items() if k not in ("run", "seconds")} if ended.code == 0 else None
        told[name] = (ended.code == 0 or (bf16 and ended.refused), str(ended), numbers)
    print(json.dumps(told))


INSTRUCTIONS = Part("instructions", (LIVES, REPEATS, TESTS), len(AGES), trial)

if __name__ == "__main__":
    inside()
