"""Whatever a user's code does, two values never share noise, and code that repeats itself gives the same bits."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers import QUICK_KEYS
from killing import die_at, killed, stopped, trace
from safetensors.torch import load_file
from torch import Tensor, nn

from sordino import methods, models
from sordino.api import resume, run
from sordino.experiment import run as running
from sordino.experiment.config import Experiment
from sordino.experiment.identity import is_own, is_own_network, repeats
from sordino.experiment.prepare import prepare
from sordino.experiment.run import register
from sordino.federation import server
from sordino.learning.network import Records
from sordino.method import Federation, Message, Result
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.ledger import split_attempt
from sordino.privacy.noise import Seeded
from sordino.privacy.release import sends
from sordino.store import journal
from sordino.store.journal import rows_after
from sordino.store.run_files import RunFiles
from sordino.store.spending import spending_of_run
from sordino.store.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

ELSEWHERE = types.ModuleType("elsewhere")
"""Outside of the methods' own module, which steps must leave as it is."""
ELSEWHERE.raw = []  # type: ignore[attr-defined]  # what steps wanted to send


@dataclass(frozen=True)
class Steady(DPFedAvg):
    """Sends the same each time."""

    title: ClassVar[str] = "repeats itself"

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        found = super().local(message, me, data)
        update = self.moved(found.send["update"])
        ELSEWHERE.raw.append(update.clone())
        return Result(send={"update": update}, keep=found.keep, start=found.start)

    def moved(self, update: Tensor) -> Tensor:
        """Short enough not to be clipped."""
        return 0.3 * update / update.norm()


@dataclass(frozen=True)
class Restless(Steady):
    """Sends something else each time."""

    title: ClassVar[str] = "does not repeat itself"

    def moved(self, update: Tensor) -> Tensor:
        other = torch.from_numpy(np.random.default_rng().normal(size=len(update))).float()
        return super().moved(update) + 0.3 * other / other.norm()


@dataclass(frozen=True)
class Grasping(Restless):
    """Tries to go on without an answer that it must not see."""

    title: ClassVar[str] = "goes on whatever happens"
    caught: ClassVar[type[BaseException]] = Exception

    def run(self, fed: Federation, model: Tensor) -> None:
        state = fed.state(model=model)
        for _ in fed.rounds(state):
            with contextlib.suppress(self.caught):
                got = fed.ask(fed.sample(), self.local, {"global": state.model, "clip": self.clip})
                state.model = state.model + got.mean("update")


@dataclass(frozen=True)
class Clinging(Grasping):
    """Goes on even when its process shall end."""

    caught: ClassVar[type[BaseException]] = BaseException


@dataclass(frozen=True)
class SteadyRecords(DPFedAvgRecord):
    """A method of one's own that protects records."""

    title: ClassVar[str] = "repeats itself, record level"


@dataclass(frozen=True)
class RestlessRecords(DPFedAvgRecord):
    """Takes gradients at other models each time."""

    title: ClassVar[str] = "does not repeat itself, record level"

    @sends(DPFedAvgRecord.local.releases)  # type: ignore[attr-defined]
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        other = torch.from_numpy(np.random.default_rng().normal(size=len(message["global"]))).float()
        return super().local(dict(message) | {"global": message["global"] + 0.1 * other}, me, data)


@dataclass(frozen=True)
class WhimsicalRecords(DPFedAvgRecord):
    """Makes something else of the same noisy gradients each time."""

    title: ClassVar[str] = "does not repeat itself afterwards, record level"

    @sends(DPFedAvgRecord.local.releases)  # type: ignore[attr-defined]
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        found = super().local(message, me, data)
        factor = float(np.random.default_rng().uniform(0.5, 1.5))
        return Result(send={"update": factor * found.send["update"]}, keep=found.keep, start=found.start)


