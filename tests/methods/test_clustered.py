"""IFCA, CFL and PACFL: what each is without its clusters, and that each finds clusters that are there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import QUICK, QUICK_KEYS, refused
from sklearn.metrics import adjusted_rand_score
from whole_runs import Ended

import sordino
from sordino.data import ClientData, FederatedData, load
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.learning.network import Records
from sordino.learning.parameters import Layout
from sordino.method import Federation, Message, Method, Replies, Result
from sordino.methods.adadp_cfl import AdaDPCFL
from sordino.methods.cfl import CFL
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_ifca import DPIFCA
from sordino.methods.fedavg import FedAvg
from sordino.methods.ifca import IFCA
from sordino.methods.pacfl import PACFL
from sordino.parts.clustering import least_loss, starts
from sordino.parts.record_thresholds import Fixed, Percentile
from sordino.study.sweep import cells
from sordino.tasks import Classification
from sordino.testing.case import OneRound

ENGINES = ["one-by-one", "stacked"]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_model_to_choose_from_is_fedavg(engine: str, tmp_path: Path) -> None:
    mine = Ended(IFCA(clusters=1, epochs=2), tmp_path, engine=engine)
    other = Ended(FedAvg(epochs=2), tmp_path, mine, engine=engine)
    assert torch.equal(mine.state["models"], other.state["model"].unsqueeze(0))
    assert torch.equal(mine.memory["model"], other.memory["model"])


@pytest.mark.parametrize("engine", ENGINES)
def test_one_private_model_to_choose_from_is_dp_fedavg(engine: str, tmp_path: Path) -> None:
    """The same noise included: a vector of one part is the update."""
    mine = Ended(DPIFCA(clusters=1, epochs=2), tmp_path, engine=engine)
    other = Ended(DPFedAvg(epochs=2), tmp_path, mine, engine=engine)
    assert torch.equal(mine.state["models"], other.state["model"].unsqueeze(0))


def test_a_private_model_moves_by_those_who_chose_it_over_the_cohorts_kth_part(tmp_path: Path) -> None:
    """Six clients and two models: by a third of the sum of their updates. Nothing is clipped, and next to no noise."""
    run = Ended(DPIFCA(clusters=2, epochs=1, clip=100.0), tmp_path, rounds=1, noise_multiplier=1e-9)
    first = run.run.asked[0].question.message["models"]
    chosen = torch.cdist(run.memory["model"], first).argmin(dim=1)
    for number, start in enumerate(first):
        moved = (run.memory["model"][chosen == number] - start).sum(dim=0) / 3
        assert torch.allclose(run.state["models"][number], start + moved, atol=1e-5)
    assert set(chosen.tolist()) == {0, 1}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cluster_that_is_never_parted_is_fedavg(engine: str, tmp_path: Path) -> None:
    mine = Ended(CFL(still=0.0, settling=1, epochs=2), tmp_path, engine=engine)
    other = Ended(FedAvg(epochs=2), tmp_path, mine, engine=engine)
    assert torch.equal(mine.state["models"], other.state["model"].unsqueeze(0))
    assert mine.state["largest"] > 0


def test_a_cut_above_all_angles_is_fedavg(tmp_path: Path) -> None:
    mine = Ended(PACFL(angle=91.0, epochs=2), tmp_path)
    other = Ended(FedAvg(epochs=2), tmp_path, mine)
    assert torch.equal(mine.state["models"], other.state["model"].unsqueeze(0))


def test_pacfl_is_adadp_cfl_without_its_parts(tmp_path: Path) -> None:
    """No noise, no clipping, no proximal step: the same clusters, and the same models up to rounding."""
    keys = {"partition": "labels:20%", "clients": 10, "noise_multiplier": 1e-9}
    every = {"epochs": 2, "batch": 10_000, "sample": 10_000}
    mine = Ended(PACFL(**every), tmp_path, **keys)
    bare = AdaDPCFL(variant="paper", clipping=Fixed(), clip=100.0, proximity=0.0, epochs=2, batch=10_000)
    other = Ended(bare, tmp_path, mine, **keys)
    assert mine.state["clusters"].tolist() == other.state["clusters"].tolist()
    assert torch.allclose(mine.state["distances"], other.state["distances"], atol=1e-2)
    assert 1 < len(mine.state["models"]) < 10
    sizes = mine.prepared.data.train.sizes
    alike = [n for n in range(len(mine.state["models"])) if len(set(sizes[mine.state["clusters"].numpy() == n])) == 1]
    assert alike, "AdaDP-CFL averages uniformly: the same models where members are of one size"
    for number in alike:
        assert torch.allclose(mine.state["models"][number], other.state["models"][number], atol=1e-5)


def two_kinds(clients: int = 8) -> FederatedData:
    """Every other client's labels are moved by one: no one model serves both kinds."""
    data = load("digits")
    parts = torch.arange(len(data.y)).chunk(clients)
    made = tuple(
        ClientData(str(n), data.x[part], (data.y[part] + n % 2) % 10, data.x[part], (data.y[part] + n % 2) % 10)
        for n, part in enumerate(parts)
    )
    return FederatedData(
        "two kinds", made, Classification.numbered(10), tuple(data.x.shape[1:]), fingerprint="two kinds"
    )


