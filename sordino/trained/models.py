"""Trained models of a run: the server's and each client's, with a description of what goes in and what comes out.

One file holds all of it. Neither the data nor the experiment is needed to predict.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from sordino import models
from sordino.data.dataset import Meaning
from sordino.errors import UserError, unknown
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.experiment.prepare import Prepared
from sordino.features.extractor import Extractor, rebuild
from sordino.learning.network import Learner
from sordino.parts.blending import ADJUSTED, AVERAGED, LOCAL, NETWORKS, OWN, TUNED, Blended, offsets
from sordino.store.store import Store, unfinished
from sordino.version import VERSION

FEATURES = "features."
"""Prefix of the names of an extractor's tensors in a file of models."""
ABOUT = "sordino"
"""Key of the description in a file's metadata."""
NAMED = 10
"""Number of clients that a sentence names."""


@dataclass(frozen=True)
class Description:
    """Meaning of stored models."""

    run: str
    version: str
    """Version of Sordino that trained them."""
    method: str
    network: str
    """Name of the network, or the dotted name of the user's own."""
    options: dict[str, Any]
    """Options of the network."""
    shape: tuple[int, ...]
    """Shape of one record, as the network takes it, or the extractor of its features."""
    meaning: Meaning
    """The task, and the rules by which a table's row becomes a record."""
    clients: tuple[str, ...]
    """Names of all clients of the run, in the order of their numbers."""
    features: dict[str, Any] | None = None
    """Extractor of the features that the network takes (`Extractor.document`); None where it takes records."""

    def document(self) -> dict[str, Any]:
        """Description for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.features is None:
            del fields["features"]
        return fields | {"meaning": self.meaning.document()}

    def metadata(self) -> dict[str, str]:
        """Metadata of the file of models: without the run's name, so that equal runs have equal files."""
        return {ABOUT: json.dumps({key: value for key, value in self.document().items() if key != "run"})}

    @classmethod
    def read(cls, text: str, run: str) -> Description:
        """Read the metadata of a file of models."""
        found = {"run": run, **json.loads(text)}
        tuples = {name: tuple(found[name]) for name in ("shape", "clients")}
        return cls(**found | tuples | {"meaning": Meaning.read(found["meaning"])})

    def number(self, client: str | int) -> int:
        """Number of a client by its name."""
        if isinstance(client, int):
            if not 0 <= client < len(self.clients):
                raise UserError(f"There is no client {client} in {self.run!r}: they are 0 to {len(self.clients) - 1}.")
            return client
        if client not in self.clients:
            raise unknown("client", client, self.clients)
        return self.clients.index(client)

    def build(self, flat: Tensor) -> nn.Module:
        """Build the network with the given parameters; where there are features, it takes these."""
        shape = self.shape if self.features is None else tuple(self.features["shape"])
        with torch.random.fork_rng(devices=[]):
            module = models.build(self.network, shape, self.meaning.task.width, **self.options)
        Learner(module, self.meaning.task).bind(flat)
        return module.eval()


def measured(figures: np.ndarray) -> dict[str, Tensor]:
    """Clients' metrics as they are stored: NaN becomes 0 beside a mask, so that equal metrics give equal files."""
    known = ~np.isnan(figures)
    return {"metrics": torch.from_numpy(np.where(known, figures, 0.0)), "metrics_known": torch.from_numpy(known)}


def described(run: str, prepared: Prepared) -> Description:
    """Describe the models of a prepared run."""
    data = prepared.data
    return Description(
        run=run,
        version=VERSION,
        method=prepared.experiment.method,
        network=str(prepared.experiment.model),
        options=prepared.experiment.model_options(),
        shape=data.shape if prepared.extractor is None else prepared.extractor.shape,
        meaning=data.meaning,
        clients=tuple(data.names),
        features=None if prepared.extractor is None else prepared.extractor.document(),
    )


def feature_tensors(extractor: Extractor | None) -> dict[str, Tensor]:
    """Weights of an extractor, by the names under which a file of models holds them."""
    return {} if extractor is None else {f"{FEATURES}{name}": one for name, one in extractor.tensors().items()}


