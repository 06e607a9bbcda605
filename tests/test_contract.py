"""What every method must hold, in both variants. A method takes part by being listed as an entry point."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chi2

from sordino.experiment.config import Experiment
from sordino.data import ClientData, FederatedData
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import carry_on, resume, start
from sordino.method import Budget, Method
from sordino.methods import find, names
from sordino.privacy.accountant import epsilon_of
from sordino.privacy.gate import Gate, UndeclaredReleaseError
from sordino.privacy.ledger import VIEWS, Ledger
from sordino.privacy.noise import Seeded
from sordino.privacy.records import RecordPlan, record_epsilon
from sordino.privacy.release import Derived, Number, Public, Update
from sordino.simulator.engine import Engine, Work
from sordino.simulator.memory import Memory
from sordino.experiment.store import Store

ALL = [(name, variant) for name in names() for variant in ("sound", "paper")]
STACKED = [(name, variant) for name, variant in ALL if find(name).unit == "client"]
ENGINES = [(*case, "one-by-one") for case in ALL] + [(*case, "stacked") for case in STACKED]
PROTECTED = [(*case, "outsider") for case in ALL] + [(*case, "server") for case in STACKED]
every_method = pytest.mark.parametrize(("name", "variant"), ALL)
CLIENTS, ROUNDS = 6, 3


def experiment(name: str, variant: str, folder: Path, **keys: Any) -> Experiment:
    defaults = {
        "data": "digits",
        "clients": CLIENTS,
        "partition": "dirichlet:1",
        "model": "logistic",
        "rounds": ROUNDS,
        "noise_multiplier": 2.0,
        "workers": 1,
        "store": folder,
        "method": name,
        "variant": variant,
    }
    if find(name).unit == "record":  # clients of one size pay alike, which is quicker to work out
        defaults["partition"] = "iid"
    return Experiment.make(defaults | {"set": {"epochs": 1, "batch": 80}} | keys)


def finished(chosen: Experiment, identity: str | None = None) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The summary and the models of a run, without what may differ between equal runs."""
    prepared = prepare(chosen)
    summary = start(dataclasses.replace(prepared, identity=identity or prepared.identity))
    models = load_file(chosen.store / "runs" / summary["run"] / "models.safetensors")
    return {key: value for key, value in summary.items() if key not in ("run", "seconds")}, models


def engine_of(prepared: Prepared, folder: Path, data: FederatedData | None = None) -> Engine:
    data = data or prepared.data
    method, layout = prepared.method, prepared.learner.layout
    blank = method.memory(prepared.initial) | method.public_memory(prepared.initial, layout)
    memory = Memory(folder / "memory.bin", blank, len(data.clients))
    gate = Gate(prepared.noise, Seeded(prepared.experiment.seed, prepared.identity), prepared.record_plan)
    return Engine(prepared.method, prepared.learner, data, gate, memory, "one-by-one")


class Recorder:
    """A federation that notes down each question instead of asking it everywhere: one round, real answers."""

    def __init__(self, engine: Engine, budget: Budget) -> None:
        self.engine, self.asked = engine, []
        self.budget, self.layout = budget, engine.learner.layout
        self.features, self.classes = math.prod(engine.data.shape), engine.data.classes
        self.record_plan = engine.gate.record_plan

    def state(self, **initial: Any) -> Any:
        from sordino.method import State

        return State(**initial)

    def rounds(self, state: Any) -> Any:
        yield 0

    def sample(self) -> list[int]:
        return list(range(len(self.engine.data.clients)))

    everyone = sample

    def judge(self, model: torch.Tensor) -> tuple[float, float]:
        return 1.0, 0.5

    def random(self, *purpose: object) -> torch.Generator:
        return Seeded(0).generator(*purpose)

    def ask(self, who: list[int], step: Any, message: Any) -> Any:
        from sordino.simulator.federation import Replies

        targets = self.engine.memory.targets(who)
        work = Work(step.__name__, 0, message, who, targets, evaluate=False)
        public = Public(message, self.engine.public_states(who, self.engine.public_names), self.engine.layers)
        answer = self.engine.work(work)
        if answer.kept:
            self.engine.memory.advance(who, targets)
        self.asked.append((work, answer, public))
        return Replies(self.engine.steps[step.__name__], answer, self.engine.gate.noise, public)


