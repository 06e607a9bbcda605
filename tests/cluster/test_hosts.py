"""A run and a study on a cluster of hosts with networks of their own, one of which loses its line in the middle.

Each host is a network namespace of this machine, where the user may make some.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import command

from sordino.cluster.connection import SETTINGS
from sordino.store.store import runs_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RAY = Path(sys.executable).with_name("ray")
PORT = 6390
HOSTS = 3
ENVIRONMENT = {
    **SETTINGS,
    **{"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3", "RAY_TMPDIR": "/tmp"},
    **{"RAY_ADDRESS": f"10.77.0.1:{PORT}", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
}


def ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


class Hosts:
    """Hosts on one bridge, each with a node of a cluster; the first is its head, and has no cores."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        ip("link", "add", f"{self.name}br", "type", "bridge")
        ip("link", "set", f"{self.name}br", "up")
        for host in range(HOSTS):
            ip("netns", "add", f"{self.name}{host}")
            ip(
                "link",
                "add",
                f"{self.name}v{host}",
                "type",
                "veth",
                "peer",
                "name",
                "line",
                "netns",
                f"{self.name}{host}",
            )
            ip("link", "set", f"{self.name}v{host}", "master", f"{self.name}br", "up")
            ip("-n", f"{self.name}{host}", "addr", "add", f"10.77.0.{host + 1}/24", "dev", "line")
            ip("-n", f"{self.name}{host}", "link", "set", "line", "up")
            ip("-n", f"{self.name}{host}", "link", "set", "lo", "up")
        small = ["--block", "--disable-usage-stats", f"--object-store-memory={100 * 2**20}"]
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", "--num-cpus=0"]
        self._start(0, [*head, *small])
        for host in range(1, HOSTS):
            self._start(host, [f"--address=10.77.0.1:{PORT}", "--num-cpus=1", *small])

    def _start(self, host: int, words: list[str]) -> None:
        given = [RAY, "start", f"--node-ip-address=10.77.0.{host + 1}", *words]
        node = subprocess.Popen(
            self.within(host, given), env=os.environ | ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self._nodes.append(node)
        time.sleep(5)

    def within(self, host: int, words: list[Any]) -> list[str]:
        """A command as it is given on a host."""
        return ["ip", "netns", "exec", f"{self.name}{host}", *map(str, words)]

    def cut(self, host: int) -> None:
        """Take a host's line away."""
        ip("link", "set", f"{self.name}v{host}", "down")

    def close(self) -> None:
        """Remove hosts and bridge with all that runs there."""
        for host in range(HOSTS):
            found = subprocess.run(["ip", "netns", "pids", f"{self.name}{host}"], capture_output=True, check=False)
            for process in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        for node in self._nodes:
            node.wait()
        for host in range(HOSTS):
            subprocess.run(["ip", "netns", "del", f"{self.name}{host}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self.name}br"], capture_output=True, check=False)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    pytest.importorskip("ray")
    made = Hosts(f"s{os.getpid() % 10000}")
    try:
        try:
            made.open()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield made
    finally:
        made.close()


def test_hosts_of_their_own_come_to_the_same_bits_and_may_lose_their_line(hosts: Hosts, tmp_path: Path) -> None:
    words = ["run", "--method", "feddpa", "--clients", "24", "--rounds", "60", "--set", "epochs=4", "--json"]
    here = command(*words, "--workers", "2", "--store", tmp_path / "here").document
    given = [
        sys.executable,
        "-m",
        "sordino",
        *words,
        "--workers",
        "2",
        "--cluster",
        "auto",
        "--store",
        tmp_path / "there",
    ]
    process = subprocess.Popen(hosts.within(0, given), env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE)
    try:
        patience = time.monotonic() + 240
        while not is_in_the_middle(tmp_path / "there"):
            assert process.poll() is None, "the run has ended before its time"
            assert time.monotonic() < patience, "the run has not come to its middle"
            time.sleep(0.02)
        hosts.cut(2)
        output, _ = process.communicate(timeout=400)
    finally:
        process.kill()
    assert process.returncode == 0
    there = json.loads(output.splitlines()[-1])
    times = {"seconds": 0}
    assert there | times == here | times
    models = [runs_in(tmp_path / place)[0].models for place in ("here", "there")]
    assert models[0] == models[1]


def is_in_the_middle(store: Path) -> bool:
    """Whether the run of a store has been charged for some rounds."""
    charged = sum(path.stat().st_size for path in store.glob("runs/*/ledger-*.journal"))
    return charged > 2000 or any(row.rounds_done for row in runs_in(store))