class Shaky(nn.Module):
    """A network that computes something else each time."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) * float(np.random.default_rng().uniform(0.1, 3.0))


KEYS: dict[str, Any] = QUICK_KEYS | {"noise_multiplier": 1.0, "model": "logistic", "rounds": 1, "engine": "one-by-one"}


def of(name: str, **changes: Any) -> dict[str, Any]:
    return KEYS | {"method": f"{__name__}:{name}"} | changes


def global_of(store: Path, result: Any) -> Tensor:
    """The server's model of a run that is done."""
    return load_file(store / "runs" / result["run"] / "models.safetensors")["global"]


def published(store: Path, keys: dict[str, Any]) -> Tensor:
    """The server's model of a run."""
    return global_of(store, run(store=store, **keys))


def correlation(one: Tensor, other: Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1]))


# ---- whole clients


def noise_of(store: Path, name: str) -> tuple[Tensor, Tensor]:
    """Mean of raw updates, and the noise on it, in a run of one round."""
    ELSEWHERE.raw.clear()
    prepared = prepare(Experiment.make(of(name)))
    raw = published(store, of(name)) - prepared.initial
    mean = torch.stack(ELSEWHERE.raw).mean(dim=0)
    return mean, raw - mean


def test_the_difference_of_two_runs_is_not_that_of_what_noise_hides(tmp_path: Path) -> None:
    (first, noise), (second, other) = noise_of(tmp_path, "Restless"), noise_of(tmp_path, "Restless")
    assert not torch.allclose(first, second, atol=1e-4)
    assert correlation(noise, other) < 6 / math.sqrt(len(noise))
    difference = noise - other
    assert float(difference.norm() / noise.norm()) == pytest.approx(math.sqrt(2), rel=0.2)


def test_equal_values_of_two_runs_do_not_share_noise_either(tmp_path: Path) -> None:
    """Else a contribution that differs each time could be told from none, which gives the same bits twice."""
    (first, noise), (second, other) = noise_of(tmp_path, "Steady"), noise_of(tmp_path, "Steady")
    assert torch.equal(first, second)
    assert correlation(noise, other) < 6 / math.sqrt(len(noise))


@pytest.mark.usefixtures("one_nonce")
@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_code_that_repeats_itself_gives_the_same_bits_however_many_processes_there_are(
    engine: str, tmp_path: Path
) -> None:
    keys = of("Steady", engine=engine, rounds=3)
    first = published(tmp_path, keys)
    assert torch.equal(first, published(tmp_path, keys))
    assert torch.equal(first, published(tmp_path, keys | {"workers": 2}))


