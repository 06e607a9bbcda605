"""No record brings more into the sum than its threshold: every kind of layer, ordinary and crafted records.

The oracle forms each record's gradient in double precision from the very float32 activations and output gradients of
the pass, and looks at what the sum of one record alone, and of the same record twice, comes to as it is added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import pytest
import torch
from helpers import otherwise_slow
from torch import Tensor, nn

from sordino import models
from sordino.learning.network import Batch, Learner
from sordino.learning.pages import Page, rounding
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Book, Bookkeeper
from sordino.learning.stacked import StackedBook
from sordino.privacy.clipping import CompiledSum, clipped_sum, clipping_factors, compile_sum, trace
from sordino.tasks import Classification

Parts = Literal["whole", "layers", "tensors"]
"""What has a threshold of its own."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Sequence(nn.Module):
    """Layers along the rows of an image, then one for all of them."""

    def __init__(self, *layers: nn.Module, width: int) -> None:
        super().__init__()
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x.squeeze(1)).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 5, bias=False)),
    "linear along a sequence, formed": lambda: Sequence(nn.Linear(8, 6), nn.Tanh(), width=48),
    "linear along a sequence, products": lambda: Sequence(nn.Linear(8, 200), nn.Tanh(), width=1600),
    "convolution, formed": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    ),
    "convolution, products": lambda: nn.Sequential(nn.Conv2d(1, 64, 7), nn.Flatten(), nn.Linear(256, 5)),
    "convolution, products, dilation": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 64, 3, dilation=2, bias=False), nn.Flatten(), nn.Linear(256, 5)
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)
    ),
    "layer norm along a sequence": lambda: Sequence(nn.LayerNorm(8), nn.Linear(8, 6), nn.LayerNorm(6), width=48),
}
SHAPE = (1, 8, 8)
BY_PRODUCTS = [name for name in NETWORKS if "products" in name]