def on_two_kinds(method: object, folder: Path, rounds: int, **keys: object) -> OneRound:
    usual = {"method": "local", "model": "logistic", "workers": 1, "rounds": rounds, "store": folder}
    prepared = prepare(Experiment.make(usual | keys), two_kinds(), method=method)  # type: ignore[arg-type]
    return OneRound(prepared, folder, rounds=rounds)


def test_ifca_finds_clients_that_label_alike(tmp_path: Path) -> None:
    state = on_two_kinds(IFCA(epochs=3), tmp_path, 8).state
    assert adjusted_rand_score([0, 1] * 4, state["chosen"]) == 1


@pytest.mark.parametrize("name", ["ifca", "dp-ifca"])
def test_there_are_no_more_models_than_clients_to_choose_them(name: str, tmp_path: Path) -> None:
    sentence = refused("run", "--method", name, "--set", "clusters=100000000", *QUICK)
    assert sentence.endswith("set it to 8, the number of clients, or less.")
    found = sordino.run(method=name, store=tmp_path, **QUICK_KEYS | {"set": {"clusters": 8, "epochs": 1, "batch": 64}})
    assert found["rounds"] == 2


def test_where_the_data_decide_how_many_clients_there_are_nobody_is_refused_before() -> None:
    chosen = Experiment.make({"method": "ifca", "clients": None})
    assert len(cells(chosen, ["ifca", "dp-ifca"], {}, [0])) == 2


def test_dp_ifca_finds_them_with_little_noise(tmp_path: Path) -> None:
    run = on_two_kinds(DPIFCA(epochs=3, clip=5.0), tmp_path, 8, noise_multiplier=1e-3)
    models, memory = run.state["models"], run.memory["model"]
    nearest = torch.cdist(memory, models).argmin(dim=1)
    assert adjusted_rand_score([0, 1] * 4, nearest) == 1
    assert {len(asked.answer.values) for asked in run.asked} == {1}, "which model was chosen never leaves"


def test_cfl_parts_clients_that_label_differently(tmp_path: Path) -> None:
    state = on_two_kinds(CFL(), tmp_path, 20).state
    assert adjusted_rand_score([0, 1] * 4, state["clusters"]) == 1


def test_cfl_leaves_clients_together_that_label_alike(tmp_path: Path) -> None:
    """Before training all but ends, however unlike their shares of labels are."""
    state = Ended(CFL(), tmp_path, clients=100, partition="dirichlet:0.5", rounds=20).state
    assert len(state["models"]) == 1


def test_cfl_parts_a_part_again(tmp_path: Path) -> None:
    """Clients of the second cluster are those of the federation, not of their places within their parent."""
    parted = CFL(still=1e9, pulling=0.0, settling=1, smallest=2, epochs=1)
    run = on_two_kinds(parted, tmp_path, 4)
    state = run.state
    assert sorted(state["clusters"].unique().tolist()) == list(range(len(state["models"])))
    assert len(state["models"]) >= 4
    rounds = [[set(asked.question.clients) for asked in run.asked if asked.question.round == t] for t in range(4)]
    for before, after in itertools.pairwise(rounds):
        assert sorted(client for cluster in after for client in cluster) == list(range(8))
        assert all(any(cluster <= parent for parent in before) for cluster in after)


