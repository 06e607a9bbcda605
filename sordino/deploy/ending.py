"""How a site answers to `end`: it keeps its models, and destroys the run's keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as loaded
from safetensors.torch import save as saved
from torch import Tensor

from sordino.deploy import reading
from sordino.deploy.book import Book
from sordino.deploy.desk import Desk
from sordino.deploy.enrolling import session_of
from sordino.deploy.rules import RefusedError
from sordino.experiment.trained import measured
from sordino.learning.metrics import METRICS
from sordino.threads import single_threaded

MODELS = "models"


def end(desk: Desk, message: Mapping[str, Any]) -> bytes:
    """A run is over, and `model` is what the server has for this site."""
    run, model = reading.text(message, "run"), message.get("model")
    with Book(desk.folder) as book:
        known = book.run(run)
        if known is not None and known["state"] == "done":
            return reading.answered()
        session = session_of(desk, book, run)
        assert known is not None
        if model is not None and (not isinstance(model, Tensor) or model.shape != session.terms.initial.shape):
            raise RefusedError("bounds", "the model is not of this network's size")
        content, tensors = book.latest(run), {"clients": torch.tensor([session.number])}
        if content is not None:
            tensors["personal"] = loaded(content)["model"].reshape(1, -1)
        if model is not None:
            tensors["global"] = model.float()
        path = desk.folder / MODELS / f"{hashlib.sha256(run.encode()).hexdigest()[:16]}.safetensors"
        path.parent.mkdir(exist_ok=True)
        numbers = [str(number) for number in range(session.terms.schedule.clients)]
        tensors |= measured(np.full((len(numbers), len(METRICS)), np.nan))
        path.write_bytes(saved(tensors, session.terms.described(run, numbers).metadata()))
        with single_threaded():
            final = session.accuracy(model)
        with book.transaction():
            book.end(known, final, str(path.relative_to(desk.folder)))
    desk.sessions.pop(run, None)
    desk.note(f"the run {run} is over")
    return reading.answered()