def patterns(shape: tuple[int, ...]) -> Tensor:
    """Records that make numerics suffer: flat ones, alternating signs, single points, huge and tiny numbers."""
    generator = torch.Generator().manual_seed(3)
    signs = (torch.arange(math.prod(shape)).view(shape) % 2 * 2 - 1).float()
    lines = (torch.arange(shape[-2]).view(-1, 1) % 2 * 2 - 1).float().expand(shape)
    noise = torch.randn(3, *shape, generator=generator)
    single = torch.zeros(shape)
    single[..., shape[-1] // 2, shape[-1] // 2] = 1
    plain = [torch.full(shape, 1.0), signs, lines, single, signs + 1e-3 * noise[0], 1 + 1e-4 * noise[1], noise[2]]
    scales = [1.0, 255.0, 254.9, 1e-3, 1e6, 1e12, 1e18, 1e-18, 1e-30, 1e-41, 3e19, 1e38]
    return torch.stack([*(record * scale for record in plain for scale in scales), torch.zeros(shape)])


class Case:
    """A network, its book-keeping, and a bound that is checked on records."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...], clip: float, parts: Parts = "whole") -> None:
        self.module, self.shape = module, shape
        self.keeper, self.flat = Bookkeeper(Learner(module, Classification.numbered(10))), flatten(module)
        layout = self.keeper.learner.layout
        self.sizes = {"whole": [layout.size], "layers": layout.layers, "tensors": layout.sizes}[parts]
        self.clip = clip * torch.linspace(1, 2, len(self.sizes), dtype=torch.float64)

    def book(self, x: Tensor, y: Tensor) -> Book:
        return self.keeper.book(self.flat, Batch(x, y, y, None))

    def over(self, vector: Tensor) -> float:
        """The norm of a record's contribution over its threshold: the largest over parts, if each has its own."""
        parts = vector.double().split(self.sizes)
        return max(float(part.norm() / most) for part, most in zip(parts, self.clip, strict=True))

    def as_added(self, x: Tensor, y: Tensor) -> float:
        """The longest contribution as it is added: each record alone, with the weights of the others zero."""
        book = self.book(x, y)
        factors = clipping_factors(book.part_norms(len(self.clip)), self.clip)
        counting = factors.reshape(len(x), -1).sum(dim=1).nonzero().squeeze(1).tolist()
        if not counting:
            return 0.0
        if len(counting) < len(x):  # zero times what is not finite is not zero
            book = self.book(x[counting], y[counting])
            factors = clipping_factors(book.part_norms(len(self.clip)), self.clip)
        alone = [torch.zeros_like(factors).index_put((torch.tensor([i]),), factors[i]) for i in range(len(factors))]
        return max(self.over(book.weighted_sum(weights)) for weights in alone)

    def exact(self, x: Tensor, y: Tensor) -> float:
        """The longest gradient in double precision times its weight, where sums over positions are not formed."""
        book = self.book(x, y)
        factors = clipping_factors(book.part_norms(len(self.clip)), self.clip).float().double()
        gradients = torch.cat([exact_gradients(page) for page in book.pages], dim=1)
        spread = factors.reshape(len(x), -1).repeat_interleave(torch.tensor(self.sizes), dim=1)
        return max(self.over(torch.nan_to_num(row)) for row in torch.where(spread > 0, spread * gradients, 0.0))

    def twice(self, function: Callable[[Tensor, Tensor], Tensor], record: Tensor, label: Tensor) -> float:
        """Half of what a record brings when it is there twice, by one of the ways to compute a sum."""
        return self.over(function(torch.stack([record, record]), label.expand(2).clone()) / 2)

    def eager(self, x: Tensor, y: Tensor) -> Tensor:
        return clipped_sum(self.book(x, y), self.clip)


def exact_gradients(page: Page) -> Tensor:
    """Each record's gradient in a layer, in double precision; formed ones as they were formed."""
    if page.slope is None:
        return torch.cat([part.flatten(1) for part in page.gradients()], dim=1).double()
    rows = []
    for inputs, slope in zip(page.inputs.double(), page.slope.double(), strict=True):
        named = {name: p.detach().double().requires_grad_() for name, p in page.layer.named_parameters()}
        outputs = torch.func.functional_call(page.layer, named, (inputs.unsqueeze(0),))
        parts = torch.autograd.grad(outputs, list(named.values()), slope.unsqueeze(0))
        rows.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(rows)


def case(name: str, clip: float = 0.1, parts: Parts = "whole") -> Case:
    torch.manual_seed(0)
    return Case(NETWORKS[name](), SHAPE, clip, parts)


def labels(x: Tensor) -> Tensor:
    return torch.arange(len(x)) % 5


@pytest.mark.parametrize("parts", get_args(Parts))
@pytest.mark.parametrize("name", NETWORKS)
def test_no_record_brings_more_than_its_threshold(name: str, parts: Parts) -> None:
    x = patterns(SHAPE)
    at = case(name, 1e-3, parts)
    assert at.as_added(x, labels(x)) <= 1
    assert at.exact(x, labels(x)) <= 1


@pytest.mark.parametrize("layered", [False, True], ids=["one threshold", "one for each layer"])
def test_no_record_of_stacked_clients_brings_more_than_its_threshold(layered: bool) -> None:
    """Five clients with models and thresholds of their own; each record alone, with the weights of the others zero."""
    at, x = case("linear", 1e-3, "layers" if layered else "whole"), patterns(SHAPE)
    chain, clients, each = at.keeper.learner.chain, 5, len(x) // 5
    assert chain is not None
    x, y = x[: clients * each].view(clients, each, *SHAPE), labels(x)[: clients * each].view(clients, each)
    flat = at.flat * torch.tensor([1.0, -1.0, 0.1, 30.0, 1e-6]).unsqueeze(1)
    clips = at.clip * torch.tensor([1.0, 1e-3, 10.0, 1e4, 1.0], dtype=torch.float64).unsqueeze(1)
    factors = clipping_factors(StackedBook.of(chain, flat, x, y, each).layer_norms(), clips)
    counting = factors.reshape(clients, each, -1).sum(dim=2) > 0
    assert counting.sum() > 0.6 * counting.numel()
    # Zero times what is not finite is not zero: records that count nothing are made harmless.
    book = StackedBook.of(chain, flat, torch.where(counting.view(clients, each, 1, 1, 1), x, 0.0), y, each)
    factors = torch.where(counting if not layered else counting.unsqueeze(2), factors, 0.0)
    longest = 0.0
    for place in range(each):
        alone = torch.zeros_like(factors)
        alone[:, place] = factors[:, place]
        parts = (
            book.weighted_sum(alone).double().split(at.keeper.learner.layout.layers if layered else [flat.shape[1]], 1)
        )
        longest = max(longest, *(float((p.norm(dim=1) / clips[:, k]).max()) for k, p in enumerate(parts)))
    assert 0.999 < longest <= 1


def test_stacked_and_single_clients_have_the_same_bounds() -> None:
    at = case("linear")
    x = torch.randn(9, *SHAPE, generator=torch.Generator().manual_seed(0))
    chain = at.keeper.learner.chain
    assert chain is not None
    stacked = StackedBook.of(chain, at.flat.unsqueeze(0), x.unsqueeze(0), labels(x).unsqueeze(0), 9)
    single = at.book(x, labels(x))
    assert torch.allclose(stacked.layer_norms()[0], single.layer_norms(), rtol=1e-5)
    weights = torch.rand(9, 2)
    assert torch.allclose(stacked.weighted_sum(weights.unsqueeze(0))[0], single.weighted_sum(weights), atol=1e-5)
    more = StackedBook.of(chain, at.flat.unsqueeze(0), x.unsqueeze(0), labels(x).unsqueeze(0), 10_000)
    assert (more.layer_norms() > stacked.layer_norms() * 1.0005).all(), "a sum of more records may round more"
    x = patterns(SHAPE)
    huge = StackedBook.of(chain, at.flat.unsqueeze(0), x.unsqueeze(0), labels(x).unsqueeze(0), len(x)).layer_norms()[0]
    unknown = ~torch.isfinite(at.book(x, labels(x)).layer_norms())
    assert unknown.any(dim=0)[0], "of some records nothing is proven"
    assert torch.equal(~torch.isfinite(huge), unknown)


@pytest.mark.parametrize("parts", ["whole", "tensors"])
@pytest.mark.parametrize("name", NETWORKS)
def test_ordinary_records_are_clipped_to_no_less_than_a_thousandth_below(name: str, parts: Parts) -> None:
    """A bound must not cost what it protects."""
    at = case(name, 1e-3, parts)
    x = torch.randn(16, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert at.as_added(x, labels(x)) > 0.999


def cancelling(remainder: float = 0.0) -> Case:
    """A flat record, and output gradients that almost cancel over its positions: products cancel altogether."""
    torch.manual_seed(0)
    width = 64
    module = nn.Sequential(nn.Conv2d(1, width, 7, bias=False), nn.Flatten(), nn.Linear(4 * width, 5))
    with torch.no_grad():
        signs = torch.tensor([1.0, -1.0, -1.0, 1.0 + remainder])
        module[2].weight.copy_((torch.rand(5, width, 1) * signs).flatten(1))
        module[0].weight.copy_(module[0].weight - module[0].weight.mean(dim=(2, 3), keepdim=True))
    return Case(module, SHAPE, 1e-3, "layers")


@pytest.mark.parametrize("remainder", [0.0, 2.0**-20, 2.0**-12])
def test_gradients_that_cancel_over_positions_are_seen(remainder: float) -> None:
    at = cancelling(remainder)
    for scale in (1.0, 255.0, 254.9, 1e4):
        x = scale * (1 + 1e-6 * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1)))
        assert at.as_added(x, labels(x)) <= 1
        assert at.exact(x, labels(x)) <= 1