@pytest.mark.parametrize(("keys", "flushes"), [(of("Steady"), True), (of("Steady") | {"method": "dp-fedavg"}, False)])
def test_what_own_code_is_charged_is_on_the_disk_before_anybody_is_asked(
    keys: dict[str, Any], flushes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own code may answer otherwise after a crash of the machine; built-in code repeats itself, and need not wait."""
    flushed: list[bool] = []
    write = journal.Journal.write

    def watched(self: journal.Journal, *charged: Any) -> None:
        before = len(calls)
        write(self, *charged)
        flushed.append(len(calls) > before)

    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file, original=os.fsync: (calls.append(file), original(file)))
    monkeypatch.setattr(journal.Journal, "write", watched)
    run(store=tmp_path, **keys)
    assert flushed == [flushes]


# ---- records

Toss = tuple[tuple[Any, ...], list[bool]]
"""Purpose of a draw of coins, and their values."""


def falls(tosses: Iterable[Toss]) -> Tensor:
    """Values of all coins, one after the other."""
    return torch.tensor([coin for _, fall in tosses for coin in fall]).float()


@pytest.fixture
def coins(monkeypatch: pytest.MonkeyPatch) -> list[Toss]:
    """For what coins were drawn, and how they fell."""
    tossed: list[Toss] = []
    original = Seeded.coins

    def coins(self: Seeded, count: int, rate: float, *purpose: object) -> Tensor:
        found = original(self, count, rate, *purpose)
        tossed.append((purpose, found.tolist()))
        return found

    monkeypatch.setattr(Seeded, "coins", coins)
    return tossed


OWN = {
    "method": of("RestlessRecords"),
    "method that happens to repeat itself": of("SteadyRecords"),
    "network": KEYS | {"method": "dp-fedavg-record", "model": f"{__name__}:Shaky"},
}


@pytest.mark.parametrize("own", OWN)
def test_own_code_at_record_level_has_coins_of_its_own_in_each_run(own: str, coins: list[Toss], tmp_path: Path) -> None:
    one = run(store=tmp_path, **OWN[own])
    assert any("code of your own" in note for note in one["notes"])
    first = list(coins)
    coins.clear()
    other = run(store=tmp_path, **OWN[own])
    assert [purpose for purpose, _ in first] == [purpose for purpose, _ in coins]
    fallen = torch.stack([falls(first), falls(coins)])
    assert correlation(*fallen) < 6 / math.sqrt(fallen.shape[1])
    models = [global_of(tmp_path, result) for result in (one, other)]
    assert not torch.allclose(*models, atol=1e-3)
    nonces = {row.nonce for row in Store(tmp_path).all()}
    assert len(nonces) == 2
    assert {len(nonce) for nonce in nonces} == {16}


def test_coins_of_the_package_s_own_code_follow_from_the_seed(tmp_path: Path) -> None:
    keys = KEYS | {"method": "dp-fedavg-record", "rounds": 2}
    first, second = run(store=tmp_path, **keys), run(store=tmp_path, **keys)
    assert not any("code of your own" in note for note in first["notes"])
    assert torch.equal(*(global_of(tmp_path, one) for one in (first, second)))
    assert {row.nonce for row in Store(tmp_path).all()} == {b""}


def test_nobody_can_choose_the_nonce(tmp_path: Path) -> None:
    for keys in ({"nonce": "00" * 16}, {"set": {"nonce": "00" * 16}}):
        with pytest.raises(Exception, match="nonce"):
            run(store=tmp_path, **(of("SteadyRecords") | keys))
    prepared, store = prepare(Experiment.make(of("Steady"))), Store(tmp_path)
    names = [register(prepared, store) for _ in range(2)]
    assert len({store.get(name).nonce for name in names}) == 2, "one for each run of one prepared experiment"


# ---- runs that are taken up

ROUNDS = 6


@pytest.fixture(autouse=True)
def no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 1e9)


def numbers(store: Path, name: str) -> list[tuple[int, int]]:
    """Each row's question, and how often it had been asked before."""
    return [split_attempt(row.question) for row in Store(store).ledger(name)]


@pytest.mark.parametrize("method", ["Restless", "Grasping", "Clinging"])
def test_other_values_are_charged_again(method: str, tmp_path: Path) -> None:
    """Four rounds were answered; the resumed run comes to other values, so ten answers have left in the end. Somebody
    may have stopped the run by what they saw: it counts as if all six rounds had been asked twice."""
    keys = of(method, rounds=ROUNDS)
    name = stopped(tmp_path, 4, **keys)
    result = resume(name, tmp_path)
    first, again = [(question, 0) for question in range(4)], [(question, 1) for question in range(4)]
    assert numbers(tmp_path, name) == [*first, *again, (4, 0), (5, 0)]
    assert result["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(12), result["delta"]), rel=1e-6)
    assert any("4 questions were asked, and charged, again" in note for note in result["notes"])
    assert any("other values when it was resumed" in sentence for sentence in result["not_covered"])
    assert Store(tmp_path).get(name).state == "done"


def test_every_further_attempt_is_charged_and_has_noise_of_its_own(tmp_path: Path) -> None:
    keys = of("Restless", rounds=ROUNDS)
    name = stopped(tmp_path, 3, **keys)
    stopped(tmp_path, 2, name)
    resume(name, tmp_path)
    attempts = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 1), (3, 0), (4, 0), (5, 0)]
    assert numbers(tmp_path, name) == attempts