def one_round(prepared: Prepared, folder: Path, data: FederatedData | None = None) -> Recorder:
    recorder = Recorder(engine_of(prepared, folder, data), prepared.budget)
    prepared.method.run(recorder, prepared.initial)
    return recorder


@pytest.mark.parametrize(("name", "variant"), STACKED)
def test_stacked_and_one_by_one_agree(name: str, variant: str, tmp_path: Path) -> None:
    # The engine belongs to the identity, which decides the noise: only here both have the same.
    _, alone = finished(experiment(name, variant, tmp_path / "one", engine="one-by-one"), "the same noise")
    _, stacked = finished(experiment(name, variant, tmp_path / "stacked", engine="stacked"), "the same noise")
    assert alone.keys() == stacked.keys()
    for key in alone:
        assert torch.allclose(alone[key], stacked[key], atol=1e-4), key


@pytest.mark.parametrize(("name", "variant", "engine"), ENGINES)
def test_the_number_of_workers_changes_no_bit(name: str, variant: str, engine: str, tmp_path: Path) -> None:
    one, models = finished(experiment(name, variant, tmp_path / "1", engine=engine, workers=1))
    two, others = finished(experiment(name, variant, tmp_path / "2", engine=engine, workers=2))
    assert one == two
    for key in models:
        assert torch.equal(models[key], others[key]), key


@every_method
def test_what_is_not_declared_does_not_leave(name: str, variant: str, tmp_path: Path) -> None:
    prepared = prepare(experiment(name, variant, tmp_path))
    for step in prepared.method.steps():
        original = getattr(prepared.method, step)

        class Leaky(type(prepared.method)):  # type: ignore[misc]
            pass

        def leaking(self: Any, message: Any, me: Any, data: Any, original: Any = original) -> Any:
            result = original(message, me, data)
            return dataclasses.replace(result, send=result.send | {"raw": me["model"].mean()})

        leaking.__name__ = step
        leaking.releases = getattr(type(prepared.method), step).releases  # type: ignore[attr-defined]
        setattr(Leaky, step, leaking)
        leaky = Leaky(**{f.name: getattr(prepared.method, f.name) for f in dataclasses.fields(prepared.method)})
        with pytest.raises(UndeclaredReleaseError, match="raw"):
            one_round(dataclasses.replace(prepared, method=leaky), tmp_path)


def noised(recorder: Recorder) -> Iterator[tuple[Work, str, Update | Number, int, Public]]:
    """Everything noised that a method asked for in its first round, with its width and what is public."""
    for work, answer, public in recorder.asked:
        for name, release in recorder.engine.steps[work.step].items():
            if isinstance(release, Update | Number):
                yield work, name, release, answer.values[name].shape[1], public


def first_clients(public: Public, count: int) -> Public:
    return dataclasses.replace(public, states={name: rows[:count] for name, rows in public.states.items()})


@every_method
def test_adversarial_values_are_bounded(name: str, variant: str, tmp_path: Path) -> None:
    """Whatever a client computes, what it sends less its noise is within the sensitivity that was charged."""
    prepared = prepare(experiment(name, variant, tmp_path))
    for _, _, release, width, public in noised(one_round(prepared, tmp_path)):
        two = first_clients(public, 2)
        for poison in (math.nan, math.inf, -math.inf, 1e38):
            rows = torch.full((2, width), poison)
            rows[1, 0] = 1e6
            bounded = release.bounded(rows, two)
            lengths = bounded.rows.double().norm(dim=1)
            assert (lengths <= release.sensitivity(two) * (1 + 1e-12)).all()
            if not math.isfinite(poison):
                assert bounded.rejected > 0
                assert lengths[0] == 0


