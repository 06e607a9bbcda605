"""A site's answer to `end`: it keeps its models, blended where the experiment says so, and destroys the run's key.

Nothing that is computed here leaves the site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as loaded
from torch import Tensor

from sordino.deploy.site import requests
from sordino.deploy.site.enrol import get_session
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.rules import RefusedError
from sordino.deploy.site.session import Session, SiteContext
from sordino.deploy.terms import DeployedTerms
from sordino.federation.blending import figures_of, instructions, makes_mixtures, mixing
from sordino.federation.run_state import Served
from sordino.store.checkpoint import write_tensors
from sordino.trained.models import feature_tensors, measured
from sordino.util.files import KeptFile, keep_file
from sordino.util.processes import single_threaded

MODELS = "models"


def answer_end(context: SiteContext, message: Mapping[str, Any]) -> bytes:
    """Answer `end`: keep the run's models and destroy its key.

    The message's `model` is the server's model for this site, and `averaged`, where sites blend, the mean of such
    models over the rounds. A server without such a mean sends none; the model then takes its place.
    """
    run = requests.read_text(message, "run")
    with SiteLedger(context.folder) as ledger:
        known = ledger.run(run)
        if known is not None and known["state"] == "done":
            return requests.ok_reply()
        session = get_session(context, ledger, run)
        assert known is not None
        model, averaged = (_read_model(message.get(name), session.terms) for name in ("model", "averaged"))
        if model is None and averaged is not None:
            raise RefusedError("bounds", "it has the mean over the rounds, but no model")
        content = ledger.latest_memory(run)
        state = session.blank if content is None else loaded(content)
        tensors, served = _models(session, state, model, averaged)
        task = session.terms.learner.task
        figures, shared = np.full(len(task.metrics), np.nan), None
        with single_threaded(), context.log_errors(f"the models of the run {run} cannot be blended or evaluated"):
            blended, figures = _blend_and_evaluate(session, state, served)
            tensors |= blended
            shared = session.accuracy(model)
        file = _write_models(context, session, run, tensors, figures)
        score = float(figures[task.metrics.index(task.score)])
        personal = None if np.isnan(score) else score
        with ledger.transaction():
            ledger.end_run(known, personal, shared, file)
    context.sessions.pop(run, None)
    context.log(f"the run {run} is over")
    return requests.ok_reply()


def _read_model(model: Any, terms: DeployedTerms) -> Tensor | None:
    """Check a model that came with the message; None where there is none."""
    if model is None:
        return None
    if not isinstance(model, Tensor) or model.shape != terms.initial.shape:
        raise RefusedError("bounds", "the model does not have as many parameters as this network")
    return model.float()


def _models(
    session: Session, state: dict[str, Tensor], model: Tensor | None, averaged: Tensor | None
) -> tuple[dict[str, Tensor], Served | None]:
    """Tensors of the site's own model and the server's, as models are stored; and the server's model alone."""
    number, terms = session.number, session.terms
    own, there = state["model"].reshape(1, -1), bool(state["participations"] > 0)
    tensors = {"clients": torch.tensor([number] * there, dtype=torch.int64), "personal": own[: int(there)]}
    if model is None:
        return tensors, None
    mean = None
    if terms.experiment.personal == "blend":
        mean = (model if averaged is None else averaged).reshape(1, -1)
    served = Served(model.reshape(1, -1), torch.zeros(terms.schedule.clients, dtype=torch.int64), mean)
    return tensors | served.tensors(), served


def _blend_and_evaluate(
    session: Session, state: dict[str, Tensor], served: Served | None
) -> tuple[dict[str, Tensor], np.ndarray]:
    """Blend the site's models where the run does so, and compute the metrics of the model it predicts with."""
    number, terms = session.number, session.terms
    own, took_part = state["model"].reshape(1, -1), state["participations"].reshape(1)
    if not makes_mixtures(terms.experiment.personal, terms.learner.task):
        shared = None if served is None else served.models
        return {}, session.metrics(own if bool(took_part > 0) else shared)
    records = np.full(terms.schedule.clients, terms.experiment.records_each or 1)
    personal, method, schedule = terms.experiment.personal, terms.method, terms.schedule
    told = instructions(personal, method, schedule, terms.allowance, records, terms.initial, served)
    made = mixing(session.clients, [number], own, took_part, told).mixtures()
    blend = {**made.rules(), "blend_clients": torch.tensor([number])}
    if made.models.numel():
        blend["blend"] = made.models.flatten(1)
    columns = figures_of(terms.learner.task)
    return blend, made.accuracies[0, [columns.index(name) for name in terms.learner.task.metrics]]


def remove_leftovers(folder: Path, ledger: SiteLedger) -> None:
    """Remove models whose run was stopped between writing them and committing the end to the ledger."""
    kept = {run["model"] for run in ledger.runs()}
    for path in (folder / MODELS).glob("*"):
        if f"{MODELS}/{path.name}" not in kept:
            path.unlink()


def _write_models(
    context: SiteContext, session: Session, run: str, tensors: dict[str, Tensor], figures: np.ndarray
) -> KeptFile:
    """Write models into a file that the ledger will name; a crash leaves the whole file or nothing.

    Args:
        context: The site's context.
        session: Session of the run.
        run: The run's name.
        tensors: Models, by the names under which they are stored.
        figures: Metrics of the model that the site predicts with.
    """
    names = [str(number) for number in range(session.terms.schedule.clients)]
    names[session.number] = context.policy.rules.name
    rows = np.full((len(names), len(figures)), np.nan)
    rows[session.number] = figures
    about = session.terms.described(run, names, context.policy.rules.label)
    path = context.folder / MODELS / f"{hashlib.sha256(run.encode()).hexdigest()[:16]}.safetensors"
    path.parent.mkdir(exist_ok=True)
    write_tensors(
        tensors | measured(rows) | feature_tensors(session.terms.extractor), path.with_suffix(".tmp"), about.metadata()
    )
    kept = keep_file(path.with_suffix(".tmp"), path)
    return KeptFile(f"{MODELS}/{kept.name}", kept.digest)