def test_tiny_output_gradients_of_huge_records_are_seen() -> None:
    """A sure prediction for a record of huge numbers: output gradients of 1e-24, whose squares vanish in float32."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    with torch.no_grad():
        module[1].weight.zero_()
        module[1].weight[0], module[1].bias[:] = 55 / (64 * 1e17), 0.0
    at, x, y = Case(module, SHAPE, 1e-9), torch.full((2, *SHAPE), 1e17), torch.tensor([0, 0])
    slope = at.book(x, y).pages[0].slope
    assert slope is not None
    assert 0 < float(slope.abs().max()) < 1e-23
    assert 0.999 < at.as_added(x, y) <= 1


def pacdp() -> Case:
    """PAC-DP's network with a model whose output gradients cancel over the positions of a flat image."""
    torch.manual_seed(0)
    module = models.build("cnn-mnist-pacdp", (1, 28, 28), 10)
    inner = torch.zeros(4, 4)
    inner[1:3, 1:3] = torch.tensor([[1.0, -1.0], [-1.0, 1.0 + 2.0**-12]])
    with torch.no_grad():
        weight = torch.rand(32, 32, 1) * inner.flatten()
        module.fc1.weight.copy_(weight.flatten(1))
        module.fc1.bias.fill_(1.0)
    return Case(module, (1, 28, 28), 1.0, "layers")


def test_flat_images_are_clipped_in_pacdps_network() -> None:
    at, y = pacdp(), torch.arange(10)
    for value in (1.0, 254.9, 255.0, 1000.0):
        x = torch.full((10, *at.shape), value)
        assert at.as_added(x, y) <= 1
        assert at.exact(x, y) <= 1


