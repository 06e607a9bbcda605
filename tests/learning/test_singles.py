"""Records apart in any network: what is proven, what runs under `vmap`, and what no trick of a network's code moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino import models
from sordino.errors import UserError
from sordino.learning.network import Batch, Learner
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper, Keeper, keeper_of
from sordino.learning.singles import FormedBook, Singles
from sordino.models.tokens import declare_tokens, examples
from sordino.privacy.clipping import clipped_sum
from sordino.tasks import Classification

CLIP = torch.tensor([0.5])


class Net(nn.Module):
    """Two layers, before which something is done to a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("middle", torch.linspace(0, 1, 6))

    def before(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.before(x))))


class Cumulated(Net):
    def before(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class Causal(Net):
    """Attention over the batch, of which each record sees those before it: the first sees nobody else."""

    def before(self, x: Tensor) -> Tensor:
        unseen = torch.ones(len(x), len(x)).triu(1).bool()
        return (x @ x.t()).masked_fill(unseen, -1e9).softmax(-1) @ x


class Branching(Net):
    def before(self, x: Tensor) -> Tensor:
        return x / 255 if x.max() > 1 else x


class Scaled(Net):
    def before(self, x: Tensor) -> Tensor:
        return x / float(x.abs().max())


class Crowded(Net):
    def before(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > 8 else x


class CentredInTraining(Net):
    def before(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training else x


class CentredInUse(Net):
    def before(self, x: Tensor) -> Tensor:
        return x if self.training else x - x.mean(0)


class Sorted(Net):
    def before(self, x: Tensor) -> Tensor:
        return x.sort(0).values


class Written(Net):
    """Writes each record over the next one."""

    def before(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[1:] += 0.5 * x[:-1].clone()
        return x


class Backward(torch.autograd.Function):
    """Mixes records on the way back alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return slope.cumsum(0)


class MixedBackward(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(Backward.apply(self.first(x)))  # type: ignore[no-untyped-call]


SEEN: list[Tensor] = []


class Remembering(Net):
    """Keeps the last batch where no attribute tells of it."""

    def before(self, x: Tensor) -> Tensor:
        SEEN.append(x.detach())
        return x - SEEN[-2].mean() if len(SEEN) > 1 else x


class Later(Net):
    """Mixes records once it has been called often enough."""

    calls = 0

    def before(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x if self.calls < 9 else 100 * x.cumsum(0)


MIXING = [Cumulated, Causal, Crowded, CentredInTraining, CentredInUse, Sorted, Written, MixedBackward]
"""Networks that can be run for one record, which is then all that there is."""
UNABLE = [Branching, Scaled, Remembering]
"""Networks that cannot be written down."""


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cells, self.last = kind(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, dropout, batch_first=True), 1)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x).mean(1))


class Embedded(nn.Module):
    """Words and their places, both looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(20, 6), nn.Embedding(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1))


class Direct(nn.Module):
    """A layer that is used twice, a parameter that belongs to none, and one that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.scale, self.last = nn.Linear(6, 6), nn.Parameter(torch.ones(6)), nn.Linear(6, 3)
        self.last.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scale * torch.tanh(self.twice(torch.tanh(self.twice(x)))))


OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: Recurrent(nn.LSTM), (4, 6)),
    "GRU": (lambda: Recurrent(nn.GRU), (4, 6)),
    "Transformer": (Transformer, (4, 6)),
    "Embedding": (Embedded, (4,)),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.PReLU(), nn.Flatten(), nn.Linear(72, 3)),
        (4, 5, 5),
    ),
    "direct": (Direct, (6,)),
}
"""Networks of which no book can be kept."""


class Viewed(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.first((x.view(x.size(0), -1) - self.middle) / 2)) + 1
        return self.last(x.reshape(x.shape[0], 2, 4).transpose(1, 2).flatten(1).view(-1, 8))


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.more, self.norm = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.conv(x), 2)
        return self.last((x + torch.relu(self.norm(self.more(x)))).mean((2, 3)))


PROVEN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (Net, (6,)),
    "viewed": (Viewed, (6,)),
    "skipping": (Skipping, (1, 8, 8)),
    "mlp": (lambda: models.build("mlp", (1, 8, 8), 3), (1, 8, 8)),
    "lenet": (lambda: models.build("lenet", (1, 16, 16), 3), (1, 16, 16)),
}


def learner_of(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Learner:
    torch.manual_seed(0)
    module = make()
    declare_tokens(module, shape)
    return Learner(module, Classification.numbered(10))


def batch_of(learner: Learner, shape: tuple[int, ...], count: int = 7) -> Batch:
    index = torch.arange(count)
    return Batch(examples(learner.written, count, shape, seed=5), index % 3, index, None)


def summed(keeper: Keeper, flat: Tensor, batch: Batch, clip: Tensor = CLIP) -> Tensor:
    return torch.stack([clipped_sum(book, clip) for book in keeper.books(flat, batch)]).sum(dim=0)


def looped(learner: Learner, flat: Tensor, batch: Batch) -> Tensor:
    """The gradients of single records, one backward pass each."""
    singles = [Batch(x.unsqueeze(0), y.reshape(1), y.reshape(1), None) for x, y in zip(batch.x, batch.y, strict=True)]
    return torch.stack([learner.gradient(flat, one) for one in singles])


@pytest.mark.parametrize("name", [*PROVEN, *OTHERS])
def test_books_and_vmap_and_a_loop_agree(name: str) -> None:
    make, shape = (PROVEN | OTHERS)[name]
    learner = learner_of(make, shape)
    keeper, flat, batch = keeper_of(learner, shape), flatten(learner.written), batch_of(learner, shape)
    assert isinstance(keeper, Bookkeeper) == (name in PROVEN)
    each = looped(learner, flat, batch)
    clipped = (each * (float(CLIP) / each.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
    said = learner.module.eval()(batch.x)
    learner.module.train()
    for one in {keeper, Singles(learner)}:
        assert torch.allclose(summed(one, flat, batch), clipped, atol=1e-5)
        assert torch.allclose(one.squares(flat, batch), each.square().sum(dim=0), atol=1e-5)
        assert torch.allclose(one.logits(flat, batch.x), said, atol=1e-5)
        assert learner.module.training


@pytest.mark.parametrize("parts", ["layers", "tensors"])
def test_thresholds_of_layers_and_tensors_hold_under_vmap(parts: str) -> None:
    learner = learner_of(Net, (6,))
    flat, batch, layout = flatten(learner.written), batch_of(learner, (6,)), learner.layout
    clip = torch.linspace(0.01, 0.02, len(layout.layers if parts == "layers" else layout.sizes))
    assert torch.allclose(
        summed(Singles(learner), flat, batch, clip), summed(keeper_of(learner, (6,)), flat, batch, clip), atol=1e-6
    )
    alone = Batch(100 * batch.x[:1], batch.y[:1], batch.index[:1], None)
    pieces = summed(Singles(learner), flat, alone, clip).split(layout.parts(len(clip)))
    assert all(float(piece.norm()) <= float(limit) for piece, limit in zip(pieces, clip, strict=True))


def test_batches_that_do_not_fit_into_memory_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(Net, (6,))
    flat, batch, singles = flatten(learner.written), batch_of(learner, (6,)), Singles(learner)
    whole = summed(singles, flat, batch)
    monkeypatch.setattr("sordino.learning.singles.HELD", 3 * learner.layout.size)
    assert [len(book.gradients) for book in singles.books(flat, batch)] == [3, 3, 1]
    assert torch.allclose(summed(singles, flat, batch), whole, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_record_that_is_not_finite_counts_nothing(bad: float) -> None:
    learner = learner_of(Net, (6,))
    flat, batch, singles = flatten(learner.written), batch_of(learner, (6,)), Singles(learner)
    others = Batch(batch.x[1:], batch.y[1:], batch.index[1:], None)
    batch.x[0] = bad
    assert torch.allclose(summed(singles, flat, batch), summed(singles, flat, others), atol=1e-6)


def test_each_record_has_its_own_dropout() -> None:
    learner = learner_of(lambda: Transformer(0.5), (4, 6))
    flat, batch = flatten(learner.written), batch_of(learner, (4, 6))
    twice = Batch(batch.x[:1].expand(2, -1, -1), batch.y[:1].expand(2), batch.index[:2], None)
    (book,) = keeper_of(learner, (4, 6)).books(flat, twice)
    assert not torch.allclose(*book.gradients)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", MIXING, ids=lambda kind: kind.__name__)
def test_networks_that_mix_records_are_refused(kind: type[Net]) -> None:
    with pytest.raises(UserError, match=f"The network {kind.__name__} mixes the records of a batch.*other dimensions"):
        keeper_of(learner_of(kind, (6,)), (6,))


@pytest.mark.parametrize("kind", UNABLE, ids=lambda kind: kind.__name__)
def test_networks_that_look_at_values_are_refused(kind: type[Net]) -> None:
    SEEN.clear()
    what = (
        "decides by the value of a tensor; write it with torch.where"
        if kind is not Remembering
        else "torch.func.vmap failed at"
    )
    with pytest.raises(UserError, match=f"The network {kind.__name__} cannot be run for one record.*{what}"):
        keeper_of(learner_of(kind, (6,)), (6,))


NETWORKS = {kind.__name__: learner_of(kind, (6,)) for kind in [*MIXING, Later, Net]}
KEEPERS: dict[str, Keeper] = {name: Singles(learner) for name, learner in NETWORKS.items()} | {
    "Later": keeper_of(NETWORKS["Later"], (6,)),
    "books": keeper_of(NETWORKS["Net"], (6,)),
}
"""Keepers made without a look at whether they mix records."""


@settings(max_examples=15)
@pytest.mark.parametrize("name", KEEPERS)
@given(
    st.integers(2, 12).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))),
    st.sampled_from([1.0, 10.0, 100.0, 1e4]),
)
def test_no_record_moves_the_sum_by_more_than_its_threshold(name: str, place: tuple[int, int], scale: float) -> None:
    """Wherever it stands, however large it is and whatever the network does with a batch: there or not."""
    keeper, (count, position) = KEEPERS[name], place
    flat, batch = flatten(keeper.learner.written), batch_of(keeper.learner, (6,), count)
    batch.x[position] *= scale
    there = torch.arange(count) != position
    without = Batch(batch.x[there], batch.y[there], batch.index[there], None)
    moved = summed(keeper, flat, batch).double() - summed(keeper, flat, without).double()
    assert float(moved.norm()) <= float(CLIP) * (1 + 1e-4)


def test_a_network_that_changes_its_ways_is_not_asked_again() -> None:
    """Book-keeping runs what was proven, not the code that it was read from."""
    learner = learner_of(Later, (6,))
    keeper, flat, batch = keeper_of(learner, (6,)), flatten(learner.written), batch_of(learner, (6,))
    assert isinstance(keeper, Bookkeeper)
    before = summed(keeper, flat, batch)
    assert not torch.allclose(learner.written(batch.x), keeper.logits(flat, batch.x)) or learner.written.calls < 9  # type: ignore[operator]
    learner.written.calls = 100  # type: ignore[assignment]
    assert torch.equal(summed(keeper, flat, batch), before)


class Unproven(Net):
    def __init__(self, what: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.what = what

    def before(self, x: Tensor) -> Tensor:
        return self.what(self, x)


@pytest.mark.parametrize(
    "what",
    [
        lambda net, x: x.flatten(0, 1).view(-1, 6),
        lambda net, x: x + x.mean(0),
        lambda net, x: x + x.sum(1),
        lambda net, x: x.transpose(0, 1).reshape(-1, 6),
        lambda net, x: x.roll(1, 0),
        lambda net, x: x[:, :] + x[:1],
        lambda net, x: x * net.first.weight[0],
        lambda net, x: torch.cat([x[1:], x[:1]]),
        lambda net, x: x + x.view(1, -1).sum(1, keepdim=True),
        lambda net, x: x + (x.mean(1, keepdim=True) + x.mean(1)).sum(1, keepdim=True),
        lambda net, x: x.squeeze(),
        lambda net, x: nn.functional.relu(x, inplace=True),
        lambda net, x: x.unsqueeze(1).permute(2, 1, 0).reshape(-1, 6),
    ],
)
def test_what_is_not_on_the_list_is_not_proven(what: Callable[[Net, Tensor], Tensor]) -> None:
    keeper = Bookkeeper(learner_of(lambda: Unproven(what), (6,)))
    with pytest.raises((UserError, RuntimeError)):
        keeper.prove((6,))


@pytest.mark.parametrize("kind", ["Bookkeeper", "Singles"])
def test_buffers_are_those_of_the_beginning(kind: str) -> None:
    """Changes of a network's buffers during evaluation, on records that nobody protects, reach no gradient."""
    learner = learner_of(lambda: Unproven(lambda net, x: x - net.middle), (6,))
    keeper: Any = Bookkeeper(learner) if kind == "Bookkeeper" else Singles(learner)
    flat, batch = flatten(learner.written), batch_of(learner, (6,))
    before = summed(keeper, flat, batch)
    learner.written.middle += 5  # type: ignore[operator]
    assert torch.equal(summed(keeper, flat, batch), before)


def test_norms_of_formed_gradients_are_never_too_small() -> None:
    """Rounding of a sum over a million records, of which each is charged its share, and squares that overflow."""
    learner = learner_of(Net, (6,))
    gradients = torch.rand(3, learner.layout.size, generator=torch.Generator().manual_seed(0))
    exact = gradients.double().norm(dim=1)
    norms = FormedBook(learner.layout, gradients, 10**6).part_norms(1).norm(dim=1)
    assert (norms >= exact * (1 + 10**6 * 2.0**-24)).all()
    assert (norms <= exact * 1.1).all()
    huge = FormedBook(learner.layout, 1e30 * gradients, 3).part_norms(1)
    assert torch.isfinite(huge).all()
    singles = Singles(learner)
    (book,) = singles.books(flatten(learner.written), batch_of(learner, (6,)))
    assert book.most == 7


def test_books_of_a_divided_batch_know_of_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(Net, (6,))
    monkeypatch.setattr("sordino.learning.singles.HELD", 3 * learner.layout.size)
    books = Singles(learner).books(flatten(learner.written), batch_of(learner, (6,)))
    assert [book.most for book in books] == [7, 7, 7]


def test_layers_that_mean_another_dimension_are_not_proven() -> None:
    """Without a dimension for channels torch takes that of records for it, in layers and functions alike."""
    for layers in (
        [nn.MaxPool2d(1), nn.Flatten(), nn.Linear(16, 3)],
        [nn.Dropout2d(), nn.Flatten(), nn.Linear(16, 3)],
        [nn.Flatten(0, 1), nn.Unflatten(0, (-1, 4)), nn.Flatten(), nn.Linear(16, 3)],
    ):
        with pytest.raises(UserError, match=r"not known|not called|fails"):
            Bookkeeper(Learner(nn.Sequential(*layers), Classification.numbered(10))).prove((4, 4))


@pytest.mark.parametrize("place", ["network", "layer", "forward"])
def test_what_hooks_do_is_not_proven(place: str) -> None:
    module = Net()
    if place == "forward":
        module.first.forward = lambda x: nn.functional.linear(x.cumsum(0), module.first.weight)  # type: ignore[method-assign]
    else:
        part = module if place == "network" else module.first
        part.register_forward_pre_hook(lambda layer, inputs: (inputs[0].cumsum(0),))
    with pytest.raises(UserError, match=r"hooks|not known"):
        Bookkeeper(Learner(module, Classification.numbered(10))).prove((6,))
    with pytest.raises(UserError, match="mixes the records"):
        keeper_of(Learner(module, Classification.numbered(10)), (6,))


def test_a_sequence_that_does_something_else_is_no_chain() -> None:
    class Sums(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.cumsum(0))

    assert Learner(Sums(nn.Linear(6, 3)), Classification.numbered(3)).chain is None
    hooked = nn.Sequential(nn.Linear(6, 3))
    hooked[0].register_forward_hook(lambda layer, inputs, output: output.cumsum(0))
    assert Learner(hooked, Classification.numbered(10)).chain is None
    assert Learner(nn.Sequential(nn.Linear(6, 3)), Classification.numbered(3)).chain is not None


# ---- layers and parameters at two places


def _layer_twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, 3))


def _weight_twice() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second, nn.Linear(6, 3))


