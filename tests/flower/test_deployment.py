"""Whole deployments on this machine: a SuperLink with TLS and node keys, three sites, each process for itself.

Noise comes from the seed here, so that the models must be those of a simulation, to the bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.status import status
from sordino.deploy.trial import lay_out, prepare_simulation
from sordino.experiment.config import Experiment
from sordino.experiment.run import start
from sordino.flower import keys, serving
from sordino.flower.link import free_port
from sordino.flower.serving import PublicSite
from sordino.store.checkpoint import MODELS
from sordino.store.store import Store, runs_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SITES = 3
KEYS: dict[str, Any] = {
    "data": "digits",
    "records": 300,
    "partition": "iid",
    "method": "dp-fedavg",
    "model": "logistic",
    "rounds": 6,
    "epsilon": 8,
    "delta": 1e-5,
    "noise": "integers",
    "clients": SITES,
}
PATIENCE = 300
MAIN = "from sordino.cli import main; main()"


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of ours in a process, its output in a file of its name."""
    with (folder / f"{arguments[0]}.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something to become true."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def related(folder: Path) -> list[str]:
    """Processes that have to do with a folder, this one excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                place = str((entry / "cwd").readlink())
                if str(folder).encode() in text or place.startswith(str(folder)):
                    found.append(f"{entry.name} {text[:80]!r}")
    return found


def global_model(store: Path, run: str) -> torch.Tensor:
    return load_file(store / "runs" / run / MODELS)["global"]


def simulation(deployed: Experiment, original: Experiment, store: Path) -> dict[str, Any]:
    prepared = prepare_simulation(deployed, original)
    return start(prepared, Store(store)).to_dict()


def test_a_trial_ends_like_a_run_with_the_same_model_and_accuracies(tmp_path):
    (tmp_path / "e.toml").write_text(toml(KEYS))
    with running(tmp_path, "deploy", "e.toml", "--local", "3", "--store", "store", "--json") as process:
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, (tmp_path / "deploy.log").read_text()
    found = json.loads(out)
    assert related(tmp_path) == []
    original = Experiment.make(KEYS)
    deployed, _, _ = lay_out(original, tmp_path / "again", SITES)
    expected = simulation(deployed, original, tmp_path / "simulated")
    assert torch.equal(
        global_model(tmp_path / "store", found["run"]), global_model(tmp_path / "simulated", expected["run"])
    )
    assert found["accuracy"] == pytest.approx(expected["accuracy"])
    # A trial's server does not know how many records sites have, nor how evenly they are served; their metrics are
    # kept with a trial.
    assert (set(expected) - {"records", "fairness"}) | {"over_runs", "deployed", "trial_of"} == set(found)
    assert found["epsilon"]["outsider"] is None  # whoever knows the seed knows the noise


def prepared(place: Path, original: Experiment, port: int) -> tuple[Experiment, list[Path], tuple[str, ...]]:
    """An experiment laid out at sites and at a server: as it is deployed, the sites' folders, the server's command."""
    assert original.clients is not None
    deployed, _, folders = lay_out(original, place / "sites", original.clients)
    server = place / "server"
    serving.create_server(server, ["localhost"])
    serving.add_sites(server, [_public(folder) for folder in folders])
    declared = original.model_dump(mode="json", include={*KEYS, "minimum_cohort"}, exclude_none=True)
    declared |= {"shape": list(deployed.shape or ()), "labels": [str(one) for one in deployed.labels or ()]}
    (place / "e.toml").write_text(toml(declared | {"records_each": deployed.records_each}))
    return deployed, folders, ("serve", "e.toml", "--address", f"127.0.0.1:{port}", "--store", "store", "--json")


def test_a_server_and_a_site_that_are_killed_go_on_to_the_same_model(tmp_path):
    original, port, server = Experiment.make(KEYS), free_port(), tmp_path / "server"
    deployed, folders, serve = prepared(tmp_path, original, port)
    with contextlib.ExitStack() as stack:
        joined = [stack.enter_context(_joined(tmp_path, folder, port)) for folder in folders]
        with running(tmp_path, *serve) as process:
            run = until(lambda: process.poll() is None and _after_first_round(tmp_path / "store"))
            assert _stranger(server, port) == httpx.codes.FORBIDDEN
            process.send_signal(signal.SIGKILL)
        until(lambda: not any("flower.link" in one for one in related(tmp_path)))
        assert Store(tmp_path / "store").get(run).rounds_done < KEYS["rounds"]
        with running(tmp_path, *serve, "--resume", run) as process:
            until(lambda: _rounds(tmp_path / "store", run) > 1 or process.poll() is not None)
            joined[0].send_signal(signal.SIGKILL)
            joined[0].wait(60)
            joined[0] = stack.enter_context(_joined(tmp_path, folders[0], port))
            out, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, (tmp_path / "serve.log").read_text()
        found = json.loads(out)
        assert found["run"] == run
        for process in joined:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in joined] == [0] * SITES
    assert related(tmp_path) == []
    expected = simulation(deployed, original, tmp_path / "simulated")
    assert torch.equal(global_model(tmp_path / "store", run), global_model(tmp_path / "simulated", expected["run"]))


def test_a_site_that_is_killed_and_stays_away_is_done_without_until_it_is_back(tmp_path):
    """Four sites of which three must answer; each question that the fourth has answered was paid for once."""
    port = free_port()
    original = Experiment.make(KEYS | {"clients": 4, "minimum_cohort": 3, "rounds": 40})
    _, folders, serve = prepared(tmp_path, original, port)
    with contextlib.ExitStack() as stack:
        joined = [stack.enter_context(_joined(tmp_path, folder, port)) for folder in folders]
        with running(tmp_path, *serve) as process:
            run = until(lambda: process.poll() is None and _after_first_round(tmp_path / "store"))
            joined[0].send_signal(signal.SIGKILL)
            joined[0].wait(60)
            away = status(folders[0])["ledger"]["rows"]
            before = _rounds(tmp_path / "store", run)
            until(lambda: _rounds(tmp_path / "store", run) > before + 2 or process.poll() is not None)
            assert status(folders[0])["ledger"]["rows"] == away
            process.send_signal(signal.SIGSTOP)  # no round passes while a program is loaded
            said = (tmp_path / "join.log").stat().st_size
            joined[0] = stack.enter_context(_joined(tmp_path, folders[0], port))
            until(lambda: (tmp_path / "join.log").stat().st_size > said)
            process.send_signal(signal.SIGCONT)
            out, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, (tmp_path / "serve.log").read_text()
        assert json.loads(out)["rounds_done"] == 40
        for one in joined:
            one.send_signal(signal.SIGTERM)
        assert [one.wait(60) for one in joined] == [0] * 4
    assert related(tmp_path) == []
    asks = []
    for folder in folders:
        assert [one["state"] for one in status(folder)["runs"]] == ["done"]
        with SiteLedger(folder) as ledger:
            asks.append([tuple(one.content["ask"]) for one in ledger.entries() if one.kind == "release"])
        assert len(set(asks[-1])) == len(asks[-1])
    assert len(asks[0]) < len(asks[1])
    assert asks[0][-1] == asks[1][-1], "it was there in the last round"


def _public(folder: Path) -> Path:
    """The public line of a site that was laid out."""
    identity = bytes.fromhex(status(folder)["identity"])
    path = folder / f"{folder.name}.pub"
    path.write_text(PublicSite(folder.name, identity, keys.make_node_key(folder)).line())
    return path


def _joined(place: Path, folder: Path, port: int) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return running(
        place, "join", str(folder), "--server", f"localhost:{port}", "--ca", str(place / "server" / keys.AUTHORITY)
    )


def _after_first_round(store: Path) -> str | None:
    """The name of the run, once a round of it is done."""
    with contextlib.suppress(Exception):
        rows: Sequence[Any] = runs_in(store)
        return next((row.run for row in rows if row.rounds_done >= 1), None)
    return None


def _rounds(store: Path, run: str) -> int:
    return Store(store).get(run).rounds_done


def _stranger(server: Path, port: int) -> int:
    """What somebody without the operator's secret gets who would start an app."""
    with httpx.Client(verify=keys.tls_context(server / keys.AUTHORITY)) as client:
        return client.post(f"https://localhost:{port}/v1/control/start-run", content=b"x").status_code