class Deaf:
    """A federation in which the first client of a question does not answer, unless it is the only one."""

    def __init__(self, fed: Federation) -> None:
        self._fed = fed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fed, name)

    def ask(self, who: Sequence[int], step: Callable[..., Result], message: Message) -> Replies:
        return self._fed.ask(list(who)[1:] or who, step, message)


def with_deaf_clients(method: Method) -> Method:
    kind = type(method)

    def run(self: Method, fed: Federation, model: torch.Tensor) -> None:
        kind.run(self, Deaf(fed), model)  # type: ignore[arg-type]

    return type(f"Deaf{kind.__name__}", (kind,), {"run": run})(**vars(method))


@pytest.mark.parametrize(
    "method",
    [
        CFL(epochs=3),
        PACFL(epochs=1),
        pytest.param(AdaDPCFL(variant="paper", clipping=Percentile(), epochs=1), marks=pytest.mark.slow),
        AdaDPCFL(variant="paper", epochs=1),
        AdaDPCFL(cluster_share=0.2, clipping=Fixed(), epochs=1),
    ],
    ids=lambda method: f"{type(method).__name__}-{method.variant}",
)
def test_who_answered_may_be_fewer_than_were_asked(method: Method, tmp_path: Path) -> None:
    """Whoever did not answer stays where it was, and nobody takes its place."""
    rounds = 24 if isinstance(method, CFL) else 2
    state = on_two_kinds(with_deaf_clients(method), tmp_path, rounds, noise_multiplier=1e-9).state
    assert state["clusters"].shape == (8,)
    assert state["clusters"][0] == 0
    if isinstance(method, CFL):
        assert len(state["models"]) >= 2
        for number in range(len(state["models"])):
            members = (state["clusters"][1:] == number).nonzero().squeeze(1) + 1
            assert len({int(client) % 2 for client in members}) == 1
    else:
        assert state["distances"].shape == (8, 8)
        assert (state["distances"][0] == 0).all()
    if "threshold" in state and not isinstance(method.clipping, Fixed):
        assert state["threshold"]["clips"][0] == method.clip
        assert (state["threshold"]["clips"] != method.clip).any()


def test_the_chosen_model_is_that_of_least_loss() -> None:
    """Also for padded clients, of whom only true records count."""

    class Fake(Records):
        """Losses by hand: a model's first entry is its logit for class 0."""

        task = Classification.numbered(2)

        def logits(self, flat: torch.Tensor) -> torch.Tensor:
            return torch.stack([flat[0].expand(3), torch.zeros(3)], dim=1)

    models = torch.tensor([[0.0, 7.0], [0.5, 8.0], [-0.5, 9.0]])
    for y, valid, wanted in (([0, 0, 1], None, 1), ([1, 0, 1], None, 2), ([1, 0, 0], [1.0, 0.0, 0.0], 2)):
        true = None if valid is None else torch.tensor(valid)
        start, chosen = least_loss(models, Fake(torch.zeros(3, 1), torch.tensor(y), None, seed=0, valid=true))
        assert int(chosen) == wanted
        assert torch.equal(start, models[wanted])


def test_starts_are_shuffled_within_each_tensor() -> None:
    layout = Layout(("a.weight", "a.bias"), ((2, 5), (3,)))
    model = torch.arange(13.0)
    rows = starts(model, 3, layout, torch.Generator().manual_seed(0))
    assert torch.equal(rows[0], model)
    for row in rows[1:]:
        assert not torch.equal(row, model)
        assert torch.equal(row[:10].sort().values, model[:10])
        assert torch.equal(row[10:].sort().values, model[10:])
    assert not torch.equal(rows[1], rows[2])