def test_what_was_asked_anew_is_replayed_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once other values have been charged, a resumption that repeats them costs nothing more."""
    keys = of("Restless", rounds=ROUNDS)
    name = stopped(tmp_path, 3, **keys)
    monkeypatch.setattr(Restless, "moved", Steady.moved)
    stopped(tmp_path, 2, name)
    resume(name, tmp_path)
    assert numbers(tmp_path, name) == [*((n, 0) for n in range(3)), *((n, 1) for n in range(3)), (3, 0), (4, 0), (5, 0)]


def test_attempts_are_counted_beyond_checkpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The resumed run saves after each round: what was asked before it stays in what is stored."""
    name = stopped(tmp_path, 4, **of("Restless", rounds=ROUNDS))
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)
    stopped(tmp_path, 2, name)
    resume(name, tmp_path)
    questions = numbers(tmp_path, name)
    assert questions[:6] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]
    assert len(set(questions)) == len(questions), "no number is used twice"
    assert {question for question, _ in questions} == set(range(ROUNDS))


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_it_does_not_matter_how_many_processes_draw_before_and_after(engine: str, tmp_path: Path) -> None:
    name = stopped(tmp_path, 4, **of("Steady", rounds=ROUNDS, engine=engine, workers=2))
    running.resume(name, Store(tmp_path), workers=1)
    assert numbers(tmp_path, name) == [(question, 0) for question in range(ROUNDS)]