class OnRecords(nn.Module):
    """A network that takes records: the extractor of their features, then a network that takes these."""

    def __init__(self, extractor: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.extractor, self.network = extractor, network

    def forward(self, records: Tensor) -> Tensor:
        return self.network(self.extractor(records))


class Personal(Mapping[str, nn.Module]):
    """Predictors of clients, by the client's name or number; each is built when it is read."""

    def __init__(self, file: _File) -> None:
        self._file = file

    def __getitem__(self, client: str | int) -> nn.Module:
        number = self._file.about.number(client)
        if number not in self._file.places:
            raise UserError(
                f"The client {self._file.about.clients[number]!r} never took part, and has no model of its own: use "
                "`predictor`, which then takes the server's."
            )
        return self._file.personal(number)

    def __iter__(self) -> Iterator[str]:
        return (self._file.about.clients[number] for number in self._file.places)

    def __len__(self) -> int:
        return len(self._file.places)

    def __contains__(self, client: object) -> bool:
        known = self._file.about.clients
        number = known.index(client) if client in known else client
        return number in self._file.places

    def get(self, client: str | int, default: Any = None) -> Any:
        """Predictor of a client, or `default` where it has none."""
        try:
            return self[client]
        except UserError:
            return default

    def __repr__(self) -> str:
        return f"Personal({len(self)} clients: {', '.join(list(self)[:5])}{', ...' if len(self) > 5 else ''})"


@dataclass(frozen=True, repr=False)
class Models:
    """Trained networks of a run."""

    shared: list[nn.Module]
    """Models of the server: one, one for each cluster, or none."""
    personal: Personal
    """Predictors of clients, by name: the network of each client that took part or, where clients blend models, the
    mixture of each, whose outputs are the logarithms of class probabilities."""
    about: Description
    """Description of the models."""
    metrics: np.ndarray
    """(clients, metrics) of what each client predicts with, by its number; the columns are the task's `metrics`."""
    threshold: float | None = None
    """Operating point of a site's own model: probability from which on it predicts the class that is looked for; None
    for the most probable class."""

    def only_client(self) -> str:
        """Name of the only client of these models; where there are several, one must be named."""
        if len(self.personal) != 1:
            raise UserError(f"{self._ask_client()}.")
        return next(iter(self.personal))

    def shared_model(self) -> nn.Module:
        """The server's model, where it has one for all clients: the one that may be given away, since epsilon covers
        it."""
        if len(self.shared) == 1:
            return self.shared[0]
        many = f"has {len(self.shared)} models, one for each cluster" if self.shared else "has no model of its own"
        raise UserError(
            f"The server of {self.about.run!r} {many}, so there is none for all clients. {self._ask_client()}."
        )

    def _ask_client(self) -> str:
        names = self.about.clients
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        listed = f"There are {len(names)} clients ({', '.join(names[:NAMED])}{more})"
        return f"{listed}: name one, as in --client {quote(names[0])}"

    def __repr__(self) -> str:
        served = f", {len(self.shared)} of the server" if self.shared else ""
        return f"<Models of {self.about.run}: {self.about.network}, {len(self.personal)} personal ones{served}>"

    def predictor(self, client: str | int | None) -> nn.Module:
        """Predictor of a client, one that never took part takes the server's model; None for the server's own."""
        if client is None:
            return self.shared_model()
        if client in self.personal:
            return self.personal[client]
        number = self.about.number(client)
        if not self.shared:
            raise UserError(f"The client {self.about.clients[number]!r} never took part, and the server has no model.")
        return self.shared[self.personal._file.cluster(number)]


class _File:
    """File of models whose digest was checked."""

    def __init__(self, path: Path, run: str) -> None:
        self._file = safe_open(path, framework="pt")
        self._names = set(self._file.keys())
        text = (self._file.metadata() or {}).get(ABOUT)
        self._earlier = UserError(f"The models in {path} were written by an earlier version of Sordino: run it anew.")
        if text is None:
            raise self._earlier
        self.about = Description.read(text, run)
        self._rows = {client: row for row, client in enumerate(self.tensor("clients").tolist())}
        blended = self.tensor("blend_clients").tolist() if "blend_clients" in self._names else []
        self._blended = {client: row for row, client in enumerate(blended)}
        self.places = sorted(self._blended or self._rows)
        """Numbers of the clients that have a model."""

    def tensor(self, name: str) -> Tensor:
        found: Tensor = self._file.get_tensor(name)
        return found

    @functools.cached_property
    def extractor(self) -> Extractor | None:
        """Extractor of the features that the networks take; None where they take records."""
        about = self.about
        if about.features is None:
            return None
        mine = {name.removeprefix(FEATURES): self.tensor(name) for name in self._names if name.startswith(FEATURES)}
        return rebuild(about.features, about.shape, mine)

    def on_records(self, network: nn.Module) -> nn.Module:
        """A network that takes records."""
        return network if self.extractor is None else OnRecords(self.extractor.module, network).eval()

    def metrics(self) -> np.ndarray:
        """Metrics of clients, as in `Models.metrics`."""
        known = self.tensor("metrics_known").numpy()
        return np.where(known, self.tensor("metrics").numpy(), np.nan)

    def shared(self) -> list[nn.Module]:
        """Models of the server."""
        if "global" not in self._names:
            return []
        rows = self.tensor("global")
        return [self.on_records(self.about.build(row)) for row in (rows if rows.dim() == 2 else rows.unsqueeze(0))]

    def cluster(self, client: int) -> int:
        """Index of the server's model that is a client's."""
        return int(self.tensor("clusters")[client]) if "clusters" in self._names else 0

    def personal(self, client: int) -> nn.Module:
        """Predictor of a client."""
        if not self._blended:
            return self.on_records(self._own(client))
        row = self._blended[client]
        weights, powers, added = self._rules(row)
        width = self._file.get_slice("personal").get_shape()[1]
        made = {}
        if "blend" in self._names:
            trained = self._file.get_slice("blend")[row : row + 1].reshape(-1, width)
            made = {member: self.about.build(flat) for member, flat in zip((LOCAL, TUNED), trained, strict=False)}
        if client in self._rows:
            made[OWN] = self._own(client)
        for member, name in ((AVERAGED, "averaged"), (ADJUSTED, "global")):
            if name in self._names:
                made[member] = self.about.build(self.tensor(name).reshape(-1, width)[self.cluster(client)])
        there = weights.nonzero().squeeze(1).tolist()
        if not made.keys() >= {NETWORKS[member] for member in there}:  # other members were mixed then
            raise self._earlier
        members = [made[NETWORKS[member]] for member in there]
        blended = Blended(self.about.meaning.task, members, weights[there], powers[there], added[there]).eval()
        return self.on_records(blended)

    def _rules(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, powers and offsets of the mixture in a row. Earlier versions stored labels' frequencies, from which
        offsets follow, and had fewer members."""
        if not self._names.issuperset({"weights", "powers"}) or self._names.isdisjoint({"offsets", "labels"}):
            raise self._earlier
        weights, powers = self.tensor("weights")[row], self.tensor("powers")[row]
        added = self.tensor("offsets")[row] if "offsets" in self._names else offsets(self.tensor("labels")[row])
        return weights, powers, added

    def _own(self, client: int) -> nn.Module:
        """Model that the method left at a client."""
        row = self._rows[client]
        return self.about.build(self._file.get_slice("personal")[row : row + 1].reshape(-1))


def load_models(run: str, store: str | Path = DEFAULT_STORE) -> Models:
    """Load the trained networks of a finished run."""
    found = Store(Path(store), must_exist=True)
    row = found.get(run)
    if row.models is None and row.has_result:
        raise UserError(f"The models of {run!r} have been removed from the store {found.folder}.")
    if row.models is None:
        raise unfinished(row, found.folder)
    return models_in(row.models.check(found.path(run), "The file of models"), run)


def models_in(path: Path, run: str) -> Models:
    """Networks in a file whose digest was checked."""
    file = _File(path, run)
    return Models(file.shared(), Personal(file), file.about, file.metrics())


def metrics_in(path: Path, run: str) -> tuple[Description, np.ndarray]:
    """Description of the models in a file whose digest was checked, and clients' metrics, as in `Models.metrics`; no
    network is built."""
    file = _File(path, run)
    return file.about, file.metrics()
