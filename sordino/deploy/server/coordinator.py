"""The server's ledger where records are protected: it knows what each site's plan may cost, not what has been paid.

How much noise a site's records get depends on how many it has, and only the site knows. Its plan keeps within its
budget whatever the number of turns, so the server charges the whole budget at a client's first turn, and nothing later:
as a promise of an epsilon at one delta, which is all that it knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from sordino.data import Dataset, load
from sordino.deploy import accuracies
from sordino.deploy.declared import Origin
from sordino.deploy.protocol.carrier import Carrier
from sordino.deploy.protocol.roster import Member, check_members
from sordino.deploy.server.dry_run import rehearse
from sordino.deploy.server.journal import FILE, Heads, Journal
from sordino.deploy.server.questions import Sites
from sordino.deploy.server.trips import Deadlines
from sordino.deploy.terms import Terms, terms_of
from sordino.errors import Stopped, UserError
from sordino.experiment.config import AT_SITES, Experiment
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.experiment.result import Summary, summarize
from sordino.federation.client import Question
from sordino.federation.rounds import Watch
from sordino.federation.run_state import Ending
from sordino.federation.server import Ground, Server
from sordino.federation.transport import OutOfBudgetError
from sordino.learning.network import Records
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_plan import RecordNeeds, RecordPlan
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Charge, Public, Releases
from sordino.privacy.views import View
from sordino.simulator.memory import Memory
from sordino.store import checkpoint as checkpoints
from sordino.store.checkpoint import Stream
from sordino.store.database import saving
from sordino.store.run_files import RunBooks
from sordino.store.spending import planned_recipes, to_be_kept
from sordino.store.store import NewRun, Store
from sordino.trained.models import measured
from sordino.util.processes import single_threaded

PLAN = "plan"
"""The name under which a client's whole budget is charged."""


class ReservingLedger(Ledger):
    """A ledger in which each client pays its whole budget once."""

    def __init__(self, rows: Iterable[Row], delta: float, plan: RecordPlan, needs: RecordNeeds) -> None:
        """`plan` is that of clients with as many records as the experiment declares, `needs` what their steps need."""
        self._delta, self._plan, self._needs = delta, plan, needs
        super().__init__(len(plan.turns), "record", rows)

    def epsilon_so_far(self, delta: float) -> dict[View, float]:
        """Epsilon of the turns so far at a site with as many records as are declared, since other sites' noise is not
        known here. Once a client has taken all of its turns, or where no epsilon holds, the reserved epsilon."""
        reserved = self.epsilon(delta)
        names = {row.release for row in self.rows} - {PLAN}
        taken = np.max([self.times(name) for name in names], axis=0, initial=0)
        if self.reasons() or (taken >= self._plan.turns).any():
            return reserved
        done = replace(self._plan, turns=taken)
        recipes = {
            one for client in np.flatnonzero(taken).tolist() for one in planned_recipes(done, client, self._needs)
        }
        spent = max((record_epsilon(recipe, delta) for recipe in recipes), default=0.0)
        return {view: min(spent, most) for view, most in reserved.items()}

    def charge(
        self, releases: Releases, question: int, round: int, step: str, allowance: Allowance, public: Public
    ) -> list[Row]:
        budgets, paid = allowance.of_records.budgets, self.times(PLAN)
        new = [client for client in public.clients if not paid[client]]
        rows = [Row.of((question, round, step, name), public.clients, Charge.nothing()) for name in releases]
        if new:
            whole = Charge.promised([(float(budgets[client]), self._delta) for client in new])
            whole = whole.known(allowance.known) if allowance.known else whole
            rows.append(Row.of((question, round, step, PLAN), new, whole))
        for row in rows:
            self.append(row)
        return rows


Tell = Callable[[str], None]
DEADLINES = Deadlines()


def check_deployable(experiment: Experiment) -> None:
    """Refuse with a sentence what cannot be deployed, before anything is started."""
    terms = terms_of(experiment)
    rehearse(terms, ground_of(experiment, terms))


