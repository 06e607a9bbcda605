"""Connection to a Ray cluster, and how much of it a run or a worker takes. Ray is imported here, when it is needed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sordino.errors import UserError, quoted
from sordino.util.processes import hold_interrupt

HELP = "auto (a cluster that runs on this machine), ray://HOST:PORT, or local:N (N cores of this machine)"
SETTINGS = {
    **{"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
    "RAY_worker_niceness": "0",
}
"""Ray sends no statistics to its makers, and leaves the choice of cards to whoever has set it. Its workers do not stand
behind all other processes of a machine (15, as Ray has it), where they would get next to nothing of a busy one."""
MOST_LOCAL = 256
MOST_PORTS = 65_535


@dataclass(frozen=True)
class PerRun:
    """Part of a node that one task or worker has for itself."""

    cpus: float = 1.0
    gpus: float = 0.0

    @classmethod
    def read(cls, text: str) -> PerRun:
        """Parse `cpus=2,gpus=0.5`."""
        found: dict[str, float] = {}
        for part in text.split(","):
            key, _, value = (one.strip() for one in part.partition("="))
            try:
                found[key] = float(value)
            except ValueError:
                found[""] = 0.0
        if not set(found) <= {"cpus", "gpus"} or not all(0 <= value < 1e6 for value in found.values()):
            raise UserError(f"--per-run {quoted(text)} is not understood; write --per-run cpus=2,gpus=0.5.")
        per_run = cls(**found)
        if not (per_run.cpus or per_run.gpus):
            raise UserError("--per-run gives a run neither cores nor cards; write --per-run cpus=1.")
        return per_run

    @property
    def workers(self) -> int:
        """Number of processes that a run divides its work among."""
        return max(1, int(self.cpus))

    def options(self) -> dict[str, float]:
        """Options of a task or an actor."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    def fits(self, resources: dict[str, float]) -> int:
        """Number of tasks or workers for which a node with these resources has room."""
        has = {"CPU": self.cpus, "GPU": self.gpus}
        return min(int(resources.get(name, 0.0) / wanted + 1e-9) for name, wanted in has.items() if wanted)


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to."""

    address: str
    ray: Any
    """The library."""

    def room(self, per_run: PerRun) -> int:
        """Number of tasks or workers that fit at once into the nodes that are there now."""
        found = sum(per_run.fits(node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        if not found:
            gpus = f" and {per_run.gpus:g} cards" if per_run.gpus else ""
            raise UserError(
                f"No node of the cluster {self.address} has {per_run.cpus:g} cores{gpus} for one run: ask less with "
                "--per-run, or let larger nodes join."
            )
        return found


def check(address: str) -> None:
    """Refuse an address that cannot be one, and a cluster without Ray, before any work."""
    kind, _, rest = address.partition(":")
    local = kind == "local" and rest.isdecimal() and 1 <= int(rest) <= MOST_LOCAL
    host, _, port = address.removeprefix("ray://").rpartition(":")
    remote = address.startswith("ray://") and host and port.isdecimal() and 1 <= int(port) <= MOST_PORTS
    if not (address == "auto" or local or remote):
        raise UserError(f"--cluster {quoted(address)} is no cluster: it is {HELP}.")
    if importlib.util.find_spec("ray") is None:
        raise UserError('A cluster needs Ray, which is not installed here: pip install "sordino[cluster]".')


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a cluster, or start one on this machine; it ends with the block if it was started for it."""
    check(address)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    ray = importlib.import_module("ray")
    if ray.is_initialized():  # by a program that has a cluster of its own
        yield Cluster(address, ray)
        return
    paths = os.pathsep.join([os.getcwd(), *(path for path in sys.path if path)])
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "sordino"}
    here: dict[str, str] = {}
    if address.startswith("local:"):
        cores = int(address.removeprefix("local:"))
        given |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
        # Inherited: processes for an environment of their own would be started beside those that Ray has at hand.
        here = {"PYTHONPATH": paths}
    else:
        _reach(address)
        given |= {"address": address, "runtime_env": {"env_vars": {"PYTHONPATH": paths}}}
    try:
        try:
            with _environment(here), hold_interrupt():  # interrupted, it may crash at the end of the program
                ray.init(**given)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise _unreachable(address, str(error)) from error
        yield Cluster(address, ray)
    finally:
        with hold_interrupt():
            ray.shutdown()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for processes that are started in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _reach(address: str) -> None:
    """Refuse a remote address where nobody listens: Ray would try for minutes."""
    if not address.startswith("ray://"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from error


def _unreachable(address: str, reason: str) -> UserError:
    """Make the error for a cluster that is not there; `reason` is in the words of Ray or of the operating system."""
    cause = reason.partition("\n")[0].partition(". ")[0].rstrip(".")  # behind it stands advice on options of Ray's own
    kind, _, rest = address.partition(":")
    if kind == "local":
        return UserError(
            f"No cluster of {rest} cores can be started on this machine ({cause}): leave --cluster out, or ask for "
            "fewer cores."
        )
    if kind == "auto":
        return UserError(
            f"No cluster runs on this machine ({cause}): start one with `ray start --head`, or take --cluster local:N."
        )
    return UserError(
        f"No cluster answers at {address} ({cause}): start one there with `ray start --head`, and name the port of its "
        "Ray client server, 10001 unless it was given another one."
    )
