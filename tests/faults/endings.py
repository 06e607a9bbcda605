"""Kills and full disks at every call of a run's last saves, when everything has been paid for."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.cases import cases, checkpoints_every, folder_of, once, reference
from faults.kills import finished
from faults.processes import Copy, Outcome, count_into, die_at, full_at, options, sordino
from faults.trials import Check, Part, kept

SENTENCE = "a run that finds no room for its end ends with a sentence"
RESUMED = "a run stopped at its end can be resumed"
SAME = "a run stopped at its end is resumed to the same end"
CLEAN = "a run stopped at its end leaves no scraps"
SERVED = "a server stopped at its end is resumed to the same end"
CASES = (
    *("blends", "quantile clipping", "blends of clusters", "own method with rare state", "blends of records"),
    *("blends of a method that gives up", "budgets that are used up", "evaluated seldom"),
)
TRIALS = 200
DEPLOYED = 5
"""One trial of so many is about a server."""
STRIDE = 7
"""Between two trials of a case, in shares of its end: all of them cover it evenly, and so do a few."""


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """Stop a run at one of the calls after its rounds, and take it up."""
    place, rest = divmod(number, DEPLOYED)
    if rest == DEPLOYED - 1:
        yield from _served(draw, folder)
        return
    case = CASES[(number - place) % len(CASES)]
    known, store = reference(case), folder / "store"
    many = TRIALS * (DEPLOYED - 1) // DEPLOYED // len(CASES)
    turn = STRIDE * ((number - place) // len(CASES)) % many
    length = known.calls - known.trained
    call = known.trained + 1 + min(length - 1, int((turn + draw.random()) / many * length))
    full = draw.random() < 0.3

    def first() -> None:
        checkpoints_every(0)
        (full_at(call) if full else die_at(call, signal.SIGKILL, draw.random() < 0.5))()

    with Copy(sordino("run", *options(cases()[case]), "--json", "--store", store, first=first)) as copy:
        ended = copy.outcome()
    if ended.code == 0:
        return
    what = f"{case}, {'no room' if full else 'killed'} at call {call} of {known.trained} to {known.calls}"
    if full:
        yield kept(SENTENCE, ended.refused, f"{what}: {ended}")
    for check, promise in zip(finished(case, known, store, 1), (RESUMED, SAME, CLEAN), strict=False):
        yield Check(promise, None if check.failure is None else f"{what}: {check.failure}")


@dataclass(frozen=True)
class Deployment:
    """A server and its sites, laid out and never run, and what comes of them undisturbed."""

    folder: Path
    experiment: dict[str, Any]
    members: list[tuple[str, str]]
    calls: int
    seen: dict[str, Any]

    def session(self, folder: Path) -> dict[str, Any]:
        """Run it in a copy at `folder`, or take it up where it is under way; what is left of it."""
        from sordino.deploy.protocol.carrier import InProcessCarrier
        from sordino.deploy.protocol.roster import Member
        from sordino.deploy.server.coordinator import resume, start
        from sordino.deploy.server.trips import Deadlines
        from sordino.deploy.site.site import Site
        from sordino.errors import UserError
        from sordino.experiment.config import Experiment
        from sordino.store.store import Store

        members = [Member(name, bytes.fromhex(identity)) for name, identity in self.members]
        quick = Deadlines(hello=0.0, work=5.0, open=0.2, attempts=3)
        store = Store(folder / "store")
        with contextlib.ExitStack() as held:
            opened = [Site.open(folder / "sites" / one.name) for one in members]
            for site in opened:
                held.callback(site.close)
            carrier, runs = InProcessCarrier(opened), store.all()
            try:
                summary = resume(runs[0].run, carrier, store, deadlines=quick) if runs else None
            except UserError as error:
                if "before it began" not in str(error):
                    raise
                summary = None
            if summary is None:
                experiment = Experiment.make(self.experiment)
                summary = start(experiment, members, carrier, store, deadlines=quick)
        if self.experiment["noise"] != "integers":  # its noise is nobody's to repeat
            return {key: summary.to_dict()[key] for key in ("rounds_done", "epsilon", "notes")}
        models = (folder_of(store.folder, summary.run) / "models.safetensors").read_bytes()
        seen = {key: value for key, value in summary.to_dict().items() if key not in ("run", "seconds")}
        return {"summary": seen, "models": models.hex()}


@functools.cache
def deployment(early: bool) -> Deployment:
    """Three sites that take part in four rounds with noise from the seed, or, where it ends `early`, with noise of
    their own and budgets for a part of the rounds."""
    return once(f"deployment {early}", lambda folder: _deployment(early, folder))


def _deployment(early: bool, folder: Path) -> Deployment:
    def lay_out() -> int:
        from sordino.deploy.trial import lay_out
        from sordino.experiment.config import Experiment

        keys = {"data": "digits", "partition": "iid", "method": "dp-fedavg", "rounds": 4, "epsilon": 20.0}
        keys |= {"workers": 1, "personal": "blend", "model": "logistic", "set": {"epochs": 1, "batch": 64}}
        keys |= {} if early else {"noise": "integers"}
        original = Experiment.make(keys | {"store": folder / "store"})
        experiment, members, folders = lay_out(original, folder / "whole" / "sites", 3)
        for site in folders:
            rules = site / "site.toml"
            rules.write_text(rules.read_text().replace("max_epsilon = 20.0", "max_epsilon = 14.0"))
        known = [(one.name, one.identity.hex()) for one in members]
        print(json.dumps([experiment.model_dump(mode="json", exclude={"store"}), known]))
        return 0

    experiment, members = _told(lay_out).document
    blank = Deployment(folder / "whole", experiment, members, 0, {})
    note = folder / "calls"

    def undisturbed() -> int:
        shutil.copytree(blank.folder, folder / "copy")
        count_into(note)()
        print(json.dumps(blank.session(folder / "copy")))
        return 0

    seen = _told(undisturbed).document
    return Deployment(folder / "whole", experiment, members, int(note.read_text().split()[0]), seen)


def _told(action: Callable[[], object]) -> Outcome:
    with Copy(action) as copy:
        ended = copy.outcome()
    if ended.code != 0:
        raise RuntimeError(f"A deployment fails without any fault: {ended.err}")
    return ended


def _served(draw: random.Random, folder: Path) -> Iterator[Check]:
    """Kill a server with its sites in the last third of its calls, where its budget is used up or its rounds are."""
    known = deployment(draw.random() < 0.5)
    call = draw.randint(2 * known.calls // 3, known.calls)
    place = folder / "copy"
    shutil.copytree(known.folder, place)

    def dying() -> int:
        die_at(call, signal.SIGKILL)()
        known.session(place)
        return 0

    def again() -> int:
        print(json.dumps(known.session(place)))
        return 0

    with Copy(dying) as copy:
        copy.outcome()
    with Copy(again) as copy:
        ended = copy.outcome()
    same = ended.code == 0 and ended.document == known.seen
    yield kept(SERVED, same, f"killed at call {call} of {known.calls}: other results, or none: {ended}")


ENDINGS = Part("endings", (SENTENCE, RESUMED, SAME, CLEAN, SERVED), TRIALS, trial)
