"""From an experiment to its results: data, network, noise and a federation put together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino import compiling, models
from sordino.config import Experiment
from sordino.data import Dataset, FederatedData, federate, load
from sordino.errors import Stopped, UserError, WorkerError, quoted
from sordino.method import Budget, Method
from sordino.parameters import flatten
from sordino.parts.record_level import RecordLevel
from sordino.privacy.compiled import CompiledSum
from sordino.privacy.gate import Gate, Noise
from sordino.privacy.gradients import validation_records
from sordino.privacy.noise import Seeded
from sordino.privacy.plan import check_delta, cohort_size, default_delta, multiplier_for
from sordino.privacy.records import RecordPlan, plan_records
from sordino.selection import fewer, set_aside
from sordino.simulator import bf16
from sordino.simulator.checkpoint import remove_leftovers
from sordino.simulator.choice import Choice, choose
from sordino.simulator.engine import Engine
from sordino.simulator.federation import RoundReport, Simulator, mean, none
from sordino.simulator.memory import Memory, unused
from sordino.simulator.workers import Workers
from sordino.store import RunRow, Store, saving
from sordino.training import Learner

DEFAULT_EPSILON = 8.0
DEFAULT_CLIENTS = 100
NAMED = 10
"""How many clients a sentence names."""


@dataclass(frozen=True)
class Prepared:
    """An experiment ready to start: nothing has been trained, charged or written."""

    experiment: Experiment
    method: Method
    data: FederatedData
    learner: Learner
    public: Dataset | None
    """Records that belong to no client, where the method judges models on the server."""
    initial: Tensor
    choice: Choice
    """How it is executed, and why."""
    noise: Noise
    budget: Budget
    identity: str
    record_plan: RecordPlan | None
    """At record level: what each client's records pay."""
    compiled: CompiledSum | None
    """The compiled sum of clipped gradients, once it has been made."""
    notes: list[str]
    """What the user should know before the run."""


def deal(experiment: Experiment) -> FederatedData:
    """Load an experiment's data and deal them to clients."""
    return _deal(experiment, None)[0]


def _deal(experiment: Experiment, method: Method | None) -> tuple[FederatedData, Dataset | None]:
    """Records dealt to clients, and, where the method needs them, public ones that belong to no client."""
    dataset = load(experiment.data, experiment.data_dir, experiment.label, experiment.shape)
    if experiment.records is not None:
        dataset = fewer(dataset, experiment.records, experiment.seed)
    clients = experiment.clients
    if clients is None and dataset.owner is None:
        clients = DEFAULT_CLIENTS
    public = None
    planned = clients or len(dataset.owner_names)
    if experiment.public is not None or (method is not None and method.settled(planned).needs_public()):
        dataset, public = set_aside(dataset, experiment)
    dealt = federate(dataset, experiment.partition, clients, experiment.seed, experiment.test_fraction, experiment.test)
    return dealt, public


def prepare(experiment: Experiment, data: FederatedData | None = None, resumed: bool = False) -> Prepared:
    """Load the data (unless they are given, already dealt), build the network and derive the noise.

    A run that is `resumed` repeats what was decided when it began.
    """
    check_device(experiment.device)
    method = experiment.build_method()
    _check_execution(experiment, method)
    if experiment.precision == "bf16" and torch.device(experiment.device).type == "cpu":
        bf16.secure()  # before anything is computed here
    data, public = _deal(experiment, method) if data is None else (data, None)
    method = method.settled(len(data.clients))
    name = experiment.model or models.default(data.shape, data.classes)
    experiment = experiment.model_copy(update={"model": name})
    torch.manual_seed(Seeded(experiment.seed).key("initial model") >> 32)
    module = models.build(name, data.shape, data.classes, **experiment.model_options())
    coarse = bf16.decide(experiment.precision, experiment.device, module, data.shape, method.batch, resumed)
    experiment = experiment.model_copy(update={"precision": coarse.precision})
    learner, initial = Learner(module, experiment.precision), flatten(module)
    clients, cohort = len(data.clients), cohort_size(len(data.clients), experiment.participation)
    choice = choose(experiment, method, learner, data, cohort)
    experiment = experiment.model_copy(update={"engine": choice.engine})
    noise, delta, notes = _noise(experiment, method, data)
    record_plan = _record_plan(experiment, method, data, delta) if isinstance(method, RecordLevel) else None
    with single_threaded():
        decision = compiling.decide(experiment.compiled, method, module, data, record_plan, experiment.device)
    experiment = experiment.model_copy(update={"compiled": decision.compiled})
    choice = replace(choice, reasons=choice.reasons + decision.reasons + coarse.reasons)
    budget = Budget(
        rounds=experiment.rounds,
        clients=clients,
        cohort=cohort,
        turns=math.ceil(experiment.rounds * cohort / clients),
        delta=delta,
        multiplier=noise.multiplier if record_plan is None else float(np.median(record_plan.multipliers)),
    )
    return Prepared(
        experiment=experiment,
        method=method,
        data=data,
        public=public,
        learner=learner,
        initial=initial,
        choice=choice,
        noise=noise,
        budget=budget,
        identity=experiment.identity(data.fingerprint),
        record_plan=record_plan,
        compiled=decision.made,
        notes=notes + coarse.notes + method.notes(budget),
    )