def start(
    experiment: Experiment,
    roster: Sequence[Member],
    carrier: Carrier,
    store: Store,
    watch: Watch | None = None,
    tell: Tell | None = None,
    deadlines: Deadlines = DEADLINES,
    origin: Origin | None = None,
) -> Summary:
    """Run an experiment at the sites of a roster, whose order is that of the clients' numbers. `origin` is given for a
    trial, all of whose data lie on this machine: they are the same people as in simulations."""
    terms = terms_of(experiment)
    if len(roster) != terms.schedule.clients:
        raise UserError(f"The roster names {len(roster)} sites, but the experiment declares {terms.schedule.clients}.")
    check_members(roster, "The roster")
    rehearse(terms, ground_of(experiment, terms))
    sites = hashlib.sha256(b"".join(sorted(member.identity for member in roster))).hexdigest()
    # A site is the same client in every run, whatever records it has; a trial's sites are made for one run.
    people, deal = (sites, sites) if origin is None else (origin.people, origin.deal)
    run = store.create(
        f"{experiment.method.rpartition(':')[2]}-deployed",
        NewRun(
            method=experiment.method,
            configuration=experiment.model_dump(mode="json", exclude={"store"}) | {"data": AT_SITES},
            identity=terms.identity,
            people=people,
            unit=terms.method.unit,
            rounds=experiment.rounds,
            planned=to_be_kept(terms, deal),
        ),
    )
    with contextlib.closing(Journal(store.path(run))) as journal:
        journal.decide("roster", [[member.name, member.identity.hex()] for member in roster])
        journal.decide("run", f"{run} {secrets.token_hex(16)}")
        if origin is not None:
            journal.decide("trial_of", origin.data)
    return resume(run, carrier, store, watch, tell, deadlines)


def deployed_experiment(run: str, store: Store) -> Experiment:
    """The experiment of a deployed run."""
    row = store.get(run)
    if not (store.path(run) / FILE).exists():
        raise UserError(f"The run {run!r} is a simulation: `sordino resume {run}` takes it up.")
    return Experiment.make(row.configuration)


def resume(
    run: str,
    carrier: Carrier,
    store: Store,
    watch: Watch | None = None,
    tell: Tell | None = None,
    deadlines: Deadlines = DEADLINES,
) -> Summary:
    """Take up a deployed run where it was stopped; one that is done returns its summary again."""
    experiment = deployed_experiment(run, store)
    row, terms = store.get(run), terms_of(experiment)
    with store.lock(run), single_threaded(), saving(store.folder), contextlib.ExitStack() as closing:
        journal = Journal(store.path(run))
        closing.callback(journal.close)
        if journal.fact("run") is None:
            raise UserError(f"The run {run!r} was stopped before it began: start it anew.")
        roster = [Member(name, bytes.fromhex(identity)) for name, identity in journal.fact("roster")]
        heads = Heads(store.folder)
        closing.callback(heads.close)
        sites = Sites(terms, roster, carrier, journal, heads, server_gate(terms), tell or _silent, deadlines)
        try:
            summary = cast(Summary | None, row.summary)
            if summary is None:
                trial_of = journal.fact("trial_of")
                summary = _carried_on(run, terms, ground_of(experiment, terms), sites, store, watch, closing, trial_of)
            # Only now: a site that has destroyed its keys could not go on with a run that is not yet saved.
            _end(run, sites, journal, store)
            return summary
        except KeyboardInterrupt as error:
            where = "" if store.folder == DEFAULT_STORE else f" --store {store.folder}"
            raise Stopped(f"Stopped. `sordino serve --resume {run}{where}` takes the run up.") from error


def _carried_on(
    run: str,
    terms: Terms,
    ground: Ground,
    sites: Sites,
    store: Store,
    watch: Watch | None,
    closing: contextlib.ExitStack,
    trial_of: str | None,
) -> Summary:
    method, clients = terms.method, terms.schedule.clients
    # Clients remember at their sites; here there is nothing to remember.
    memory = Memory(store.path(run), {"nothing": torch.zeros(0)}, clients)
    closing.callback(memory.close)
    books = RunBooks(store, run, terms.identity, memory, method.unit, clients)
    closing.callback(books.close)
    plan = terms.allowance.records
    if plan is not None:
        books.ledger = ReservingLedger(books.ledger.rows, terms.budget.delta, plan, method.record_needs())
    sites.presence.gather()
    server = Server(
        method,
        terms.schedule,
        terms.budget,
        server_gate(terms),
        sites,
        books,
        ground,
        terms.experiment.evaluate_every,
        watch,
        save_seconds=0.0,
        averages=terms.experiment.personal == "blend",
    )
    notes = list(terms.notes)
    try:
        server.run_script(terms.initial)
    except OutOfBudgetError:
        notes.append("The run ended early: too few sites had budget left for another question.")
    ending = server.end()
    names = sites.names()
    models = _save_models(run, terms, ending, names, store.path(run))
    found, deviation = _shared_accuracies(terms, ending, sites, books, early=len(notes) > len(terms.notes))
    summary = summarize(run, terms, ending, books, names, np.full(clients, np.nan))
    summary["deployed"] = True
    if trial_of is not None:
        summary["trial_of"] = trial_of
    if found:
        summary["accuracy"] = {**summary["accuracy"], **found}
        summary["accuracy_noise"] = deviation
        notes.append(f"Accuracies are means over the sites that were asked, with noise of deviation {deviation:.1%}.")
    summary["notes"] = notes + [note for note in summary["notes"] if note not in notes]
    books.save(ending.now, summary, models)
    return summary


