"""Noise in floats and in whole numbers: the same bounds and the same cost, whichever is at work."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chi2, chisquare, norm
from torch import Tensor

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.federation.message import Each
from sordino.methods import find
from sordino.privacy.budget.allowance import Allowance, Noise
from sordino.privacy.budget.record_level_plan import plan_records
from sordino.privacy.gate import Gate, SampledGradients
from sordino.privacy.integers import CLIENTS, RECORDS, Grid, GridError
from sordino.privacy.ledger import Ledger
from sordino.privacy.mechanism import MECHANISMS, mean_of_sum
from sordino.privacy.noise import Secure, Seeded, Source
from sordino.privacy.release import Average, Matrix, Number, Public, Release, Update
from sordino.privacy.sealed import Sealed
from sordino.privacy.unit import Unit
from sordino.store.spending import planned
from sordino.store.store import Store
from sordino.testing.case import Case
from sordino.testing.exits import noise_is_what_is_charged_and_never_reused, private_state_is_in_no_message

LAYERS = [30, 7, 2000]
CLIPS = torch.tensor([1.0, 0.2, 3.0])
SEEDED, SECURE = Seeded(0, "run"), Secure(Seeded(1))


def gate(noise: Noise, source: Source = SEEDED) -> Gate:
    return Gate(Allowance(noise), source, MECHANISMS["integers"])


def sent(made: Gate, release: Release, rows: torch.Tensor, public: Public, question: int = 0) -> torch.Tensor:
    return made.passes({"it": release}, {"it": rows}, question, public).values["it"]


@pytest.mark.parametrize("source", [SEEDED, SECURE], ids=["seeded", "secure"])
@pytest.mark.parametrize("spread", ["energy", "proportional"])
def test_each_layer_s_noise_has_its_deviation(source: Source, spread: Any) -> None:
    public, release = Public({"clip": CLIPS}, range(60), layers=LAYERS), Update("clip", layered=True, spread=spread)
    made = gate(Noise(2.0, "server", 1), source)
    rows = sent(made, release, torch.zeros(60, sum(LAYERS)), public)
    assert rows.dtype == torch.int64
    deviations = release.deviation(made.allowance, public).double() / math.sqrt(60)
    read = made.read(release, rows, public).double() / deviations
    for whole, part in zip(rows.split(LAYERS, dim=1), read.split(LAYERS, dim=1), strict=True):
        low, high = chi2.ppf([5e-7, 1 - 5e-7], part.numel())
        assert low < float(part.square().sum()) < high
        assert low < float((whole.double() / CLIENTS.deviation).square().sum()) < high
    assert len(rows.unique(dim=0)) == 60


@pytest.mark.parametrize("poison", [1e38, -1e20, 0.3, math.nan, math.inf])
def test_in_whole_numbers_no_layer_is_longer_than_its_threshold(poison: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grid, "noise", lambda self, words, count: np.zeros(count, dtype=np.int64))
    public, release = Public({"clip": CLIPS}, range(3), layers=LAYERS), Update("clip", layered=True)
    made = gate(Noise(2.0, "server", 1))
    rows = torch.full((3, sum(LAYERS)), poison)
    rows[1, 0] = 1e6
    whole = sent(made, release, rows, public)
    cover = release.cover(sum(LAYERS), made.allowance, public)
    assert cover is not None
    for place in range(3):
        for entries, bound, deviation in cover.blocks(place):
            squares = sum(int(one) ** 2 for one in whole[place, torch.from_numpy(entries)].tolist())
            limit = CLIENTS.longest(bound, deviation)
            assert squares <= limit
            if math.isfinite(poison) and abs(poison) > 1:
                assert squares > 0.99 * limit or place == 1
    assert bool(whole.any()) == math.isfinite(poison)


def test_where_nothing_leaves_there_is_nothing_common_or_each_its_own() -> None:
    mask = (torch.arange(40) % 3 == 0).float()
    own = torch.stack([mask, 1 - mask])
    for at in (mask, Each(own)):
        public = Public({"at": at}, range(2), layers=[40])
        made, release = gate(Noise(1.0, "server", 1)), Update(1.0, at="at")
        rows = sent(made, release, torch.ones(2, 40), public)
        leaving = own if isinstance(at, Each) else mask.expand(2, -1)
        assert torch.equal(rows != 0, leaving != 0)
        alone = Public({"at": at}, [1], layers=[40])
        assert torch.equal(sent(made, release, torch.ones(1, 40), alone)[0], rows[1])


def test_a_client_s_whole_numbers_are_its_own_whoever_is_drawn_with_it() -> None:
    made, release, rows = gate(Noise(1.0, "outsider", 5)), Update(1.0), torch.randn(5, 20_000)
    together = sent(made, release, rows, Public({}, [3, 1, 4, 0, 9], layers=[20_000]))
    for place, client in enumerate([3, 1, 4, 0, 9]):
        alone = sent(made, release, rows[place : place + 1], Public({}, [client], layers=[20_000]))
        assert torch.equal(alone[0], together[place])
    other = sent(made, release, rows, Public({}, [3, 1, 4, 0, 9], layers=[20_000]), question=1)
    assert float((other == together).double().mean()) < 0.01


def test_the_mean_is_that_of_the_sum_in_whole_numbers() -> None:
    public, release = Public({}, range(4), layers=[50]), Number(0.0, 10.0, 1.0, entries=50)
    made = gate(Noise(1e-3, "outsider", 4))
    values = torch.arange(200.0).reshape(4, 50) / 20
    rows = sent(made, release, values, public)
    cover = release.cover(50, made.allowance, public)
    assert cover is not None
    mean = made.mean(release, rows, public)
    assert torch.equal(mean, mean_of_sum(rows.sum(dim=0), 4, cover))
    assert torch.allclose(mean + release.centre(), values.mean(dim=0), atol=0.2)
    assert torch.allclose(made.read(release, rows, public).mean(dim=0), mean, atol=1e-5)
    assert torch.allclose(made.read(release, rows, public) + release.centre(), values, atol=0.5)


def test_clients_with_thresholds_of_their_own_have_grids_of_their_own() -> None:
    public = Public({"clip": Each(torch.tensor([[1.0], [100.0]]))}, range(2), layers=[30])
    made, release = gate(Noise(1e-4, "server", 1)), Update("clip")
    rows = sent(made, release, torch.tensor([[0.1], [10.0]]).expand(2, 30), public)
    read = made.read(release, rows, public)
    assert torch.allclose(read, torch.tensor([[0.1], [10.0]]).expand(2, 30), rtol=0.05)
    assert torch.allclose(made.mean(release, rows, public), read.mean(dim=0))
    cover = release.cover(30, made.allowance, public)
    assert cover is not None
    with pytest.raises(GridError, match="different noise"):
        mean_of_sum(rows.sum(dim=0), 2, cover)


def test_noise_that_eats_the_signal_is_refused_before_anything_is_computed() -> None:
    public, release = Public({}, range(2), layers=[10**6]), Update(1.0)
    gate(Noise(16.0, "server", 1)).check({"it": release}, public)
    with pytest.raises(GridError, match="eat the signal"):
        gate(Noise(17.0, "server", 1)).check({"it": release}, public)
    Gate(Allowance(Noise(17.0, "server", 1)), SEEDED).check({"it": release}, public)  # floats can


RECORD_PLAN = plan_records([50, 60], np.array([8.0, 4.0]), 1e-5, batch=10, epochs=1, turns=2)
RECORD_PLAN.mean_multipliers[:] = [2.0, 3.0]
RECORD_PLAN.matrix_multipliers[:] = [2.0, 3.0]
RECORD_PLAN.validation[:] = [10, 12]


def on_the_grid(sent: Tensor, deviation: float) -> bool:
    """Whether what protects records stands on their grid, as far as the 24 bits of float32 tell."""
    whole = sent.double().numpy() / RECORDS.step(deviation)
    whole = whole[np.abs(whole) < 2**20]  # there, float32 is off by a sixteenth of a step at most
    return bool(np.abs(whole - np.rint(whole)).max() < 0.1)


def test_means_over_records_carry_the_noise_that_is_charged() -> None:
    made = Gate(Allowance(records=RECORD_PLAN), SECURE, MECHANISMS["integers"])
    release, public = Average(0.0, 2.0), Public({}, [1], layers=[4])
    values = Sealed(torch.ones(12), "validation", "losses")
    found = torch.cat([made.passes({"it": release}, {"it": values}, 0, public).values["it"] for _ in range(2000)])
    assert found.dtype == torch.float32
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 2000)
    assert low < float((found.double() / (3 * release.spread(12))).square().sum()) < high
    assert on_the_grid(found, 3 * release.spread(12))


def test_matrices_are_symmetric_and_noised_once() -> None:
    made = Gate(Allowance(records=RECORD_PLAN), SEEDED, MECHANISMS["integers"])
    release, public = Matrix(0.1), Public({}, [0], layers=[4])
    values = Sealed(torch.zeros(7, 90), "training", "projected records")
    found = made.passes({"it": release}, {"it": values}, 0, public).values["it"].reshape(90, 90)
    assert torch.equal(found, found.t())
    upper = found[torch.triu_indices(90, 90).unbind()].double()
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(upper))
    assert low < float((upper / 2).square().sum()) < high
    assert len(upper.unique()) > 0.99 * len(upper)


@pytest.mark.parametrize("source", [SEEDED, SECURE], ids=["seeded", "secure"])
def test_sums_of_gradients_carry_the_noise_that_is_charged_and_never_the_same(source: Source) -> None:
    clip, z, size = torch.tensor([3.0, 4.0]), 1.5, 40_000
    exit = SampledGradients(source, (0, 1), (0.5, z, 2), clip, MECHANISMS["integers"])
    total = torch.linspace(-5, 5, size)
    first, second = (exit.pass_sum(10, lambda chosen: total.clone()) for _ in range(2))
    assert first.dtype == torch.float32
    for passed in (first, second):
        noise = (passed - total).double().numpy() / (z * 5.0)
        assert chisquare(np.histogram(noise, norm.ppf(np.linspace(0, 1, 101)))[0]).pvalue > 1e-6
        low, high = chi2.ppf([5e-7, 1 - 5e-7], size)
        assert low < float((noise**2).sum()) < high
        assert on_the_grid(passed, z * 5.0)
    assert abs(float(torch.corrcoef(torch.stack([first - total, second - total]))[0, 1])) < 6 / math.sqrt(size)


# ---- what is charged


def test_a_release_that_claims_noise_must_say_which() -> None:
    @dataclass(frozen=True)
    class Claiming(Update):
        cover = Release.cover

    with pytest.raises(NotImplementedError, match="Claiming says that noise protects a client, but not which"):
        sent(gate(Noise(1.0, "server", 1)), Claiming(1.0), torch.zeros(1, 5), Public({}, [0], layers=[5]))


def test_noise_from_a_known_seed_covers_nothing_and_says_why() -> None:
    allowance = Allowance(Noise(2.0, "outsider", 3), known="the seed is known")
    ledger = Ledger(3)
    ledger.charge({"update": Update(1.0)}, 0, 0, "local", allowance, Public({}, range(3), layers=[5]))
    assert set(ledger.epsilon(1e-5).values()) == {math.inf}
    assert ledger.reasons() == ["update: the seed is known"]
    records = Ledger(2, Unit.RECORD)
    allowance = Allowance(records=RECORD_PLAN, known="the seed is known")
    records.charge({"mean": Average(0.0, 1.0)}, 0, 0, "local", allowance, Public({}, [0], layers=[5]))
    assert set(records.epsilon(1e-5).values()) == {math.inf}
    assert records.reasons() == ["mean: the seed is known"]


# ---- whole runs

KEYS: dict[str, Any] = {
    **{"clients": 6, "rounds": 2, "noise_multiplier": 0.3, "model": "logistic", "compiled": "never"},
    **{"allow_vacuous_delta": True, "delta": 1e-5, "set": {"epochs": 1, "batch": 80}},
}


def run(folder: Path, **keys: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    prepared = prepare(Experiment.make(KEYS | {"store": folder, "workers": 1} | keys))
    store = Store(folder)
    summary = start(prepared, store)
    return summary.to_dict(), load_file(store.path(summary.run) / "models.safetensors")


@pytest.mark.parametrize("method", ["dp-fedavg", "fedglp-adp", "dp-fedavg-record"])
def test_a_run_in_whole_numbers_learns_the_same_and_promises_nothing(method: str, tmp_path: Path) -> None:
    keys = {"method": method, "noise_multiplier": 1e-3, "partition": "iid"}  # clients of one size pay alike
    floats, model = run(tmp_path / "floats", **keys)
    whole, other = run(tmp_path / "whole", **keys, noise="integers")
    assert floats["accuracy"]["global"] == pytest.approx(whole["accuracy"]["global"], abs=0.02)
    assert torch.allclose(model["global"], other["global"], atol=0.02)
    assert not torch.equal(model["global"], other["global"])
    assert set(whole["epsilon"].values()) == {None}
    assert any("whoever knows the seed can subtract it" in one for one in whole["not_covered"])
    assert None not in floats["epsilon"].values()
    assert not any("would be" in note for note in whole["notes"])


def test_a_run_in_whole_numbers_does_not_depend_on_processes_and_can_be_repeated(tmp_path: Path) -> None:
    keys = {"method": "feddpa", "noise": "integers"}
    models = [run(tmp_path / str(place), **keys, workers=workers)[1] for place, workers in enumerate((1, 2, 1))]
    for other in models[1:]:
        assert all(torch.equal(models[0][name], other[name]) for name in models[0])


def test_planned_whole_numbers_count_as_infinite(tmp_path: Path) -> None:
    for method, unit in (("dp-fedavg", "client"), ("dp-fedavg-record", "record")):
        spent = planned(prepare(Experiment.make(KEYS | {"method": method, "noise": "integers", "store": tmp_path})))
        assert spent["unit"] == unit
        assert spent["mu"] == [None] * 3
    local = planned(prepare(Experiment.make(KEYS | {"method": "local", "noise": "integers", "store": tmp_path})))
    assert local["mu"] == [0.0] * 3


@pytest.mark.parametrize("method", ["dp-fedavg", "fedglp-adp"])
def test_methods_noise_is_what_is_charged_in_whole_numbers_too(method: str, tmp_path: Path) -> None:
    case = Case(find(method)(), tmp_path, {"noise": "integers"})
    noise_is_what_is_charged_and_never_reused(case)
    private_state_is_in_no_message(Case(find(method)(), tmp_path, {"noise": "integers"}))


def test_the_secure_sum_gives_the_simulator_s_mean_to_the_bit() -> None:
    """Five sites, each alone behind its own gate, under masks; one of them drops out."""
    masking = pytest.importorskip("sordino.deploy.protocol.secure_sum", reason="the secure sum needs `cryptography`")
    made, release = gate(Noise(1.0, "outsider", 4)), Update("clip", layered=True)
    rows, message = torch.randn(5, sum(LAYERS)), {"clip": CLIPS}
    who = [0, 1, 3, 4]
    keys = {bytes([65 + number]) * 32: masking.new_key() for number in range(5)}
    parties = tuple(masking.Party(name, masking.public_key(key)) for name, key in keys.items())
    cohort = masking.Cohort(bytes(32), parties, 4)
    maskers = {name: masking.Masker(cohort, name, key) for name, key in keys.items()}
    masked = {}
    for number, (name, masker) in enumerate(maskers.items()):
        mine = sent(made, release, rows[number : number + 1], Public(message, [number], layers=LAYERS))
        masked[name] = masker.mask(mine[0].numpy(), 32)
    alive = [list(keys)[number] for number in who]
    openings = {
        name: maskers[name].make_opening(alive, {one: masked[one].shares[name] for one in alive}) for name in alive
    }
    total = masking.open_sum(cohort, {name: masked[name].vector for name in alive}, alive, openings)
    public = Public(message, who, layers=LAYERS)
    cover = release.cover(sum(LAYERS), made.allowance, public)
    assert cover is not None
    simulated = made.mean(release, sent(made, release, rows[who], public), public)
    assert torch.equal(mean_of_sum(torch.from_numpy(total), len(who), cover), simulated)