def search(at: Case, start: Tensor, tries: int) -> float:
    """The largest contribution over the threshold that hill climbing from `start` finds."""
    generator, best, record, label = torch.Generator().manual_seed(5), 0.0, start, 0
    for _ in range(tries):
        sizes = start.abs().max() * 10 ** (-6 * torch.rand(8, 1, 1, 1, generator=generator))
        x = record + sizes * torch.randn(8, *start.shape, generator=generator)
        y = torch.full((8,), label)
        found = [max(at.as_added(x[i : i + 1], y[:1]), at.exact(x[i : i + 1], y[:1])) for i in range(8)]
        if max(found) > best:
            best = max(found)
            record = x[found.index(best)]
    return best


@pytest.mark.parametrize("make", [cancelling, pacdp])
def test_a_search_for_a_record_that_is_clipped_too_little_fails(make: Callable[[], Case]) -> None:
    at = make()
    for value in (255.0, 1.0):
        assert search(at, torch.full(at.shape, value), tries=4) <= 1


@pytest.mark.parametrize(
    ("name", "parts"),
    otherwise_slow(
        [(name, parts) for parts in get_args(Parts) for name in ("linear", *BY_PRODUCTS)],
        {
            ("linear", "whole"),
            ("convolution, products", "layers"),
            ("linear along a sequence, products", "tensors"),
        }.__contains__,
    ),
)
def test_traced_sums_keep_the_threshold(name: str, parts: Parts) -> None:
    at = case(name, 1e-3, parts)
    example = (at.flat, torch.randn(7, *SHAPE), torch.arange(7) % 5, at.clip)
    check_compiled(at, CompiledSum(trace(at.keeper, example), len(at.clip)), patterns(SHAPE)[::5])


def check_compiled(at: Case, made: CompiledSum, x: Tensor) -> None:
    for record, label in zip(x, labels(x), strict=True):
        half = at.twice(lambda x, y: made(at.flat, x, y, at.clip), record, label)
        assert half <= 1 or math.isnan(half)
        half = at.twice(at.eager, record, label)
        assert half <= 1 or math.isnan(half)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolution, products", "linear along a sequence, products", "group norm"])
def test_compiled_sums_keep_the_threshold(name: str) -> None:
    at = case(name, 1e-3, "layers")
    check_compiled(at, compile_sum(at.module, SHAPE, Classification.numbered(5), len(at.clip)), patterns(SHAPE))


@pytest.mark.slow
def test_compiled_sums_see_gradients_that_cancel() -> None:
    at = cancelling()
    made = compile_sum(at.module, SHAPE, Classification.numbered(5), len(at.clip))
    for scale in (1.0, 254.9, 1e4):
        check_compiled(at, made, scale * (1 + 1e-6 * torch.randn(20, *SHAPE)))


def test_rounding_is_what_the_worst_order_of_operations_does() -> None:
    """Ones that are each rounded up by just less than a unit: (1 + u)^k - 1."""
    for operations in (1, 1000, 10**6):
        bound = float(rounding(operations, torch.zeros(1)))
        worst = math.expm1(operations * math.log1p(2.0**-24))
        assert worst <= bound <= worst * (1 + 1e-6)
    assert float(rounding(1, torch.zeros(1, dtype=torch.float64))) == pytest.approx(2.0**-53)


def test_thresholds_of_zero_let_nothing_through() -> None:
    norms = torch.tensor([[0.0, 0.0], [1.0, 1e-30], [1e30, 5.0]], dtype=torch.float64)
    assert (clipping_factors(norms, torch.zeros(1)) == 0).all()
    assert (clipping_factors(norms, torch.tensor([0.0, 1.0]))[:, 0] == 0).all()
    assert (clipping_factors(norms, torch.tensor([1e-25])) == 0).all(), "too small for float32 to keep"


def test_each_layer_is_held_to_its_own_threshold() -> None:
    norms = torch.tensor([[3.0, 3.0], [0.5, 4.0]], dtype=torch.float64)
    factors = clipping_factors(norms, torch.tensor([1.0, 2.0]))
    expected = torch.tensor([[1 / 3, 2 / 3], [1.0, 0.5]], dtype=torch.float64)
    assert torch.allclose(factors, expected, rtol=1e-6)
    assert (factors * norms <= torch.tensor([1.0, 2.0])).all()