@every_method
def test_noise_is_what_is_charged_and_never_reused(name: str, variant: str, tmp_path: Path) -> None:
    prepared = prepare(experiment(name, variant, tmp_path))
    recorder = one_round(prepared, tmp_path)
    for work, release_name, release, width, public in noised(recorder):
        null = {release_name: torch.full((CLIENTS, width), release.centre())}
        only = {release_name: release}
        draws = [
            recorder.engine.gate.passes(only, null, work.clients, work.step, number, public).values[release_name]
            for number in range(40 if width > 1 else 2000)
        ]
        noise = torch.stack(draws).double()
        ledger = Ledger(CLIENTS)
        ledger.charge(only, work.clients, work.step, 0, public, prepared.noise)
        # mu^2 of one message is the sum over its parts of (bound / deviation)^2: with the bounds and the noise that
        # was drawn it must be the mu^2 that the printed epsilon presumes.
        layers = public.layers if getattr(release, "layered", False) else [width]
        bounds = public.rows(release.clip)[0] if isinstance(release, Update) else [release.sensitivity(public)]
        parts = zip(bounds, noise.split(list(layers), dim=2), strict=True)
        measured = sum(float(bound) ** 2 / float(part.square().mean()) for bound, part in parts)
        freedom = noise.numel() // width * min(layers)
        error = 5 * math.sqrt(2 / freedom)  # five standard errors of a variance
        assert measured == pytest.approx(ledger.mu("server") ** 2, rel=error)
        values = noise.flatten()
        assert len(values.unique()) > 0.99 * len(values), "the same noise came twice"


def by_hand(plan: RecordPlan, client: int, method: Any, z: float, delta: float) -> float:
    """Training records: every noisy step of every round, and the matrix once. Validation records: each mean."""
    rate = float(plan.rates[client])
    steps = ROUNDS * math.ceil(1 / rate)
    once = ((1.0, z, 1),) if method.matrix_share() else ()
    training = record_epsilon(tuple(sorted((*once, (rate, z, steps)))), delta)
    return max(training, record_epsilon(((1.0, z, ROUNDS * method.metrics()),), delta))


@pytest.mark.parametrize(("name", "variant", "protect_from"), PROTECTED)
def test_epsilon_is_the_one_worked_out_by_hand(name: str, variant: str, protect_from: str, tmp_path: Path) -> None:
    z, delta = 2.0, 1e-5
    keys = {"noise_multiplier": z, "protect_from": protect_from, "delta": delta}
    summary, _ = finished(experiment(name, variant, tmp_path, **keys))
    method = find(name)(variant=variant)  # type: ignore[arg-type]
    sent = [release for step in method.steps().values() for release in step.values()]
    if not sent:
        assert summary["epsilon"] == dict.fromkeys(VIEWS, 0.0)
    elif not all(release.private for release in sent):
        assert summary["epsilon"] == dict.fromkeys(VIEWS)
        assert summary["not_covered"]
    elif method.unit == "record":
        plan = prepare(experiment(name, variant, tmp_path, **keys)).record_plan
        expected = max(by_hand(plan, client, method, z, delta) for client in range(CLIENTS))
        for view in VIEWS:
            assert summary["epsilon"][view] == pytest.approx(expected, rel=1e-9)
        assert summary["epsilon_replace_one"] > summary["epsilon"]["server"]
    else:
        server = ROUNDS / z**2 if protect_from == "server" else ROUNDS * CLIENTS / z**2
        exposed = any(isinstance(release, Derived) and release.published for release in sent)
        shares = dict.fromkeys(VIEWS, 1) if exposed else {"server": 1, "peer": CLIENTS - 1, "outsider": CLIENTS}
        for view in VIEWS:
            expected = epsilon_of(math.sqrt(server / shares[view]), delta)
            assert summary["epsilon"][view] == pytest.approx(expected, rel=1e-9)
        assert summary["not_covered"] == []