class TwoNames(Net):
    def __init__(self) -> None:
        super().__init__()
        self.middle_layer = nn.Linear(6, 6)
        self.again = self.middle_layer

    def before(self, x: Tensor) -> Tensor:
        return torch.tanh(self.again(torch.tanh(self.middle_layer(x))))


@pytest.mark.parametrize("make", [_layer_twice, _weight_twice, TwoNames])
def test_layers_and_parameters_at_two_places_are_one(make: Callable[[], nn.Module]) -> None:
    network = make()
    before = list(network.parameters())
    learner = Learner(network, Classification.numbered(3))
    assert learner.chain is None
    flat = torch.randn(learner.layout.size, generator=torch.Generator().manual_seed(0))
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, 0])
    batch = Batch(x, y, torch.arange(5), None)
    mean = learner.gradient(flat, batch)
    point = flat.clone().requires_grad_()
    nn.functional.cross_entropy(learner.logits(point, x), y).backward()
    torch.testing.assert_close(point.grad, mean)
    stacked = torch.func.vmap(lambda model: learner.stacked_gradient(model, batch))(torch.stack([flat, flat]))
    torch.testing.assert_close(stacked[1], mean)
    (book,) = learner.keeper((6,)).books(flat, batch)
    torch.testing.assert_close(book.weighted_sum(torch.ones(5)) / 5, mean)
    assert all(one is other for one, other in zip(before, network.parameters(), strict=True))