def test_answers_yet_to_be_repeated_are_known_beyond_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four rounds were answered; a resumption repeats and saves two of them, the next one comes to other values."""
    name = stopped(tmp_path, 4, **of("Steady", rounds=ROUNDS))
    original = RunFiles.answered

    def dying(self: RunFiles, question: int, drawn: int) -> None:
        original(self, question, drawn) if question < 2 else 1 / 0

    with monkeypatch.context() as dies:
        dies.setattr(server, "SAVE_SECONDS", 0)
        dies.setattr(RunFiles, "answered", dying)
        with pytest.raises(ZeroDivisionError):
            resume(name, tmp_path)
    assert Store(tmp_path).get(name).rounds_done == 2
    monkeypatch.setattr(Steady, "moved", lambda self, update: torch.zeros_like(update))
    resume(name, tmp_path)
    assert numbers(tmp_path, name) == [*((n, 0) for n in range(4)), (2, 1), (3, 1), (4, 0), (5, 0)]


def test_an_answer_that_nobody_has_seen_is_not_charged_again(tmp_path: Path) -> None:
    """Killed when the third question was charged, and when its answer was there but not yet written down."""
    for place, moment in enumerate([(RunFiles, "charge", 3, "after"), (RunFiles, "answered", 3, "before")]):
        store = tmp_path / str(place)

        def victim(store: Path = store, moment: tuple[Any, str, int, str] = moment) -> None:
            die_at(*moment)
            run(store=store, **of("Steady", rounds=ROUNDS))

        assert killed(victim)
        name = Store(store).all()[0].run
        found = journal._read(next((store / "runs" / name).glob("ledger-*")), bytes(32), True)
        assert (len(found.rows), sorted(found.answers)) == (3, [0, 1])
        resume(name, store)
        assert numbers(store, name) == [(question, 0) for question in range(ROUNDS)]


def test_an_answer_is_written_down_before_the_script_sees_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(RunFiles, "note", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, **of("Steady"))
    (path,) = (tmp_path / "runs").glob("*/ledger-*")
    assert list(journal._read(path, bytes(32), True).answers) == [0]


@pytest.mark.usefixtures("one_nonce")
@pytest.mark.parametrize("method", ["Steady", "SteadyRecords"])
def test_own_code_that_repeats_itself_is_resumed_to_the_same_bits_and_cost(method: str, tmp_path: Path) -> None:
    keys, traces = of(method, rounds=ROUNDS), []
    store = tmp_path / "stopped"
    name = stopped(store, 4, **keys)
    resume(name, store)
    assert numbers(store, name) == [(question, 0) for question in range(ROUNDS)]
    if method == "Steady":  # else coins differ between runs
        traces = [trace(store, name), trace(tmp_path / "whole", run(store=tmp_path / "whole", **keys)["run"])]
        assert traces[0] == traces[1]


def test_a_resumed_run_at_record_level_repeats_its_coins_and_draws_other_ones_for_other_values(
    coins: list[Toss], tmp_path: Path
) -> None:
    keys = of("RestlessRecords", rounds=4)
    name = stopped(tmp_path, 3, **keys)
    first = dict(coins)
    assert len(first) == len(coins)
    coins.clear()
    result = resume(name, tmp_path)
    replayed = [(purpose, fall) for purpose, fall in coins if purpose in first]
    assert replayed
    assert all(first[purpose] == fall for purpose, fall in replayed)
    assert {split_attempt(purpose[0])[0] for purpose, _ in replayed} == {0}, "it was given up at the first question"
    anew = [(purpose, fall) for purpose, fall in coins if purpose not in first]
    before = falls(first.items())
    assert correlation(before, falls(anew)[: len(before)]) < 6 / math.sqrt(len(before))
    assert {split_attempt(purpose[0]) for purpose, _ in anew} == {(0, 1), (1, 1), (2, 1), (3, 0)}
    assert numbers(tmp_path, name) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0)]
    whole = run(store=tmp_path / "whole", **keys)
    assert result["epsilon"]["server"] > 1.2 * whole["epsilon"]["server"]


def test_other_answers_made_of_the_same_gradients_are_charged_again(tmp_path: Path) -> None:
    """Their noise is the same; the run would not repeat itself from there on."""
    name = stopped(tmp_path, 3, **of("WhimsicalRecords", rounds=4))
    resume(name, tmp_path)
    assert numbers(tmp_path, name) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0)]


def test_what_was_given_up_counts_for_a_run_that_nobody_takes_up(tmp_path: Path) -> None:
    name = stopped(tmp_path, 3, **of("Restless", rounds=ROUNDS))
    stopped(tmp_path, 2, name)
    assert len(rows_after(tmp_path / "runs" / name, 0, bytes(32), begun=True)) == 5


def test_a_stopped_run_counts_as_planned_and_its_later_attempts(tmp_path: Path) -> None:
    name = stopped(tmp_path, 3, **of("WhimsicalRecords", rounds=4))
    stopped(tmp_path, 2, name)
    store = Store(tmp_path)
    row = store.get(name)
    assert row.planned is not None
    most, counted = (
        max(sum(part[2] for part in recipe) for recipe in spent["recipes"])
        for spent in (row.planned, spending_of_run(row, store))
    )
    assert counted >= most * 6 / 4  # two of four rounds once more, by whichever client's rate


# ---- whose code it is


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_the_package_s_methods_repeat_themselves(name: str) -> None:
    assert not is_own(Experiment.make({"method": name}).build_method())


@pytest.mark.parametrize("name", sorted(models.names()))
def test_the_package_s_networks_repeat_themselves(name: str) -> None:
    assert not is_own_network(name, models.build(name, (3, 32, 32), 10))


class Layer(nn.Linear):
    """A layer of one's own."""


def test_what_counts_as_own_code() -> None:
    plain, net = DPFedAvg(), models.build("logistic", (4,), 2)
    assert repeats(plain, "logistic", net, "cpu")
    assert not repeats(Steady(), "logistic", net, "cpu")
    assert not repeats(plain, "own:net", net, "cpu"), "a function of one's own may do anything to torch's layers"
    assert not repeats(plain, "logistic", nn.Sequential(net, Layer(2, 2)), "cpu")
    assert not repeats(plain, "logistic", net, "cuda"), "sums are added in any order there"

    @dataclass(frozen=True)
    class Setting:
        value: object

    assert is_own(type("Changed", (Steady,), {"__module__": "sordino.testing.case"})()), "made of own code"
    for setting in (Setting(1), [Setting(1)], {"a": (Setting(1),)}, lambda: 1):
        changed = DPFedAvg()
        object.__setattr__(changed, "batch", setting)
        assert is_own(changed)


def test_a_module_named_like_one_of_python_s_is_still_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("class Own:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "code", raising=False)
    own = importlib.import_module("code").Own
    assert Path(inspect.getfile(own)).parent == tmp_path
    assert is_own(own())
    monkeypatch.delitem(sys.modules, "code")
