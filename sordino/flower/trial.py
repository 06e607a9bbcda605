"""Trials of a deployment on one machine, with the SuperLink and every site in a process of its own."""

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

from sordino.deploy.protocol.roster import read_roster, roster_toml
from sordino.deploy.server import coordinator
from sordino.deploy.server.journal import FILE as JOURNAL
from sordino.deploy.server.journal import DeploymentJournal
from sordino.deploy.site.rules import FILE as RULES
from sordino.deploy.site.site import Site
from sordino.deploy.terms import terms_of
from sordino.deploy.trial import add_accuracies, lay_out, read_origin
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.federation.rounds import Watch
from sordino.flower import keys, serving
from sordino.flower.carrier import FlowerCarrier
from sordino.flower.link import Link, free_port
from sordino.flower.node import ServerAddress, take_part
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.util.files import keep_rotating, rotate, write_output_to

STOP_SECONDS = 5.0
QUICK_POLL = 0.5
"""Longest pause between two requests of an idle site that shares its machine with the server, in seconds."""
WATCH_SECONDS = 0.2
"""Seconds from one look at the sites' processes to the next."""
SERVER = "server"
JOIN_LOG = "join.log"
STAMP = "%Y-%m-%d %H:%M:%S "
"""Time in front of each sentence of a site's log."""
LAST_BYTES = 4096
"""Number of bytes at the end of a site's log in which its last line is looked for."""
Tell = Callable[[str], None]


