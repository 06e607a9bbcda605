"""A trial of a deployment, from an experiment to its summary; what it needs lies in the store, so that it resumes.

STORE/trials/NUMBER/site-0 ...    the sites, their data among it
STORE/trials/NUMBER/server        the server's keys
STORE/trials/NUMBER/roster.toml   by which the trial of a run is found
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.deploy import coordinator
from sordino.deploy.journal import FILE as JOURNAL
from sordino.deploy.journal import Journal
from sordino.deploy.roster import read_roster, written_roster
from sordino.deploy.rules import FILE as RULES
from sordino.deploy.terms import terms_of
from sordino.deploy.trial import lay_out, read_origin, with_accuracies
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.store import Store
from sordino.experiment.summary import Summary
from sordino.flower.carrier import FlowerCarrier
from sordino.flower.household import household
from sordino.rounds import Watch

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
