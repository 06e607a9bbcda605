"""A server and three sites as their installed units start them, for a simulated week and a change of certificates.

    PYTHONPATH=tests:tests/flower python -m week [DAYS] [ROUNDS_A_DAY]

The commands are taken from the units that `serve install --print` and `site install --print` write. All processes see
one wall clock (`clock.c`), which the harness moves: each day has so many rounds, as fast as they go, and then the clock
jumps to the next day, in the middle of a run, as on a machine that was suspended. Every
night one site is killed and started again, as systemd would; every other night the server. Then the clock jumps to 58
days before the certificate expires, which is warned of and renewed, and, some rounds later, past the end of the former.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from test_deployment import KEYS, SITES, prepared
from test_year import lines, memory, metrics

from sordino.deploy.site.ledger import SiteLedger
from sordino.experiment.config import Experiment
from sordino.flower import keys
from sordino.flower.link import free_port
from sordino.store.store import Store

COMPILER = shutil.which("cc")
DAY = 86_400.0
WARNED_DAYS = 58
PATIENCE = 240.0
LAST_ROUNDS = 30
"""Rounds that are left when the certificate is about to expire."""


@dataclass
class Clock:
    """The wall clock of all processes of the week: seconds by which it is ahead, in a file."""

    path: Path
    ahead: int = 0

    @classmethod
    def make(cls, place: Path) -> Clock:
        """Compile the library that shows it, and let it show the time as it is."""
        assert COMPILER is not None
        source, made = Path(__file__).with_name("clock.c"), cls(place / "clock")
        command = [COMPILER, "-shared", "-fPIC", "-O2", "-o", str(made.library), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        made.path.write_bytes(bytes(8))
        return made

    @property
    def library(self) -> Path:
        return self.path.with_suffix(".so")

    def move(self, seconds: float) -> None:
        """Move it ahead."""
        self.ahead += int(seconds)
        with self.path.open("r+b") as file:  # in place, since processes have mapped the file
            file.write(struct.pack("q", self.ahead))

    def now(self) -> float:
        return time.time() + self.ahead

    def environment(self) -> dict[str, str]:
        """Variables with which a process has this clock."""
        return {"LD_PRELOAD": str(self.library), "CLOCK_AHEAD": str(self.path)}


@dataclass
class Service:
    """A unit, and the process that it has started last."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    port: int
    process: subprocess.Popen[str] | None = None
    starts: int = 0
    killed: bool = False

    @classmethod
    def of(cls, name: str, place: Path, clock: Clock, port: int, *install: object) -> Service:
        """The service that `sordino ... install ... --print` describes."""
        state = os.environ | {"XDG_STATE_HOME": str(place / "state")}
        unit = subprocess.run(
            [sys.executable, "-P", "-m", "sordino", *map(str, install), "--monitor", f"127.0.0.1:{port}", "--print"],
            check=True, capture_output=True, text=True, cwd=place, env=state,
        ).stdout  # fmt: skip
        told = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
        given = dict(line.split("=", 2)[1:] for line in unit.splitlines() if line.startswith("Environment="))
        where = next(line.partition("=")[2] for line in unit.splitlines() if line.startswith("WorkingDirectory="))
        environment = os.environ | given | clock.environment()
        return cls(name, shlex.split(told[0]), environment, Path(where), place / f"{name}.log", port)

    def start(self) -> None:
        """Start it, as systemd does."""
        self.starts += 1
        self.killed = False
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=dict(self.environment), stdout=log, stderr=log, text=True
            )

    def kill(self) -> None:
        """End it as a crash does."""
        self.killed = True
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def ended(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    def memory(self) -> int:
        assert self.process is not None
        return memory(self.process.pid)


@dataclass
class Week:
    """A simulated week, and its figures."""

    place: Path
    days: int
    rounds_a_day: int
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Rounds of all days, and those during which the certificate is renewed."""
        return self.days * self.rounds_a_day + LAST_ROUNDS

    def live(self) -> dict[str, Any]:
        """Live through it; figures of memory and logs, and what was told of certificates."""
        original, port, begun = Experiment.make(KEYS | {"rounds": self.rounds}), free_port(), time.monotonic()
        prepared(self.place, original, port)
        self.clock = Clock.make(self.place)
        authority = self.place / "server" / keys.AUTHORITY
        serve = ("serve", "install", "e.toml", "--address", f"127.0.0.1:{port}", "--store", "store")
        self.server = Service.of("server", self.place, self.clock, free_port(), *serve)
        self.sites = [
            Service.of(folder.name, self.place, self.clock, free_port(), "site", "install", folder,
                       "--server", f"localhost:{port}", "--ca", authority)
            for folder in sorted((self.place / "sites").glob("site-?"))
        ]  # fmt: skip
        assert len(self.sites) == SITES
        with self._running():
            for day in range(self.days):
                self._live_a_day(day)
            self._renew()
            self._until(lambda: self.server.ended() == 0, "the run is over")
        self.figures["seconds"] = round(time.monotonic() - begun)
        self._look_at_what_is_left()
        return self.figures

    def _live_a_day(self, day: int) -> None:
        """Rounds of a day, the jump to the next, and the night's restarts."""
        wanted = (day + 1) * self.rounds_a_day
        self._until(lambda: self._rounds() >= wanted, f"{wanted} rounds")
        kept = self.sites[0]  # the one that is never started anew
        self.figures.setdefault("megabytes_of_a_site", []).append(round(kept.memory() / 2**20, 1))
        self.clock.move(DAY)
        self.sites[1 + day % (SITES - 1)].restart()
        if day % 2:
            self.server.restart()

    def _renew(self) -> None:
        """Come near the certificate's end, be warned, renew it, and go past the former end."""
        former = keys.server_expiry(self.place / "server")
        self.clock.move(former - WARNED_DAYS * DAY - self.clock.now())
        self._restart_all()
        for one in (self.server, *self.sites):
            self._until(lambda one=one: self._warned(one) > 0, f"{one.name} warns of the certificate")
        self.server.kill()
        assert self._rounds() < self.rounds, "the run is over too early: raise LAST_ROUNDS"
        renew = [sys.executable, "-P", "-m", "sordino", "serve", "renew"]
        subprocess.run(renew, cwd=self.place, env=dict(self.server.environment), check=True, capture_output=True)
        assert keys.server_expiry(self.place / "server") > former
        self.clock.move((WARNED_DAYS + 30) * DAY)
        before = {one.name: self._warned(one) for one in (self.server, *self.sites)}
        self._restart_all()
        expiry = "sordino_certificate_expiry_seconds"
        self._until(lambda: all(metrics(one.port).get(expiry, 0) > former for one in self.sites), "a new certificate")
        self._until(lambda: self.server.ended() == 0, "the run is over")
        assert {one.name: self._warned(one) for one in (self.server, *self.sites)} == before, (
            "there is nothing to warn of"
        )

    def _restart_all(self) -> None:
        for one in (self.server, *self.sites):
            one.restart()

    def _look_at_what_is_left(self) -> None:
        """Runs, ledgers and logs after it all."""
        (row,) = Store(self.place / "store").all()
        self.figures |= {"runs": 1, "rounds": row.rounds_done, "starts_of_server": self.server.starts}
        self.figures["starts_of_sites"] = [one.starts for one in self.sites]
        found = []
        for folder in sorted((self.place / "sites").glob("site-?")):
            with SiteLedger(folder) as ledger:
                asks = [tuple(one.content["ask"]) for one in ledger.entries() if one.kind == "release"]
            assert len(set(asks)) == len(asks), "nothing is paid twice"
            found.append(len(asks) - self.rounds)
        self.figures["attempts_paid_beyond_the_rounds"] = max(found)
        logs = {"site.log": "sites/site-0/site.log", "link.log": "server/link.log", "journal of a site": "site-0.log"}
        logs["journal of the server"] = "server.log"
        self.figures["bytes_of_logs"] = {name: (self.place / path).stat().st_size for name, path in logs.items()}

    def _rounds(self) -> int:
        with contextlib.suppress(Exception):
            return max((row.rounds_done for row in Store(self.place / "store").all()), default=0)
        return 0

    def _warned(self, service: Service) -> int:
        return sum("serve renew" in one.get("text", "") for one in lines(service.log))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; meanwhile start a server that has failed, as systemd does."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if self.server.ended() not in (None, 0) and not self.server.killed:
                self.figures["failures_of_server"] = self.figures.get("failures_of_server", 0) + 1
                self.server.start()
            for one in self.sites:
                assert one.ended() is None, f"{one.name} has ended: {one.log.read_text()[-2000:]}"
            told = {one.name: one.log.read_text()[-1500:] for one in (self.server, *self.sites)}
            assert time.monotonic() < end, f"it did not happen in time: {what}\n{json.dumps(told, indent=1)}"
            time.sleep(0.3)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        try:
            for one in (self.server, *self.sites):
                one.start()
            yield
        finally:
            for one in (self.server, *self.sites):
                one.kill()


def main(days: int = 7, rounds_a_day: int = 6) -> None:
    """Live through a week, and print its figures."""
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(Week(Path(place), days, rounds_a_day).live(), indent=1))


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:]))
