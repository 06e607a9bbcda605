"""The Python interface: each function does what the command of the same name does.

    import sordino

    result = sordino.run(data="digits", method="feddpa", clients=100, epsilon=8)
    print(result["accuracy"]["personal"], result["epsilon"]["outsider"])

Keywords are the keys of an experiment file; `set` holds hyper-parameters: `set={"tau": 0.3}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordino import models
from sordino.errors import UserError
from sordino.experiment.compare import Comparison, contender
from sordino.experiment.compare import compare as compare_methods
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import resume as resume_run
from sordino.experiment.run import start
from sordino.experiment.store import Store
from sordino.experiment.summary import Summary
from sordino.parts.blending import Blended
from sordino.privacy.plan import Plan, plan
from sordino.report.page.make import make_report
from sordino.server import Watch

__all__ = ["Comparison", "Models", "Plan", "compare", "load_models", "make_report", "plan", "resume", "run"]


def run(experiment: str | Path | None = None, *, watch: Watch | None = None, **keys: Any) -> Summary:
    """Run an experiment (a TOML file, keywords, or both) and return its summary.

    `watch` is called with a `RoundReport` after each round.
    """
    return start(prepare(_experiment(experiment, keys)), watch=watch)


def resume(run: str, store: str | Path = ".sordino", *, watch: Watch | None = None) -> Summary:
    """Take up a stopped run and return its summary: the same as if it had never been stopped."""
    return resume_run(run, Store(Path(store), must_exist=True), watch)


def compare(experiment: str | Path | None = None, *, methods: Sequence[str], seeds: int = 3, **keys: Any) -> Comparison:
    """Run several methods with several seeds at equal epsilon."""
    names = [contender(text)[0] for text in methods]
    return compare_methods(_experiment(experiment, keys, names), methods, seeds)


@dataclass(frozen=True)
class Models:
    """The trained networks of a run."""

    shared: list[nn.Module]
    """The server's models: one, one for each cluster, or none."""
    personal: dict[int, nn.Module]
    """What each client predicts with, by client number: the network of each that took part, or, where clients blend
    models, the mixture of each, whose outputs are the logarithms of class probabilities."""


def load_models(run: str, store: str | Path = ".sordino") -> Models:
    """The trained networks of a finished run."""
    from safetensors.torch import load_file

    from sordino.learning.records import Learner

    found = Store(Path(store), must_exist=True)
    row = found.get(run)
    if row.models is None:
        raise UserError(f"The run {run!r} is not finished: resume it first with `sordino resume {run}`.")
    prepared = prepare(Experiment.make(row.configuration | {"precision": "fp32"}))  # only the network is wanted
    tensors = load_file(row.models.check(found.path(run), "The file of models"))

    def network(flat: torch.Tensor) -> nn.Module:
        module = models.build(
            str(prepared.experiment.model),
            prepared.data.shape,
            prepared.data.classes,
            **prepared.experiment.model_options(),
        )
        Learner(module).bind(flat)
        return module.eval()

    width = tensors["personal"].shape[1]
    rows: Any = tensors["global"].reshape(-1, width) if "global" in tensors else []
    shared = [network(row) for row in rows]
    personal = {
        client: network(flat) for client, flat in zip(tensors["clients"].tolist(), tensors["personal"], strict=True)
    }
    if "blend" not in tensors:
        return Models(shared, personal)
    blended = {}
    for place, client in enumerate(tensors["blend_clients"].tolist()):
        made: list[nn.Module | None] = [network(flat) for flat in tensors["blend"][place].reshape(-1, width)]
        server = shared[int(tensors["clusters"][client]) if "clusters" in tensors else 0] if shared else None
        members = [*made, personal.get(client), server]
        blended[client] = mixed(members, tensors["weights"][place], tensors["powers"][place])
    return Models(shared, blended)


def mixed(networks: Sequence[nn.Module | None], weights: torch.Tensor, powers: torch.Tensor) -> nn.Module:
    """The mixture of those networks that there are."""
    there = {place: one for place, one in enumerate(networks) if one is not None and weights[place] > 0}
    return Blended(list(there.values()), weights[list(there)], powers[list(there)]).eval()


def _experiment(file: str | Path | None, keys: dict[str, Any], methods: Sequence[str] = ()) -> Experiment:
    if file is None:
        return Experiment.make(keys, methods=methods)
    return Experiment.read(Path(file), keys, methods=methods)