class Told:
    """A federation of four clients, in which those who take part send in every round what is written here."""

    def __init__(self, who: Sequence[int], rounds: int = 1, **sent: list[Any]) -> None:
        self.schedule = SimpleNamespace(clients=4)
        self.layout = Layout(("a.weight",), ((2,),))
        self.rounds = lambda server: range(rounds)
        self._who, self._sent = who, {name: torch.tensor(rows, dtype=torch.float32) for name, rows in sent.items()}

    def state(self, **first: Any) -> SimpleNamespace:
        self.server = SimpleNamespace(**{name: value() if callable(value) else value for name, value in first.items()})
        return self.server

    def sample(self) -> Sequence[int]:
        return self._who

    def random(self, *purpose: object) -> torch.Generator:
        return torch.Generator().manual_seed(0)

    def ask(self, who: Sequence[int], step: Callable[..., Result], message: Message) -> SimpleNamespace:
        return SimpleNamespace(who=who, rows=self._sent.__getitem__)


def test_each_of_ifcas_models_moves_by_those_who_chose_it() -> None:
    """The second by (1 (4, 0) + 3 (0, 8)) / 4, and the third, which nobody chose, not at all; client 0 is absent."""
    sent = {"records": [[1], [5], [3]], "update": [[4, 0], [1, 1], [0, 8]], "chosen": [[1], [0], [1]]}
    fed: Any = Told([1, 2, 3], **sent)
    IFCA(clusters=3).run(fed, torch.tensor([7.0, 7.0]))
    assert fed.server.models.tolist() == [[8.0, 8.0], [8.0, 13.0], [7.0, 7.0]]
    assert fed.server.chosen.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("lengths", "mean", "parted"),
    [
        ([4.1, 4.1, 0.0], 0.0, True),  # the average stands still, and two pull apart
        ([3.9, 3.9, 0.0], 0.0, False),  # nobody pulls by more than 0.4 of 10
        ([4.1, 4.1, 0.0], 1.1, False),  # the average moves by more than a tenth of 10
        ([4.1, 4.1], 0.0, False),  # two clients are no three
    ],
)
def test_cfls_rule_by_hand(lengths: list[float], mean: float, parted: bool) -> None:
    signs = torch.tensor([1.0, -1.0, 1.0][: len(lengths)])
    updates = torch.stack([signs * torch.tensor(lengths), torch.zeros(len(lengths))], dim=1)
    assert CFL()._pulls_apart(updates, torch.tensor([mean, 0.0]), 10.0) == parted


@pytest.mark.parametrize(("rounds", "clusters"), [(2, [0, 0, 0, 0]), (3, [0, 0, 1, 1])])
def test_cfl_parts_nothing_while_it_settles(rounds: int, clusters: list[int]) -> None:
    sent = {"records": [[1]] * 4, "update": [[1, 0], [1, 0], [-1, 0.5], [-1, 0.5]]}
    fed: Any = Told(range(4), rounds, **sent)
    CFL(still=1e9, pulling=0.0, settling=2).run(fed, torch.zeros(2))
    found = fed.server.clusters
    assert (found == found[0]).int().tolist() == [1 - cluster for cluster in clusters]
    assert len(fed.server.models) == 1 + max(clusters)


def test_pacfl_asks_those_whose_turn_it_is(tmp_path: Path) -> None:
    """Three of six in each round, whatever their clusters."""
    run = Ended(PACFL(epochs=1), tmp_path, participation=0.5).run
    trained = [asked.question for asked in run.asked if asked.question.step == "local"]
    assert [sum(len(one.clients) for one in trained if one.round == t) for t in range(3)] == [3, 3, 3]


def test_pacfl_looks_at_the_first_records_of_a_class() -> None:
    """Of one record the first singular vector is its direction."""
    x, y = torch.tensor([[3.0, 4.0], [0.0, 2.0], [5.0, 0.0]]), torch.tensor([0, 1, 0])
    data: Any = SimpleNamespace(x=x, y=y, weight=torch.ones(3))
    found = PACFL(vectors=1, sample=1).describe({"classes": 2}, {}, data).send["subspace"]
    assert found.reshape(2, 2).abs().flatten().tolist() == pytest.approx([0.6, 0.0, 0.8, 1.0])
