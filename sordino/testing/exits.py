"""Checks of everything that leaves a client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.signal import fftconvolve
from torch import Tensor

from sordino.data import ClientData
from sordino.method import result_of
from sordino.privacy.gate import UndeclaredReleaseError
from sordino.privacy.release import Public, Release
from sordino.testing.case import CLIENTS, Case, OneRound, with_steps

SURE = 5.0
"""Largest error of measured noise, in standard errors: exceeded by chance once in two million measurements."""
FEW, NEAR = 3, 1e-3
"""Fewest numbers that are searched for in a message, since fewer may be found by chance; and the distance, relative to
their norm, at which vectors count as equal."""
DRAWS = 40_000
"""Approximate number of draws on which the noise of one client's release is measured."""


def what_is_not_declared_does_not_leave(case: Case) -> None:
    """Check that a step which sends one undeclared value raises."""

    def leaking(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, message: Any, me: Any, data: Any) -> Any:
            result = result_of(self, original.__name__, original(self, message, me, data))
            return dataclasses.replace(result, send={**result.send, "raw": torch.zeros(())})

        return step

    prepared = case.prepared()
    for name in prepared.method.steps():
        leaky = with_steps(prepared.method, leaking, name)
        try:
            OneRound(dataclasses.replace(prepared, method=leaky), case.folder)
        except UndeclaredReleaseError:
            continue
        raise AssertionError(f"{name} sent something that it does not declare, and nothing happened")


def whatever_a_client_computes_is_bounded(case: Case) -> None:
    """Check that what a client sends, without its noise, is within the charged sensitivity."""
    for asked, name, release in OneRound(case.prepared(), case.folder).releases():
        if not release.summed or release.record_level:
            continue
        width = asked.answer.values[name].shape[1]
        charge = release.charge(case.prepared().allowance, asked.public)
        for poison in (math.nan, math.inf, -math.inf, 1e38, -1e20):
            rows = torch.full((len(asked.public.clients), width), poison)
            rows[1, 0] = 1e6
            bounded = release.bounded(rows, asked.public)
            lengths = bounded.rows.double().norm(dim=1).numpy()
            assert (lengths <= charge.sensitivity * (1 + 1e-12)).all(), f"{name}: {poison} is not bounded"
            if not math.isfinite(poison):
                assert bounded.rejected > 0, f"{name}: {poison} is not noticed"
                assert lengths[0] == 0, f"{name}: {poison} passes"


