"""Four hospitals of Heart Disease as real sites on this machine, beside a simulation of the same experiment.

    python experiments/hospitals_deployed.py HEART [--seeds 3] [--epsilon 1] [--rounds 60] [--work FOLDER]

HEART is a folder with the raw files processed.{cleveland,hungarian,switzerland,va}.data. For each seed each hospital
gets its own records, a third of them for testing, and a site of its own: `sordino site init`, `serve init`, `serve
add`, `serve roster`, then `sordino join` in a process for each site and `sordino serve` over TLS on 127.0.0.1. All
noise comes from the operating system. `sordino site status` tells each hospital the AUC of its recalibrated model on
its own test records. The simulation has other noise, so that the figures agree within their spread over seeds.
Switzerland has few healthy patients, and no AUC where none of them is tested.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tables import read_hospitals

NAMES = ("cleveland", "hungarian", "switzerland", "va")
DELTA = 1e-5
WAIT_SECONDS = 60.0
"""Seconds for a site to end after it was told to."""


def write_records(heart: Path, folder: Path, seed: int) -> int:
    """Write the records of each hospital as `folder/NAME.npz`; returns the mean number of training records."""
    folder.mkdir(parents=True, exist_ok=True)
    random, trained = np.random.default_rng(seed), []
    for name, (x, y) in zip(NAMES, read_hospitals(heart), strict=True):
        test = random.permutation(len(y)) < len(y) // 3
        parts = {"x": x[~test], "x_test": x[test]}
        parts = {key: part.astype(np.float32) for key, part in parts.items()}
        np.savez(folder / f"{name}.npz", **parts, y=y[~test], y_test=y[test])
        trained.append(int((~test).sum()))
    return round(float(np.mean(trained)))


class CommandLine:
    """Sordino's command line, in a folder of its own: nothing is left in the user's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = os.environ | {"XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}

    def __call__(self, *arguments: str) -> str:
        """Run a command to its end; returns its output."""
        done = subprocess.run(self._command(arguments), **self._settings(), stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise SystemExit(f"`sordino {' '.join(arguments)}` failed.")
        return bytes(done.stdout).decode()

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Run a command in a process until the end of the block; its output goes into a log."""
        with (self.folder / f"{arguments[1].replace('/', '-')}.log").open("w") as log:
            process = subprocess.Popen(self._command(arguments), **self._settings(), stdout=log, stderr=log)
            try:
                yield
            finally:
                process.terminate()
                process.wait(WAIT_SECONDS)

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "sordino", *arguments]

    def _settings(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": self._environment}


def deploy(folder: Path, experiment: dict[str, Any]) -> tuple[dict[str, float], float]:
    """Deploy an experiment at sites whose records are in `folder`; returns the AUC that each site keeps, and the
    seconds of a round."""
    sordino = CommandLine(folder)
    keys = {**experiment, "clients": len(NAMES), "shape": [13], "labels": ["0", "1"], "store": str(folder / "store")}
    (folder / "experiment.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    sordino("serve", "init", "--host", "localhost")
    limits = ("--unit", "record", "--max-epsilon", str(experiment["epsilon"]), "--max-delta", str(DELTA))
    for name in NAMES:
        sordino("site", "init", "--name", name, "--data", f"{name}.npz", *limits)
    sordino("serve", "add", *(f"{name}/{name}.pub" for name in NAMES))
    roster = sordino("serve", "roster")
    for name in NAMES:
        (folder / name / "roster.toml").write_text(roster)
        rules = folder / name / "site.toml"
        rules.write_text(rules.read_text().replace("# roster =", 'roster = "roster.toml"'))
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as sites:
        for name in NAMES:
            sites.enter_context(
                sordino.running(
                    "join", name, "--server", address.replace("127.0.0.1", "localhost"), "--ca", "server/ca.pem"
                )
            )
        done = json.loads(sordino("serve", "experiment.toml", "--address", address, "--json"))
    found = {}
    for name in NAMES:
        status = json.loads(sordino("site", "status", name, "--json"))
        auc = status["runs"][-1]["metrics"]["auc"]
        found[name] = np.nan if auc is None else float(auc)
    return found, done["seconds"] / done["rounds_done"]


def simulate(folder: Path, experiment: dict[str, Any]) -> dict[str, float]:
    """Simulate an experiment on the same records; returns the AUC of each client."""
    import sordino

    keys = {key: value for key, value in experiment.items() if key != "records_each"}
    records = folder / "records"
    with tempfile.TemporaryDirectory() as store:
        for name in NAMES:
            records.mkdir(exist_ok=True)
            (records / f"{name}.npz").write_bytes((folder / f"{name}.npz").read_bytes())
        done = sordino.run(**keys, data=str(records), labels=(0, 1), workers=1, store=store)
        models = sordino.load_models(done["run"], store=store)
    place = models.about.meaning.task.metrics.index("auc")
    return dict(zip(models.about.clients, models.metrics[:, place].tolist(), strict=True))


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Deploy and simulate with each seed, and print each hospital's AUC x 100."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("heart", type=Path, help="folder with the raw files of Heart Disease")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--work", type=Path, help="folder for the sites; by default one that is removed at the end")
    given = parser.parse_args()
    with contextlib.ExitStack() as held:
        work = given.work or Path(held.enter_context(tempfile.TemporaryDirectory()))
        ways: dict[str, list[dict[str, float]]] = {"deployed": [], "simulated": []}
        print(f"{'seed':>4}  {'':10}" + "".join(f"{name:>13}" for name in (*NAMES, "mean")), flush=True)
        for seed in range(given.seeds):
            folder = (work / str(seed)).resolve()
            each = write_records(given.heart, folder, seed)
            experiment = {
                **{"method": "dp-fedsgd", "model": "logistic", "personal": "recalibrate", "rounds": given.rounds},
                **{"epsilon": given.epsilon, "delta": DELTA, "seed": seed, "records_each": each},
            }
            begun = time.monotonic()
            found, seconds = deploy(folder, experiment)
            ways["deployed"].append(found)
            print_row(str(seed), "deployed", found)
            print(f"      {seconds:.2f} s a round, {time.monotonic() - begun:.0f} s in all", flush=True)
            ways["simulated"].append(simulate(folder, experiment))
            print_row(str(seed), "simulated", ways["simulated"][-1])
        for way, rows in ways.items():
            print_row("all", way, {name: float(np.nanmean([row[name] for row in rows])) for name in NAMES}, rows)


def print_row(seed: str, way: str, auc: dict[str, float], rows: list[dict[str, float]] | None = None) -> None:
    """Print AUC x 100 of each hospital and their mean; with `rows` of several seeds the spread of that mean."""
    mean = float(np.nanmean(list(auc.values())))
    cells = ["–" if np.isnan(value) else f"{100 * value:.1f}" for value in (*(auc[name] for name in NAMES), mean)]
    spread = ""
    if rows is not None and len(rows) > 1:
        spread = f" ± {100 * float(np.std([np.nanmean(list(row.values())) for row in rows], ddof=1)):.1f}"
    print(f"{seed:>4}  {way:10}" + "".join(f"{cell:>13}" for cell in cells) + spread, flush=True)


if __name__ == "__main__":
    main()
