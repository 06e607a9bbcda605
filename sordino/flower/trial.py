"""A trial of a deployment on one machine: the SuperLink and every site in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from sordino.deploy.protocol.roster import read_roster, written_roster
from sordino.deploy.server import coordinator
from sordino.deploy.server.journal import FILE as JOURNAL
from sordino.deploy.server.journal import Journal
from sordino.deploy.site.rules import FILE as RULES
from sordino.deploy.site.site import Site
from sordino.deploy.terms import terms_of
from sordino.deploy.trial import lay_out, read_origin, with_accuracies
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.federation.rounds import Watch
from sordino.flower import keys, serving
from sordino.flower.carrier import FlowerCarrier
from sordino.flower.link import Link, free_port
from sordino.flower.node import Server, take_part
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.util.files import keep_rotating, rotate, write_output_to

STOP_SECONDS = 5.0
QUICK_POLL = 0.5
"""How long a site that shares its machine with the server waits between questions at the most, in seconds."""
SERVER = "server"
JOIN_LOG = "join.log"


class Household:
    """The processes of a trial's sites."""

    def __init__(self, folders: Sequence[Path], server: Server) -> None:
        self.folders, self.server = folders, server
        self.processes: dict[int, Path] = {}
        self._leash = os.pipe()

    def start(self, link: Link) -> None:
        """Fork a process for each site."""
        for folder in self.folders:
            process = os.fork()
            if process == 0:
                link.forget()
                self._live(folder)
            self.processes[process] = folder
        os.close(self._leash[0])

    def stop(self) -> None:
        """End the processes and wait for them."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while self.processes and time.monotonic() < until:
            self._reap(os.WNOHANG)
            time.sleep(0.05)
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        self._reap(0)
        os.close(self._leash[1])

    def _reap(self, options: int) -> None:
        for process in list(self.processes):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(process, options)[0] == 0:
                    continue
            del self.processes[process]

    def _live(self, folder: Path) -> NoReturn:
        """A site's process."""
        code = 1
        try:
            os.setsid()  # Ctrl-C is for the server, which ends the sites
            os.close(self._leash[1])
            threading.Thread(target=_follow, args=(self._leash[0],), daemon=True).start()
            sys.stdout.flush()
            sys.stderr.flush()
            rotate(folder / JOIN_LOG)
            write_output_to(folder / JOIN_LOG)
            keep_rotating(folder / JOIN_LOG)
            leaving = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: leaving.set())
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            torch.set_num_threads(1)
            site = Site.open(folder)
            try:
                take_part(site.answer, self.server, folder, _say, leaving.is_set, QUICK_POLL)
            finally:
                site.close()
            code = 0
        except UserError as error:
            _say(str(error))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)


@contextlib.contextmanager
def household(folder: Path, folders: Sequence[Path], largest: int) -> Iterator[FlowerCarrier]:
    """Run a server in `folder` and its sites in `folders` until the end of the block; a site's answer has at most
    `largest` bytes."""
    server = folder / SERVER
    if not (server / keys.AUTHORITY_KEY).exists():
        serving.init(server, ["localhost"])
    node_keys = [_connection_key(site) for site in folders]
    port = free_port()
    sites = Household(folders, Server(f"127.0.0.1:{port}", server / keys.AUTHORITY))
    try:
        with serving.serving(server, ("127.0.0.1", port), node_keys, largest, sites.start) as carrier:
            yield carrier
    finally:
        sites.stop()
        shutil.rmtree(server / "home", ignore_errors=True)


def _connection_key(folder: Path) -> str:
    if not (folder / keys.NODE_KEY).exists():
        keys.make_node_key(folder)
    return keys.public_text(keys.node_key(folder))


def _follow(leash: int) -> None:
    """End when the process that started this one has ended."""
    os.read(leash, 1)
    os._exit(1)


def _say(sentence: str) -> None:
    os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sentence}\n".encode())


TRIALS = "trials"
ROSTER = "roster.toml"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """A server and its sites, all running; nothing has been asked yet."""

    carrier: FlowerCarrier
    store: Store
    folders: Sequence[Path]
    rounds: int
    begin: Callable[[Watch, Tell], Summary]

    def run(self, watch: Watch, tell: Tell) -> Summary:
        """The run, with the accuracies that a trial may read at its sites."""
        result = self.begin(watch, tell)
        return with_accuracies(result, self.folders)


@contextlib.contextmanager
def new(experiment: Experiment, sites: int, folder: Path) -> Iterator[Trial]:
    """A trial of an experiment with so many sites, in a store's folder."""
    store = Store(folder)
    where = _new_folder(folder / TRIALS)
    try:
        deployed, members, folders = lay_out(experiment, where, sites)
        coordinator.check_deployable(deployed)
    except BaseException:
        shutil.rmtree(where, ignore_errors=True)
        raise
    (where / ROSTER).write_text(written_roster(members))
    begun = False

    def begin(watch: Watch, tell: Tell) -> Summary:
        nonlocal begun
        begun = True
        return coordinator.start(deployed, members, carrier, store, watch, tell, origin=read_origin(where))

    try:
        with household(where, folders, terms_of(deployed).largest_answer) as carrier:
            yield Trial(carrier, store, folders, deployed.rounds, begin)
    finally:
        if not begun:  # no run will ever need these sites and their copies of the data
            shutil.rmtree(where, ignore_errors=True)


@contextlib.contextmanager
def taken_up(run: str, folder: Path) -> Iterator[Trial]:
    """The trial of a run that was stopped."""
    store = Store(folder, must_exist=True)
    row = store.get(run)
    if row.state == "running":  # before anything is started: both would share a server's folder
        raise UserError(f"The run {run!r} is already running in another process.")
    where = _folder_of(run, store, folder / TRIALS)
    named = [where / member.name for member in read_roster(where / ROSTER)]
    folders = [path for path in named if (path / RULES).is_file()]  # enough may be left where a site is lost
    largest = terms_of(coordinator.deployed_experiment(run, store)).largest_answer
    with household(where, folders, largest) as carrier:
        yield Trial(
            carrier,
            store,
            folders,
            row.rounds,
            lambda watch, tell: coordinator.resume(run, carrier, store, watch, tell),
        )


def _new_folder(trials: Path) -> Path:
    """A folder that was not there."""
    trials.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.name) for path in trials.iterdir() if path.name.isdecimal()), default=0)
    while True:
        try:
            (trials / str(number)).mkdir()
        except FileExistsError:
            number += 1
        else:
            return trials / str(number)


def _folder_of(run: str, store: Store, trials: Path) -> Path:
    """The folder of the trial with the sites of a run."""
    wanted = set()
    if (store.path(run) / JOURNAL).exists():
        with contextlib.closing(Journal(store.path(run))) as journal:
            if journal.fact("run") is None:
                raise UserError(f"The run {run!r} was stopped before it began: start it anew.")
            wanted = {identity for _, identity in journal.fact("roster")}
    for path in sorted(trials.glob(f"*/{ROSTER}")):
        with contextlib.suppress(UserError):  # another trial's roster may be damaged
            if {member.identity.hex() for member in read_roster(path)} == wanted:
                return path.parent
    raise UserError(
        f"{run} is no trial on this machine: `sordino serve --resume {run}` takes up runs with real sites, "
        f"`sordino resume {run}` simulated ones."
    )