class SiteProcesses:
    """Processes of a trial's sites."""

    def __init__(self, folders: Sequence[Path], server: ServerAddress) -> None:
        self.folders, self.server = folders, server
        self.processes: dict[int, Path] = {}
        # The sites read from this pipe; it ends when this process does, however that happens, and they end with it.
        self._lifeline = os.pipe()

    def start(self, link: Link) -> None:
        """Fork a process for each site."""
        for folder in self.folders:
            process = os.fork()
            if process == 0:
                link.release_after_fork()
                self._run_site(folder)
            self.processes[process] = folder
        os.close(self._lifeline[0])

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
        os.close(self._lifeline[1])

    @contextlib.contextmanager
    def report_ended(self, tell: Tell) -> Iterator[None]:
        """Tell at once of sites that end during the block, with their own reason: a site may refuse to open."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_SECONDS):
                for folder, code in self._reap(os.WNOHANG):
                    if code:
                        tell(_explain_end(folder, code))

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _reap(self, options: int) -> list[tuple[Path, int]]:
        """Folders and exit codes of the sites whose processes have ended; `options` are those of `os.waitpid`."""
        ended = []
        for process in list(self.processes):
            code = 0
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(process, options)
                if found == 0:
                    continue
                code = os.waitstatus_to_exitcode(status)
            ended.append((self.processes.pop(process), code))
        return ended

    def _run_site(self, folder: Path) -> NoReturn:
        """Run the site in `folder`, in a forked process that exits with it."""
        code = 1
        try:
            os.setsid()  # Ctrl-C must reach the server only, which ends the sites
            os.close(self._lifeline[1])
            threading.Thread(target=_exit_with_parent, args=(self._lifeline[0],), daemon=True).start()
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


@dataclass(frozen=True)
class TrialProcesses:
    """Running processes of a trial."""

    carrier: FlowerCarrier
    sites: SiteProcesses


@contextlib.contextmanager
def run_processes(folder: Path, folders: Sequence[Path], max_answer_bytes: int) -> Iterator[TrialProcesses]:
    """Run a server and the processes of its sites until the end of the block.

    Args:
        folder: Folder of the trial, in which the server's keys are made.
        folders: The sites' folders.
        max_answer_bytes: Size of the largest answer of a site.
    """
    server = folder / SERVER
    if not (server / keys.AUTHORITY_KEY).exists():
        serving.create_server(server, ["localhost"])
    node_keys = [_connection_key(site) for site in folders]
    port = free_port()
    sites = SiteProcesses(folders, ServerAddress(f"127.0.0.1:{port}", server / keys.AUTHORITY))
    try:
        with serving.serve(server, ("127.0.0.1", port), node_keys, max_answer_bytes, sites.start) as carrier:
            yield TrialProcesses(carrier, sites)
    finally:
        sites.stop()
        shutil.rmtree(server / "home", ignore_errors=True)


def _connection_key(folder: Path) -> str:
    if not (folder / keys.NODE_KEY).exists():
        keys.make_node_key(folder)
    return keys.public_text(keys.node_key(folder))


def _exit_with_parent(lifeline: int) -> None:
    """Exit when the process that holds the other end of the pipe has ended."""
    os.read(lifeline, 1)
    os._exit(1)


def _say(sentence: str) -> None:
    os.write(2, f"{time.strftime(STAMP)}{sentence}\n".encode())


def _explain_end(folder: Path, code: int) -> str:
    """Sentence on why the process of the site in `folder` has ended with an exit code."""
    if code < 0:
        return f"The process of {folder.name} was killed by the signal {signal.Signals(-code).name}."
    with (folder / JOIN_LOG).open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_BYTES))
        last = log.read().decode(errors="replace").rstrip().rpartition("\n")[2]
    with contextlib.suppress(ValueError):  # a traceback has no time in front
        size = len(time.strftime(STAMP))
        time.strptime(last[:size], STAMP)
        last = last[size:]
    return f"{folder.name} does not take part: {last}"


TRIALS = "trials"
ROSTER = "roster.toml"


@dataclass(frozen=True)
class Trial:
    """A server and its sites, all running; no question has been asked yet."""

    processes: TrialProcesses
    store: Store
    folders: Sequence[Path]
    rounds: int
    begin: Callable[[Watch, Tell], Summary]

    def run(self, watch: Watch, tell: Tell) -> Summary:
        """Run the trial; its summary includes the accuracies at its sites."""
        with self.processes.sites.report_ended(tell):
            result = self.begin(watch, tell)
        result = add_accuracies(result, self.folders)
        self.store.resummarize(result.run, result.to_dict())
        return result


@contextlib.contextmanager
def open_trial(experiment: Experiment, sites: int, folder: Path) -> Iterator[Trial]:
    """Start the processes of a new trial.

    Args:
        experiment: A simulated experiment.
        sites: Number of sites to which its data are dealt.
        folder: Folder of the store that keeps the run.
    """
    store = Store(folder)
    where = _new_folder(folder / TRIALS)
    try:
        deployed, members, folders = lay_out(experiment, where, sites)
        coordinator.check_deployable(deployed)
    except BaseException:
        shutil.rmtree(where, ignore_errors=True)
        raise
    (where / ROSTER).write_text(roster_toml(members))
    begun = False

    def begin(watch: Watch, tell: Tell) -> Summary:
        nonlocal begun
        begun = True
        return coordinator.start(deployed, members, running.carrier, store, watch, tell, origin=read_origin(where))

    try:
        with run_processes(where, folders, terms_of(deployed).largest_answer) as running:
            yield Trial(running, store, folders, deployed.rounds, begin)
    finally:
        if not begun:  # no run will need these sites and their copies of the data
            shutil.rmtree(where, ignore_errors=True)


@contextlib.contextmanager
def resume_trial(run: str, folder: Path) -> Iterator[Trial]:
    """Start the processes of the trial whose `run`, in the store in `folder`, was stopped."""
    store = Store(folder, must_exist=True)
    row = store.get(run)
    if row.state == "running":  # check before starting anything: both would use one server's folder
        raise UserError(f"The run {run!r} is already running in another process.")
    where = _folder_of(run, store, folder / TRIALS)
    named = [where / member.name for member in read_roster(where / ROSTER)]
    folders = [path for path in named if (path / RULES).is_file()]  # a trial can continue without a lost site
    max_answer_bytes = terms_of(coordinator.deployed_experiment(run, store)).largest_answer
    with run_processes(where, folders, max_answer_bytes) as running:
        yield Trial(
            running,
            store,
            folders,
            row.rounds,
            lambda watch, tell: coordinator.resume(run, running.carrier, store, watch, tell),
        )


def _new_folder(trials: Path) -> Path:
    """Create the folder of a new trial, with the next free number."""
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
    """Folder of the trial whose sites take part in a run."""
    wanted = set()
    if (store.path(run) / JOURNAL).exists():
        with contextlib.closing(DeploymentJournal(store.path(run))) as journal:
            if journal.fact("run") is None:
                raise UserError(f"The run {run!r} was stopped before it began: start it anew.")
            wanted = {identity for _, identity in journal.fact("roster")}
    for path in sorted(trials.glob(f"*/{ROSTER}")):
        with contextlib.suppress(UserError):  # another trial's roster may be damaged
            if {member.identity.hex() for member in read_roster(path)} == wanted:
                return path.parent
    raise UserError(
        f"{run} is no trial on this machine: `sordino serve --resume {run}` continues a run with real sites, "
        f"`sordino resume {run}` a simulated one."
    )
