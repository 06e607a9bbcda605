"""The coordinator: the server's side of a deployment, from the roster of its sites to the models it ends with.

Where records are protected, its ledger reserves budgets instead of adding up costs. How much noise a site's records get
depends on how many it has, and only the site knows. A site's plan keeps within its budget whatever the number of turns,
so the server charges the whole budget at a client's first turn and nothing later: as a promise of an epsilon at one
delta, which is all that it knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from sordino.assembly import assemble
from sordino.data import Dataset, load
from sordino.deploy import accuracies
from sordino.deploy.app import METHOD as APP_METHOD
from sordino.deploy.declarations import Origin
from sordino.deploy.protocol.carrier import Carrier
from sordino.deploy.protocol.roster import Member, check_members
from sordino.deploy.server.dry_run import try_script
from sordino.deploy.server.journal import FILE, DeploymentJournal, Heads
from sordino.deploy.server.questions import Sites
from sordino.deploy.server.trips import Deadlines
from sordino.deploy.terms import DeployedTerms, terms_of
from sordino.errors import Stopped, UserError
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import AT_SITES, DEFAULT_STORE
from sordino.experiment.result import Summary, summarize
from sordino.federation.client import STEP, Question
from sordino.federation.evaluation import NO_SHARED_MODEL, evaluate, message_of, whom_to_ask
from sordino.federation.rounds import Watch
from sordino.federation.run_state import Ending
from sordino.federation.server import Ground, Server
from sordino.federation.transport import OutOfBudgetError
from sordino.learning.network import Records
from sordino.method import Method
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row, seen_by
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Charge, Public, Releases
from sordino.privacy.unit import Unit
from sordino.privacy.views import View
from sordino.store import checkpoint as checkpoints
from sordino.store.checkpoint import Stream
from sordino.store.database import saving
from sordino.store.run_files import RunFiles
from sordino.store.spending import recipes_of_own_noise, to_be_kept
from sordino.store.store import NewRun, Store
from sordino.trained.models import feature_tensors, measured
from sordino.util.processes import single_threaded

PLAN = "plan"
"""Name of the release as which a client's whole budget is charged."""


class ReservingLedger(Ledger):
    """A ledger in which each client pays its whole budget once."""

    def __init__(self, delta: float, plan: RecordPlan, needs: RecordNeeds, unit: Unit = Unit.RECORD) -> None:
        """`plan` is that of clients with as many records as the experiment declares, `needs` what their steps need."""
        self._delta, self._plan, self._needs = delta, plan, needs
        super().__init__(len(plan.turns), unit)

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
            seen_by("server", one)
            for client in np.flatnonzero(taken).tolist()
            for one in recipes_of_own_noise(done, client, self._needs)
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


@dataclass(frozen=True)
class Script:
    """An app's side of a run at the server. Sites and costs know nothing of it."""

    method: Method
    """The experiment's method, with another `run`."""
    initial: Tensor
    """The model to begin with."""


def check_deployable(experiment: Experiment) -> None:
    """Refuse with a sentence what cannot be deployed, before anything is started."""
    terms = terms_of(experiment)
    try_script(terms, server_gate(terms), ground_of(experiment, terms))


def start(
    experiment: Experiment,
    roster: Sequence[Member],
    carrier: Carrier,
    store: Store,
    watch: Watch | None = None,
    tell: Tell | None = None,
    deadlines: Deadlines = DEADLINES,
    origin: Origin | None = None,
    script: Script | None = None,
) -> Summary:
    """Run an experiment at the sites of a roster, and return its summary.

    Args:
        experiment: The experiment, with everything that a deployment declares.
        roster: The sites, in the order of the clients' numbers.
        carrier: Brings messages to the sites' machines.
        store: Where the run is kept.
        watch: Is told how the run goes on.
        tell: Is told in sentences what happens between the rounds.
        deadlines: How long to wait for sites.
        origin: Given for a trial, all of whose data lie on this machine: they are the same people as in simulations.
        script: Given for an app: what the server does in the place of the method's own script.
    """
    terms = terms_of(experiment)
    if len(roster) != terms.schedule.clients:
        raise UserError(f"The roster names {len(roster)} sites, but the experiment declares {terms.schedule.clients}.")
    check_members(roster, "The roster")
    ground = ground_of(experiment, terms)
    try_script(terms, server_gate(terms), ground)
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
            unit=terms.unit,
            rounds=experiment.rounds,
            planned=to_be_kept(terms, deal),
        ),
    )
    with contextlib.closing(DeploymentJournal(store.path(run))) as journal:
        journal.set_fact("roster", [[member.name, member.identity.hex()] for member in roster])
        journal.set_fact("run", f"{run} {secrets.token_hex(16)}")
        if origin is not None:
            journal.set_fact("trial_of", origin.data)
            journal.set_fact("notes", list(origin.notes))
            journal.set_fact("disclosed", list(origin.disclosed))
    return _advance(run, terms, ground, carrier, store, watch, tell, deadlines, script)