def noise_is_what_is_charged_and_never_reused(case: Case) -> None:
    """Check that the worst bounded vector over the drawn noise has the charged mu, and that no draw comes twice."""
    prepared = case.prepared()
    once = OneRound(prepared, case.folder)
    for asked, name, release in once.releases():
        if not release.summed or release.record_level:
            continue
        clients, width = len(asked.public.clients), asked.answer.values[name].shape[1]
        null = {name: torch.full((clients, width), release.centre())}
        questions = range(1000, 1000 + max(50, DRAWS // width))
        passed = [once.gate.passes({name: release}, null, number, asked.public).values[name] for number in questions]
        noise = torch.stack([once.gate.read(release, rows, asked.public) for rows in passed]).double()
        variance = noise.square().mean(dim=0)
        worst = release.bounded(torch.full((clients, width), 1e30), asked.public).rows.double().square()
        assert not ((variance == 0) & (worst > 0)).any(), f"{name} leaves without noise somewhere"
        ratio = torch.where(worst > 0, worst / variance, 0.0).sum(dim=1) * (len(questions) - 2) / len(questions)
        charge = release.charge(prepared.allowance, asked.public)
        charged = np.square(charge.sensitivity / charge.noise[:, -1])
        error = SURE * math.sqrt(2 / (len(questions) * smallest_part(release, asked.public, width)))
        assert np.allclose(ratio.numpy(), charged, rtol=error), f"{name}: mu^2 {ratio}, but {charged} is charged"
        rows = noise.reshape(-1, width)
        assert len(rows.unique(dim=0)) > 0.99 * len(rows), f"{name}: the same noise came twice"


def smallest_part(release: Release, public: Public, width: int) -> int:
    """Return the smallest number of entries that share one standard deviation."""
    if not getattr(release, "layered", False):
        return width
    named = getattr(release, "sizes", None)
    return min(public.layers) if named is None else int(public.rows(named).min())


def one_clients_data_do_not_touch_anothers_state(case: Case) -> None:
    """Check that other records at one client leave the memory of all other clients unchanged."""
    prepared = case.prepared()
    first = prepared.data.clients[0]
    other = ClientData(first.name, first.x.flip(0) * -3, first.y.flip(0), first.x_test, first.y_test)
    changed = dataclasses.replace(prepared.data, clients=(other, *prepared.data.clients[1:]))
    states = [
        OneRound(prepared, case.folder / str(number), data).memory
        for number, data in enumerate((prepared.data, changed))
    ]
    for client in range(1, CLIENTS):
        for key, rows in states[0].items():
            assert torch.equal(rows[client], states[1][key][client]), f"{key} of client {client} knows of client 0"
    learned = any(not torch.equal(rows[0], states[1][key][0]) for key, rows in states[0].items())
    # Clients whose messages carry a share of the noise only must keep nothing that depends on their records.
    shared = prepared.method.sends_sums()
    assert learned != shared, "something was learned of a thinly noised message" if shared else "nothing was learned"


def private_state_is_in_no_message(case: Case) -> None:
    """Check that no message contains a client's private memory, with next to no noise."""
    once = OneRound(case.prepared(noise_multiplier=1e-6), case.folder)
    for asked in once.asked:
        declared = once.clients.steps[asked.question.step]
        assert set(asked.answer.values) == set(declared)
        # What was made of noisy gradients has been paid for: a client may keep it too.
        paid = {name for name, release in declared.items() if release.made_of_gradients or release.sources()}
        states = {name: rows[list(asked.question.clients)] for name, rows in once.memory.items()}
        for name, rows in states.items():
            for release in set(declared) - paid if name not in once.clients.public_names else ():
                sent = once.gate.read(declared[release], asked.answer.values[release], asked.public)
                for one, other in zip(rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1), sent, strict=True):
                    assert not _holds(one.double().numpy(), other.double().numpy()), f"{name} left as {release}"


def _holds(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the longer of two vectors contains the shorter one, up to a thousandth of its norm. Constants and vectors
    of one or two numbers do not count."""
    short, long = sorted((one, other), key=len)
    if len(short) < FEW or np.ptp(short) == 0:
        return False
    length = float(short @ short)
    sums = np.concatenate([[0.0], np.cumsum(np.square(long))])
    squares = sums[len(short) :] - sums[: len(sums) - len(short)]
    distances = squares - 2 * fftconvolve(long, short[::-1], "valid") + length
    return bool((distances <= NEAR**2 * length).any())


def what_a_step_changes_in_place_changes_nothing(case: Case) -> None:
    """Check that a step which overwrites its message and memory changes neither others' messages nor any bound."""

    def vandal(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, message: Any, me: Any, data: Any) -> Any:
            result = result_of(self, original.__name__, original(self, message, me, data))
            sent, kept = ({name: _copy(value) for name, value in table.items()} for table in (result.send, result.keep))
            begun = _copy(result.start)
            for table in (message, me):
                for value in table.values():
                    if isinstance(value, Tensor):
                        value.mul_(0).add_(1e9) if value.is_floating_point() else value.bitwise_not_()
                    elif isinstance(value, list):
                        value.clear()
                table.clear()
            return dataclasses.replace(result, send=sent, keep=kept, start=begun)

        return step

    prepared = case.prepared()
    before = OneRound(prepared, case.folder / "before").asked
    spoilt = with_steps(prepared.method, vandal, *prepared.method.steps())
    after = OneRound(dataclasses.replace(prepared, method=spoilt), case.folder / "after").asked
    for one, other in zip(before, after, strict=True):
        for name, rows in one.answer.values.items():
            assert torch.equal(rows, other.answer.values[name]), f"{name} differs once steps overwrite what they got"


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