def _shared_accuracies(
    terms: Terms, ending: Ending, sites: Sites, books: RunBooks, early: bool
) -> tuple[dict[str, float], float]:
    """The accuracies that sites share with the server, where part of the budget is kept for them and is left."""
    if not terms.experiment.metrics_share or early:
        return {}, 0.0
    gate, schedule = server_gate(terms), terms.schedule
    served = ending.served
    told = accuracies.message(served.models[0].clone() if served is not None and len(served.models) == 1 else None)
    drawn = torch.randperm(schedule.clients, generator=gate.source.generator(accuracies.STEP))
    who = sorted(drawn[: schedule.cohort].tolist())
    question = Question(ending.now.questions, schedule.rounds, accuracies.STEP, told, who)
    return accuracies.shared(sites.ask, question, terms.steps()[accuracies.STEP], gate, books)


def _end(run: str, sites: Sites, journal: Journal, store: Store) -> None:
    """Give every site that can be reached the models that are its own, and let it destroy its keys of the run."""
    if journal.fact("ended"):
        return
    kept = store.get(run).models
    assert kept is not None
    tensors = load_file(kept.check(store.path(run), "The run is finished, but its file of models"))
    stored = {"model": "global", "averaged": "averaged"}
    given = {word: tensors[name] for word, name in stored.items() if name in tensors}
    clusters = tensors.get("clusters")

    def models(number: int) -> dict[str, Tensor]:
        return given if clusters is None else {word: rows[int(clusters[number])] for word, rows in given.items()}

    if sites.end(models):
        journal.decide("ended", True)


def server_gate(terms: Terms) -> Gate:
    """What the server reads sums and messages with. It draws no noise, and its own choices follow from the seed."""
    return Gate(terms.allowance, Seeded(terms.experiment.seed, terms.identity), MECHANISMS["integers"])


def ground_of(experiment: Experiment, terms: Terms) -> Ground:
    """What the server knows of the data and the network, with the public records where the method needs them."""
    records = None
    if terms.method.needs_public() or experiment.public is not None:
        public = _public(experiment, terms)
        source = Seeded(terms.experiment.seed, terms.identity)
        records = Records(public.x, public.y, terms.learner, source.key("public") >> 32)
    return Ground(terms.learner.layout, math.prod(terms.shape), terms.learner.task, records)


def _public(experiment: Experiment, terms: Terms) -> Dataset:
    name = experiment.public
    if name is None or name == "default" or name.startswith("holdout"):
        raise UserError(
            "This method judges models on public records at the server, and those of the sites are not public: name "
            "other data of the same shape with the key `public`."
        )
    reading = experiment.reading()
    if reading.schema is None:
        reading = replace(reading, labels=terms.labels, shape=terms.shape)
    found = load(name, experiment.data_dir, reading)
    if tuple(found.x.shape[1:]) != terms.shape or not terms.learner.task.admits(found.task):
        raise UserError(
            f"The public data {name!r} do not fit: their records have shape {tuple(found.x.shape[1:])} and "
            f"{found.task}, but the experiment declares {terms.shape} and {len(terms.labels)}."
        )
    return found


def _save_models(run: str, terms: Terms, ending: Ending, names: Sequence[str], folder: Path) -> checkpoints.KeptFile:
    """Write the server's models and what they mean; personal ones, and how they do, are at the sites."""
    unknown = np.full((terms.schedule.clients, len(terms.learner.task.metrics)), np.nan)
    tensors = {"clients": torch.zeros(0, dtype=torch.int64), **measured(unknown)}
    if ending.served is not None:
        tensors |= ending.served.tensors()
    streams = {"personal": Stream(0, terms.learner.layout.size, [])}
    about = terms.described(run, names)
    return checkpoints.write_models(tensors, streams, folder / checkpoints.MODELS, about.metadata())


def _silent(sentence: str) -> None:
    """Nobody watches."""