def newest_run(experiment: Experiment, roster: Sequence[Member], store: Store) -> str | None:
    """Newest run of an experiment with the sites of a roster in a store, finished or not; None where there is none."""
    identity, wanted = terms_of(experiment).identity, [[member.name, member.identity.hex()] for member in roster]
    for row in store.all():
        if row.identity == identity and (store.path(row.run) / FILE).exists():
            with contextlib.closing(DeploymentJournal(store.path(row.run))) as journal:
                if journal.fact("run") is not None and journal.fact("roster") == wanted:
                    return row.run
    return None


def deployed_experiment(run: str, store: Store) -> Experiment:
    """Experiment of a deployed run; a simulated one is refused."""
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
    script: Script | None = None,
) -> Summary:
    """Resume a deployed run where it was stopped; one that is done returns its summary again. Arguments are those of
    `start`."""
    experiment = deployed_experiment(run, store)
    terms, is_done = terms_of(experiment), store.get(run).summary is not None
    if script is None and not is_done and experiment.method == APP_METHOD:  # its sites would pay for noise alone
        raise UserError(f"The run {run!r} is of an app: its PrivateStrategy takes it up, with resume={run!r}.")
    ground = None if is_done else ground_of(experiment, terms)
    return _advance(run, terms, ground, carrier, store, watch, tell, deadlines, script)


def _advance(
    run: str,
    terms: DeployedTerms,
    ground: Ground | None,
    carrier: Carrier,
    store: Store,
    watch: Watch | None,
    tell: Tell | None,
    deadlines: Deadlines,
    script: Script | None = None,
) -> Summary:
    """Work on a deployed run until it is done and all sites know; `ground` is None where the run itself is done."""
    with store.lock(run), single_threaded(), saving(store.folder, store.path(run)), contextlib.ExitStack() as closing:
        journal = DeploymentJournal(store.path(run))
        closing.callback(journal.close)
        if journal.fact("run") is None:
            raise UserError(f"The run {run!r} was stopped before it began: start it anew.")
        roster = [Member(name, bytes.fromhex(identity)) for name, identity in journal.fact("roster")]
        heads = Heads(store.folder)
        closing.callback(heads.close)
        gate = server_gate(terms)
        sites = Sites(terms, roster, carrier, journal, heads, gate, tell or _silent, deadlines)
        try:
            if ground is None:
                summary = Summary.from_dict(store.get(run).summary or {})
            else:
                run_files = closing.enter_context(contextlib.closing(_open_files(store, run, terms)))
                sites.presence.gather()
                played = terms if script is None else replace(terms, method=script.method)
                server = assemble(played, sites, run_files, gate=gate, ground=ground, watch=watch)
                initial = terms.initial if script is None else script.initial
                summary = _run_to_end(run, terms, server, initial, sites, gate, run_files, journal)
            # Only now: a site that has destroyed its keys could not go on with a run that is not yet saved.
            _end(run, sites, journal, store, patient=ground is None)
            return summary
        except KeyboardInterrupt as error:
            where = "" if store.folder == DEFAULT_STORE else f" --store {store.folder}"
            raise Stopped(f"Stopped. `sordino serve --resume {run}{where}` takes the run up.") from error


def _open_files(store: Store, run: str, terms: DeployedTerms) -> RunFiles:
    """Open the stored state of a deployed run. Every round is saved: sites would have to be asked, and pay, again."""
    plan, ledger = terms.allowance.records, terms.ledger()
    if plan is not None and plan.shared is None:
        ledger = ReservingLedger(terms.budget.delta, plan, terms.method.record_needs(), terms.unit)
    return RunFiles(store, run, terms.identity, ledger, saves_every_round=True)


def _run_to_end(
    run: str,
    terms: DeployedTerms,
    server: Server,
    initial: Tensor,
    sites: Sites,
    gate: Gate,
    run_files: RunFiles,
    journal: DeploymentJournal,
) -> Summary:
    """Run the method's script to its end, and store its models and summary."""
    notes, early = [*(journal.fact("notes") or []), *terms.notes], False
    try:
        server.run_script(initial)
    except OutOfBudgetError:
        early = True
        notes.append(f"The run ended early: too few sites had budget left for another question.{_spare(terms)}")
    ending, names = server.end(), sites.names()
    models = _save_models(run, terms, ending, names, run_files.folder)
    found, deviation = _shared_accuracies(terms, ending, sites, gate, run_files, early)
    evaluation, told = _evaluation(terms, ending, sites, gate, run_files, early)
    notes += told
    summary = summarize(run, terms, ending, run_files, names, np.full(terms.schedule.clients, np.nan))
    summary = replace(summary, deployed=True, trial_of=journal.fact("trial_of"), evaluation=evaluation)
    summary = add_disclosed(summary, journal.fact("disclosed"))
    if found:
        summary = replace(summary, accuracy={**summary.accuracy, **found}, accuracy_noise=deviation)
        notes.append(f"Accuracies are means over the sites that were asked, with noise of deviation {deviation:.1%}.")
    summary = replace(summary, notes=notes + [note for note in summary.notes if note not in notes])
    run_files.save(ending.now, summary, models)
    return summary


