"""A peer as a contender: a script of its own in an environment of its own, which waits between measurements."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from peers.environments import FLOWER, FOLDER, PFL, Environment, PeerError, last_error
from workloads import Workload

SCRIPTS = Path(__file__).resolve().parent
SENT = ("clients", "records", "shape", "cohort", "network", "batch", "optimizer", "rate", "epochs")
"""The fields of a workload that a peer is told: those of `task.Task`."""
ALONE = {"OMP_NUM_THREADS": "1"}
"""Two threads of a process wait for each other, and collapse on a busy machine."""
PATIENCE = 30
"""Seconds that a peer is given to end."""


@dataclass(frozen=True)
class Kind:
    """How a peer is run."""

    environment: Environment
    script: str
    rounds: dict[str, int]
    """How many rounds one measurement takes in each workload: some seconds' worth, as rates are compared."""
    processes: int = 1
    """How many run the script, in pfl's way of telling them of each other."""


PEERS = {
    "flower (Ray, 2 actors)": Kind(FLOWER, "flower_peer.py", {"W1": 10, "W2": 2, "W3": 6}),
    "pfl (1 process)": Kind(PFL, "pfl_peer.py", {"W1": 10, "W2": 2, "W3": 30}),
    "pfl (2 processes)": Kind(PFL, "pfl_peer.py", {"W1": 10, "W2": 2, "W3": 30}, processes=2),
}


def places(processes: int) -> list[dict[str, str]]:
    """The variables by which each of pfl's processes learns its number and where to meet the others."""
    if processes == 1:
        return [{}]
    with socket.create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    addresses = ",".join([address] * processes)
    return [{"PFL_WORKER_RANK": str(rank), "PFL_WORKER_ADDRESSES": addresses} for rank in range(processes)]


class Peer:
    """A running peer. It raises `PeerError` when its process ends before it should."""

    def __init__(self, name: str, workload: Workload) -> None:
        kind = PEERS[name]
        self.name, self.workload, self._most = name, workload, kind.rounds[workload.name]
        self._log = FOLDER / f"{''.join(filter(str.isalnum, name))}-{workload.name}.log"
        command = [
            str(kind.environment.python),
            str(SCRIPTS / kind.script),
            json.dumps({key: getattr(workload, key) for key in SENT}),
        ]
        # Not by torchrun: it opens sessions, and Linux shares a busy machine out by session, so they would get more.
        with self._log.open("w") as log:
            self._process, *self._others = [
                subprocess.Popen(
                    command,
                    env=os.environ | ALONE | place,
                    stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if rank == 0 else log,
                    stderr=log,
                    text=True,
                )
                for rank, place in enumerate(places(kind.processes))
            ]

    def rate(self, rounds: int) -> float:
        """Samples a second over so many rounds, or over the peer's own number where that is smaller."""
        rounds = min(rounds, self._most)
        self._say(rounds)
        return self.workload.samples * rounds / float(self._answer())

    def close(self) -> None:
        self._say(0)
        for process in (self._process, *self._others):
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _say(self, rounds: int) -> None:
        try:
            print(rounds, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self._fail()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or self._fail()

    def _fail(self) -> str:
        raise PeerError(f"{self.name} ended early: {last_error(self._log.read_text())} (its log: {self._log})")