@every_method
def test_one_clients_data_do_not_touch_anothers_state(name: str, variant: str, tmp_path: Path) -> None:
    prepared = prepare(experiment(name, variant, tmp_path))
    first = prepared.data.clients[0]
    other = ClientData(first.name, first.x.flip(0) * -3, first.y.flip(0), first.x_test, first.y_test)
    changed = dataclasses.replace(prepared.data, clients=(other, *prepared.data.clients[1:]))
    states = []
    for number, data in enumerate((prepared.data, changed)):
        folder = tmp_path / str(number)
        folder.mkdir()
        recorder = one_round(prepared, folder, data)
        states.append(recorder.engine.memory.states(range(CLIENTS)))
    for client in range(1, CLIENTS):
        for key, rows in states[0].items():
            assert torch.equal(rows[client], states[1][key][client]), (client, key)
    assert any(not torch.equal(rows[0], states[1][key][0]) for key, rows in states[0].items())


@every_method
def test_private_state_is_in_no_message(name: str, variant: str, tmp_path: Path) -> None:
    prepared = prepare(experiment(name, variant, tmp_path, noise_multiplier=1e-6))
    recorder = one_round(prepared, tmp_path)
    for work, answer, _ in recorder.asked:
        assert set(answer.values) == set(recorder.engine.steps[work.step])
        for place, client in enumerate(work.clients):
            kept = recorder.engine.memory.states([client])
            kept = {key: rows[0] for key, rows in kept.items() if key not in recorder.engine.public_names}
            for values in answer.values.values():
                for state_name, value in kept.items():
                    if value.numel() > 1 and value.numel() == values.shape[1]:
                        assert not torch.allclose(values[place], value.flatten(), atol=1e-3), state_name


@pytest.mark.parametrize(("name", "variant", "engine"), ENGINES)
def test_a_stopped_run_ends_as_if_it_had_not_been(
    name: str, variant: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.simulator.federation.CHECKPOINT_SECONDS", 0.0)
    keys = {"engine": engine, "participation": 0.5, "rounds": 5}
    whole, models = finished(experiment(name, variant, tmp_path / "whole", **keys))

    chosen = experiment(name, variant, tmp_path / "stopped", **keys)
    store = Store(chosen.store)
    prepared = prepare(chosen)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(report: Any) -> None:
        if report.round == 2:
            raise Stopped

    with pytest.raises(Stopped):
        start(prepared, store, stop)
    run = store.all()[0].run
    assert store.get(run).state == "stopped"
    assert store.get(run).rounds_done == 2
    resumed = resume(run, store)
    assert {k: v for k, v in resumed.items() if k not in ("run", "seconds")} == whole
    again = load_file(store.path(run) / "models.safetensors")
    for key in models:
        assert torch.equal(models[key], again[key]), key
    other = Store(tmp_path / "whole")
    assert store.ledger(run) == other.ledger(other.all()[0].run)


def test_the_published_model_moves_by_the_noise_that_epsilon_presumes(tmp_path: Path) -> None:
    """End to end, with nothing learned: each coordinate of the global model is a sum of rounds of noise."""
    rounds, z, clip = 8, 3.0, 0.5
    chosen = experiment(
        "dp-fedavg", "sound", tmp_path, rounds=rounds, noise_multiplier=z, set={"rate": 1e-12, "clip": clip}
    )
    prepared = prepare(chosen)
    _, models = finished(chosen)
    moved = (models["global"] - prepared.initial).double().numpy()
    deviation = z * clip / CLIENTS * math.sqrt(rounds)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(moved))
    assert low < float(np.sum((moved / deviation) ** 2)) < high
    assert not low < float(np.sum((moved / (0.7 * deviation)) ** 2)) < high


def test_a_method_is_a_frozen_dataclass_with_documented_fields() -> None:
    for name in names():
        kind = find(name)
        assert issubclass(kind, Method)
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind().epochs = 3  # type: ignore[misc]


def test_a_round_with_too_few_clients_is_given_up(tmp_path: Path) -> None:
    from sordino.errors import UserError

    prepared = prepare(experiment("dp-fedavg", "sound", tmp_path, participation=0.5))
    greedy = dataclasses.replace(prepared, noise=dataclasses.replace(prepared.noise, minimum_cohort=4))
    store = Store(tmp_path)
    run = store.create("x", "dp-fedavg", {}, prepared.identity, ROUNDS)
    with pytest.raises(UserError, match="given up"):
        carry_on(greedy, store, run)