def add_disclosed(summary: Summary, disclosed: Sequence[str] | None) -> Summary:
    """Add to a trial's summary what was read from its records and shown to its user, who owns all of its sites."""
    known = summary.not_covered
    return replace(summary, not_covered=[*(one for one in disclosed or () if one not in known), *known])


def _spare(terms: DeployedTerms) -> str:
    """Advice where a run that protects records ended early: what it may cost was reserved beforehand."""
    if not terms.method.unit.record_level:
        return ""
    return " Attempts that fail use up rounds: `spare_turns` in the experiment reserves budget for some of them."


def _shared_accuracies(
    terms: DeployedTerms, ending: Ending, sites: Sites, gate: Gate, run_files: RunFiles, early: bool
) -> tuple[dict[str, float], float]:
    """Mean accuracies that sites share with the server, and the deviation of their noise; empty where no part of the
    budget is kept for them, or the run ended `early` because budgets were used up."""
    if not terms.experiment.metrics_share or early:
        return {}, 0.0
    schedule, served = terms.schedule, ending.served
    told = accuracies.make_message(served.models[0].clone() if served is not None and len(served.models) == 1 else None)
    drawn = torch.randperm(schedule.clients, generator=gate.source.generator(accuracies.STEP))
    who = sorted(drawn[: schedule.cohort].tolist())
    question = Question(ending.now.questions, schedule.rounds, accuracies.STEP, told, who)
    return accuracies.collect(sites.ask, question, terms.steps()[accuracies.STEP], gate, run_files)


def _evaluation(
    terms: DeployedTerms, ending: Ending, sites: Sites, gate: Gate, run_files: RunFiles, early: bool
) -> tuple[dict[str, Any] | None, list[str]]:
    """Figures of the server's model from a noised histogram of all test records, and notes; nothing where it is not
    paid for, or the run ended `early` because budgets were used up."""
    if not terms.evaluation or early:
        return None, []
    served = ending.served
    if served is None or len(served.models) != 1:
        return None, [NO_SHARED_MODEL]
    # Behind the question for accuracies, where there is one.
    number = ending.now.questions + bool(terms.experiment.metrics_share)
    message, who = message_of(served.models[0].clone()), whom_to_ask(terms.schedule, gate)
    question = Question(number, terms.schedule.rounds, STEP, message, who)
    found = evaluate(sites.ask, question, terms.steps(), gate, run_files, terms.learner.task)
    return found.to_dict(), found.notes()


def _end(run: str, sites: Sites, journal: DeploymentJournal, store: Store, patient: bool) -> None:
    """Give every site that can be reached its own models, and let it destroy its keys of the run; `patient` says
    whether to wait for sites."""
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

    if sites.end(models, patient):
        journal.set_fact("ended", True)


def server_gate(terms: DeployedTerms) -> Gate:
    """Gate with which the server reads sums and messages. It draws no noise; the server's own choices follow from the
    seed."""
    return Gate(terms.allowance, Seeded(terms.experiment.seed, terms.identity), MECHANISMS["integers"])


def ground_of(experiment: Experiment, terms: DeployedTerms) -> Ground:
    """Public facts about the data and the network, with the public records where the method needs them."""
    records = None
    if terms.method.needs_public() or experiment.public is not None:
        public = _public(experiment, terms)
        source = Seeded(terms.experiment.seed, terms.identity)
        records = Records(public.x, public.y, terms.learner, source.key("public") >> 32)
    return Ground(terms.learner.layout, math.prod(terms.seen_shape), terms.learner.task, records)


def _public(experiment: Experiment, terms: DeployedTerms) -> Dataset:
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
    return found if terms.extractor is None else replace(found, x=terms.extractor.apply(found.x))


def _save_models(
    run: str, terms: DeployedTerms, ending: Ending, names: Sequence[str], folder: Path
) -> checkpoints.KeptFile:
    """Write the server's models and their description; personal models and their metrics are at the sites."""
    unknown = np.full((terms.schedule.clients, len(terms.learner.task.metrics)), np.nan)
    tensors = {"clients": torch.zeros(0, dtype=torch.int64), **measured(unknown), **feature_tensors(terms.extractor)}
    if ending.served is not None:
        tensors |= ending.served.tensors()
    streams = {"personal": Stream(0, terms.learner.layout.size, [])}
    about = terms.described(run, names)
    return checkpoints.write_models(tensors, streams, folder / checkpoints.MODELS, about.metadata())


def _silent(sentence: str) -> None:
    """Nobody watches."""