def _check_execution(experiment: Experiment, method: Method) -> None:
    """Refuse ways to execute a run that do not go together."""
    if method.unit == "record" and experiment.engine == "stacked":
        raise UserError("Record-level methods train clients one by one: leave `engine` out.")
    if experiment.precision != "bf16":
        return
    if method.unit == "record":
        raise UserError("Record-level methods clip each record's gradient in fp32: leave `precision` out.")
    if experiment.engine == "stacked":
        raise UserError("bf16 is for networks that are trained one by one: leave `engine` or `precision` out.")


def check_device(name: str) -> None:
    """Refuse a device that torch does not know or this machine does not have."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise UserError(f'The device {quoted(name)} cannot be used here: {reason}. "cpu" always can.') from error
    if torch.device(name).type == "meta":
        raise UserError('The device "meta" computes nothing. "cpu" always does.')


def _noise(experiment: Experiment, method: Method, data: FederatedData) -> tuple[Noise, float, list[str]]:
    """How much noise the budget asks for, at which delta, and what to tell the user about it."""
    clients = len(data.clients)
    delta = experiment.delta or default_delta(clients)
    cohort = cohort_size(clients, experiment.participation)
    minimum = experiment.minimum_cohort or cohort
    if minimum > cohort:
        raise UserError(f"minimum_cohort is {minimum}, but a round has {cohort} clients.")
    if experiment.colluders >= minimum:
        raise UserError(f"With {experiment.colluders} colluders among {minimum} clients no honest noise is left.")
    if not method.is_private():
        return Noise(1.0, "server", minimum), delta, []
    if method.unit == "record":
        caveats = [method.caveats[method.variant]] if method.variant in method.caveats else []
        return Noise(1.0, "server", 1), delta, caveats
    published = method.variant == "paper"
    notes = check_delta(delta, clients, experiment.allow_vacuous_delta or published)
    multiplier = experiment.noise_multiplier
    if multiplier is None:
        epsilon = experiment.epsilon or DEFAULT_EPSILON
        if published:
            records = sum(len(client.y) for client in data.clients)
            multiplier = method.published_multiplier(epsilon, delta, experiment.rounds, records)
            if multiplier is not None:
                notes.append(
                    f"The published accounting asks for a noise multiplier of {multiplier:.3f} at epsilon "
                    f"{epsilon:g}; the true epsilon is computed from what really leaves."
                )
        if multiplier is None:
            turns = math.ceil(experiment.rounds * cohort / clients)
            multiplier = multiplier_for(epsilon, delta, turns)
    noise = Noise(multiplier, experiment.protect_from, minimum, experiment.colluders)
    return (
        noise,
        delta,
        notes + ([method.caveats[method.variant]] if method.variant in method.caveats else []),
    )


def _record_plan(experiment: Experiment, method: RecordLevel, data: FederatedData, delta: float) -> RecordPlan:
    """What each client's records pay: from the clients' budgets, or from a given noise multiplier."""
    clients, source = len(data.clients), Seeded(experiment.seed)
    cohort = cohort_size(clients, experiment.participation)
    turns = math.ceil(experiment.rounds * cohort / clients)
    epsilon = experiment.epsilon or DEFAULT_EPSILON
    budgets = method.client_budgets(clients, epsilon, np.random.default_rng(source.key("budgets")))
    multiplier = experiment.noise_multiplier
    if multiplier is not None and experiment.epsilon is None and method.budgets is None:
        budgets = np.full(clients, np.inf)  # the noise decides: nobody is stopped
    # Where the noise is given, who has budget left may take the turns of those who have none.
    takes_over = multiplier is not None and np.isfinite(budgets).all() and not method.metrics()
    share = method.validation_share()
    apart = [int(validation_records(len(c.y), share, source, i).sum()) for i, c in enumerate(data.clients)]
    sizes = [max(1, len(c.y) - held) for c, held in zip(data.clients, apart, strict=True)]
    plan = plan_records(
        sizes,
        budgets,
        delta,
        batch=method.batch,
        epochs=method.epochs,
        turns=experiment.rounds if takes_over else turns,
        multiplier=multiplier,
        matrix_share=method.matrix_share(),
        metrics=method.metrics(),
    )
    if not plan.turns.any():
        raise UserError(
            f"With a noise multiplier of {multiplier:g} not one round fits into any client's budget: give more noise, "
            "a larger epsilon, or only an epsilon and let the noise follow."
        )
    if method.variant == "paper" and multiplier is None:
        published = [method.published_multiplier(float(b), delta, turns, sum(sizes)) for b in budgets]
        if all(z is not None for z in published):
            return replace(plan, multipliers=np.array(published, dtype=float))
    return plan


Watch = Callable[[RoundReport], None]


def start(prepared: Prepared, store: Store | None = None, watch: Watch | None = None) -> dict[str, Any]:
    """Make a new run of a prepared experiment and return its summary."""
    prepared = _with_compiled(prepared)  # before anything is written: it may not be possible here
    experiment = prepared.experiment
    store = store or Store(experiment.store)
    run = store.create(
        f"{experiment.method.rpartition(':')[2]}-{prepared.data.name}",
        experiment.method,
        experiment.model_dump(mode="json", exclude={"store"}),
        prepared.identity,
        experiment.rounds,
    )
    return carry_on(prepared, store, run, watch)


def resume(run: str, store: Store, watch: Watch | None = None, workers: int | None = None) -> dict[str, Any]:
    """Take up a run where it was stopped; one that is done returns its summary again."""
    row = store.get(run)
    if row.state == "done":
        return _finished(row, store)
    changes = {"store": str(store.folder), "workers": workers or row.configuration.get("workers")}
    return carry_on(prepare(Experiment.make(row.configuration | changes), resumed=True), store, run, watch)


def carry_on(prepared: Prepared, store: Store, run: str, watch: Watch | None = None) -> dict[str, Any]:
    """Work on a run until it is done."""
    prepared = _with_compiled(prepared)
    experiment, method = prepared.experiment, prepared.method
    with store.lock(run), _resumable(run, store.folder), single_threaded(), saving(store.folder):
        row = store.get(run)  # again: another process may have been at work until now
        if row.state == "done":
            return _finished(row, store)
        blank = method.memory(prepared.initial) | method.public_memory(prepared.initial, prepared.learner.layout)
        memory = Memory(unused(store.path(run)), blank, len(prepared.data.clients))
        gate = Gate(prepared.noise, Seeded(experiment.seed), prepared.record_plan)
        choice = prepared.choice
        engine = Engine(
            method,
            prepared.learner,
            prepared.data,
            gate,
            memory,
            choice.engine,
            experiment.device,
            prepared.compiled,
        )
        workers = Workers(engine, choice.workers)
        try:
            federation = Simulator(
                store=store,
                run=run,
                experiment=prepared.identity,
                budget=prepared.budget,
                workers=workers,
                public=prepared.public,
                evaluate_every=experiment.evaluate_every,
                watch=watch,
            )
            method.run(federation, prepared.initial)
            return federation.finish(lambda personal, shared: summary(run, prepared, federation, personal, shared))
        finally:
            workers.close()
            memory.close()


def _finished(row: RunRow, store: Store) -> dict[str, Any]:
    """The summary of a finished run, if it is still all there. Nobody writes to it any more: it needs no lock."""
    assert row.summary is not None
    assert row.models is not None
    assert row.checkpoint is not None
    store.check(row.run)
    row.models.check(store.path(row.run), "The run is finished, but its file of models")
    with saving(store.folder):
        remove_leftovers(store.path(row.run), row.checkpoint.name, row.models.name)
    return row.summary


@contextlib.contextmanager
def _resumable(run: str, folder: Path) -> Iterator[None]:
    """Tell whoever stopped a run, or lost one of its processes, how it is taken up."""
    store = "" if folder == Path(".sordino") else f" --store {folder}"
    how = f"`sordino resume {run}{store}` takes the run up."
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(f"Stopped. {how}") from error
    except WorkerError as error:
        raise WorkerError(f"{error} {how}") from error


def _with_compiled(prepared: Prepared) -> Prepared:
    """With the compiled step where the experiment wants one: made before the workers are forked, which share it."""
    if prepared.experiment.compiled != "always" or prepared.compiled is not None:
        return prepared
    with single_threaded():
        made = compiling.compile_for(prepared.method, prepared.learner.written, prepared.data)
    return replace(prepared, compiled=made)


def summary(
    run: str, prepared: Prepared, federation: Simulator, personal: np.ndarray, shared: np.ndarray | None
) -> dict[str, Any]:
    """The result of a run. Accuracies are means over all clients, each on its own test records."""
    epsilon = federation.ledger.epsilon(prepared.budget.delta)
    return {
        "run": run,
        "method": prepared.experiment.method,
        "variant": prepared.method.variant,
        "rounds": prepared.experiment.rounds,
        "rounds_done": federation.rounds_done,
        "accuracy": {
            "personal": none(mean(personal)),
            "personal_worst": none(float(np.nanmin(personal))),
            "start": none(federation.start),
            "global": None if shared is None else none(mean(shared)),
        },
        "epsilon": {view: none(value) for view, value in epsilon.items()},
        "attack_accuracy": federation.ledger.attack_accuracy(),
        "delta": prepared.budget.delta,
        "unit": prepared.method.unit,
        "protect_from": prepared.experiment.protect_from,
        "noise_multiplier": prepared.budget.multiplier if prepared.method.is_private() else None,
        "not_covered": federation.ledger.reasons(),
        **_record_figures(prepared, federation),
        "upload_bytes": federation.uploaded,
        "clients": len(prepared.data.clients),
        "parameters": prepared.learner.layout.size,
        "seed": prepared.experiment.seed,
        "notes": prepared.notes + _if_public(federation, prepared) + _who_stopped(prepared, federation),
        "seconds": round(federation.seconds, 3),
    }


def _if_public(federation: Simulator, prepared: Prepared) -> list[str]:
    """What the noise alone would be worth, where something leaves bare beside it."""
    if not federation.ledger.reasons() or not prepared.method.is_private():
        return []
    covered = federation.ledger.covered_epsilon(prepared.budget.delta)
    figures = ", ".join(f"{value:.4g} for the {view}" for view, value in covered.items())
    return [f"If what leaves bare were public, epsilon would be {figures}."]


def _record_figures(prepared: Prepared, federation: Simulator) -> dict[str, Any]:
    """At record level: the spread of epsilon over clients, the figure for replacing a record, and who stopped."""
    if prepared.record_plan is None:
        return {}
    delta, ledger = prepared.budget.delta, federation.ledger
    values = sorted(ledger.record_epsilons(delta).values())
    replaced = max(ledger.record_epsilons(delta, replace=True).values(), default=0.0)
    return {
        "epsilon_clients": {"min": values[0], "median": float(np.median(values)), "max": values[-1]}
        if values
        else None,
        "epsilon_replace_one": none(replaced),
        "stopped_clients": list(federation.stopped()),
    }


def _who_stopped(prepared: Prepared, federation: Simulator) -> list[str]:
    """Whose budget was used up and when, who never took part, and whether the run ended before its last round."""
    stopped, notes = federation.stopped(), []
    by_round: dict[int, list[int]] = {}
    for client, number in stopped.items():
        by_round.setdefault(number, []).append(client)
    ends = [f"{_clients(by_round[number])} after round {number}" for number in sorted(by_round) if number]
    if ends:
        notes.append(f"Budgets were used up, and their clients took no further part: {'; '.join(ends)}.")
    if 0 in by_round:
        notes.append(f"Budgets too small for a single round; these never took part: {_clients(by_round[0])}.")
    unreached = [client for client in federation.never_asked() if client not in stopped]
    if prepared.record_plan is not None and unreached:
        notes.append(f"Rounds too few to reach everybody; these never took part: {_clients(unreached)}.")
    done, planned = federation.rounds_done, prepared.experiment.rounds
    if done < planned:
        everybody = len(stopped) == len(prepared.data.clients)
        why = "everybody's budget was used up" if everybody else "the method ended it"
        notes.append(f"The run ended after {done} of {planned} rounds: {why}.")
    return notes


def _clients(numbers: list[int]) -> str:
    """Clients by their numbers, the first few of many."""
    shown = ", ".join(str(number) for number in numbers[:NAMED])
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"client{'s' if len(numbers) > 1 else ''} {shown}{more}"


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """One thread for torch: workers are processes, and results do not depend on the machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
