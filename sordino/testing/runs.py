"""Checks that a method's runs give the same results with either engine, any number of workers, and after a resume."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

from sordino.experiment.run import carry_on, register
from sordino.federation.rounds import RoundReport, RoundWatch
from sordino.privacy.noise import NONCE_BYTES
from sordino.simulator.choice import why_no_records_stacked
from sordino.store.store import Store
from sordino.testing.case import Case

JUMPING = {"metrics", "metrics_known"}
"""Entries of the models' file that may jump when a model changes in its last bit, because two classes are tied."""


def engines(case: Case) -> list[str]:
    """Return the engines that can train a method's clients: at record level not all can be stacked."""
    prepared = case.prepared(engine="one-by-one")
    stacks = (
        not case.method.unit.record_level or why_no_records_stacked(prepared.method, prepared.learner, False) is None
    )
    return ["one-by-one", "stacked"] if stacks else ["one-by-one"]


def _one_nonce() -> bytes:
    return bytes(NONCE_BYTES)


drawing_alike = mock.patch("sordino.experiment.run.new_nonce", new=_one_nonce)
"""Gives runs with user code the same nonce, hence the same noise, so that they can be compared; none is published."""


@drawing_alike
def stacked_and_one_by_one_agree(case: Case) -> None:
    """Check that both engines give the same models, up to rounding, where both can be used."""
    if "stacked" not in engines(case):
        return
    # The same noise for both, named without the values, which differ in their last bits: nobody publishes these runs.
    alone = dataclasses.replace(case.prepared(engine="one-by-one"), repeats=True)
    stacked = case.prepared(engine="stacked")
    stacked = dataclasses.replace(stacked, repeats=True, identity=alone.identity)
    _, models = case.finished(alone, case.folder / "one")
    _, others = case.finished(stacked, case.folder / "stacked")
    assert models.keys() == others.keys()
    for key in models.keys() - JUMPING:
        assert torch.allclose(models[key], others[key], atol=1e-4), f"{key}: stacked clients differ from single ones"


@drawing_alike
def the_number_of_workers_changes_no_bit(case: Case) -> None:
    """Check that one process and two give the same results."""
    for engine in engines(case):
        alone = case.prepared(engine=engine, workers=1)
        both = case.prepared(engine=engine, workers=2)
        one, models = case.finished(alone, case.folder / f"{engine}-1")
        two, others = case.finished(both, case.folder / f"{engine}-2")
        assert one == two, f"{engine}: the summary depends on the number of processes"
        for key in models:
            assert torch.equal(models[key], others[key]), f"{engine}: {key} depends on the number of processes"


class StopHere(Exception):  # noqa: N818
    """A run is stopped on purpose."""


@drawing_alike
def a_stopped_run_ends_as_if_it_had_not_been(case: Case) -> None:
    """Check that a run which is stopped and resumed has the same summary, models and ledger."""

    def stop(report: RoundReport) -> None:
        if report.round == 2:
            raise StopHere

    for engine in engines(case):
        keys: dict[str, Any] = {"engine": engine, "participation": 0.5, "rounds": 5}
        prepared = case.prepared(**keys)
        whole, models = case.finished(prepared, case.folder / f"whole-{engine}")
        stopped = Store(case.folder / f"stopped-{engine}")
        run = register(prepared, stopped)
        with mock.patch("sordino.federation.server.SAVE_SECONDS", 0.0), contextlib.suppress(StopHere):
            carry_on(prepared, stopped, run, RoundWatch(stop))
            raise AssertionError("the run was not stopped")
        assert stopped.get(run).rounds_done == 2
        resumed = carry_on(case.prepared(**keys), stopped, run)
        assert {k: v for k, v in resumed.to_dict().items() if k not in ("run", "seconds")} == whole, (
            "the summary differs"
        )
        again = load_file(stopped.path(run) / "models.safetensors")
        for key in models:
            assert torch.equal(models[key], again[key]), f"{key} differs once a run has been stopped"
        undisturbed = Store(case.folder / f"whole-{engine}")
        assert stopped.ledger(run) == undisturbed.ledger(undisturbed.all()[0].run), "the ledger differs"
