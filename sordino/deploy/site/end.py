"""How a site answers to `end`: it keeps its models, blended where that is wanted, and destroys the run's keys.

Nothing of what is worked out here leaves the site.
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
from sordino.deploy.site.context import Desk
from sordino.deploy.site.enrol import session_of
from sordino.deploy.site.ledger import Book
from sordino.deploy.site.rules import RefusedError
from sordino.deploy.site.session import Session
from sordino.deploy.terms import Terms
from sordino.federation.blending import Blending, figures_of, instructions
from sordino.federation.run_state import Served
from sordino.store.checkpoint import write_tensors
from sordino.trained.models import measured
from sordino.util.files import KeptFile, keep_file
from sordino.util.processes import single_threaded

MODELS = "models"


def end(desk: Desk, message: Mapping[str, Any]) -> bytes:
    """A run is over; `model` is what the server has for this site, and `averaged`, where sites blend, the mean of such
    models over the rounds. A server that knows of no mean sends none: the model stands for it."""
    run = requests.text(message, "run")
    with Book(desk.folder) as book:
        known = book.run(run)
        if known is not None and known["state"] == "done":
            return requests.answered()
        session = session_of(desk, book, run)
        assert known is not None
        model, averaged = (_given(message.get(name), session.terms) for name in ("model", "averaged"))
        if model is None and averaged is not None:
            raise RefusedError("bounds", "the mean over the rounds came without a model")
        content = book.latest(run)
        state = session.blank if content is None else loaded(content)
        tensors, served = _models(session, state, model, averaged)
        task = session.terms.learner.task
        figures, shared = np.full(len(task.metrics), np.nan), None
        with single_threaded(), desk.keeping_errors(f"the models of the run {run} cannot be blended or evaluated"):
            blended, figures = _judged(session, state, served)
            tensors |= blended
            shared = session.accuracy(model)
        file = _written(desk, session, run, tensors, figures)
        score = float(figures[task.metrics.index(task.score)])
        personal = None if np.isnan(score) else score
        with book.transaction():
            book.end(known, personal, shared, file)
    desk.sessions.pop(run, None)
    desk.note(f"the run {run} is over")
    return requests.answered()


def _given(model: Any, terms: Terms) -> Tensor | None:
    """A model that came with the message, if it can be one."""
    if model is None:
        return None
    if not isinstance(model, Tensor) or model.shape != terms.initial.shape:
        raise RefusedError("bounds", "the model is not of this network's size")
    return model.float()


def _models(
    session: Session, state: dict[str, Tensor], model: Tensor | None, averaged: Tensor | None
) -> tuple[dict[str, Tensor], Served | None]:
    """The site's own model and the server's, as models are stored; and the server's by themselves."""
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


def _judged(session: Session, state: dict[str, Tensor], served: Served | None) -> tuple[dict[str, Tensor], np.ndarray]:
    """Blend the site's models where the run does so, and compute the metrics of the model it predicts with."""
    number, terms = session.number, session.terms
    own, took_part = state["model"].reshape(1, -1), state["participations"].reshape(1)
    if terms.experiment.personal != "blend":
        shared = None if served is None else served.models
        return {}, session.metrics(own if bool(took_part > 0) else shared)
    records = np.full(terms.schedule.clients, terms.experiment.records_each or 1)
    told = instructions(terms.method, terms.schedule, terms.allowance, records, terms.initial, served)
    made = Blending(session.clients, [number], own, took_part, told).mixtures()
    blend = {"blend": made.models.flatten(1), **made.rules(), "blend_clients": torch.tensor([number])}
    columns = figures_of(terms.learner.task)
    return blend, made.accuracies[0, [columns.index(name) for name in terms.learner.task.metrics]]


def remove_leftovers(folder: Path, book: Book) -> None:
    """Remove the models of ends that were stopped before the book knew of them."""
    kept = {run["model"] for run in book.runs()}
    for path in (folder / MODELS).glob("*"):
        if f"{MODELS}/{path.name}" not in kept:
            path.unlink()


def _written(desk: Desk, session: Session, run: str, tensors: dict[str, Tensor], figures: np.ndarray) -> KeptFile:
    """The models in a file; a crash leaves either nothing or the whole of it."""
    names = [str(number) for number in range(session.terms.schedule.clients)]
    names[session.number] = desk.allowed.rules.name
    rows = np.full((len(names), len(figures)), np.nan)
    rows[session.number] = figures
    about = session.terms.described(run, names, desk.allowed.rules.label)
    path = desk.folder / MODELS / f"{hashlib.sha256(run.encode()).hexdigest()[:16]}.safetensors"
    path.parent.mkdir(exist_ok=True)
    write_tensors(tensors | measured(rows), path.with_suffix(".tmp"), about.metadata())
    kept = keep_file(path.with_suffix(".tmp"), path)
    return KeptFile(f"{MODELS}/{kept.name}", kept.digest)
