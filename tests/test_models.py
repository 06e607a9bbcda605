"""Networks: parameter counts worked out by hand, shapes, seeds, per-example gradients, and refusals."""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from sordino import models
from sordino.errors import UserError
from sordino.models.checks import try_out
from sordino.models.networks import NETWORKS

SMALL = [name for name in NETWORKS if not name.startswith("resnet")]
DROPPING = ["cnn", "cnn-svhn", "cnn-emnist"]


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def conv(before: int, after: int, side: int, bias: bool = True) -> int:
    return before * after * side * side + after * bias


def resnet(blocks: tuple[int, ...], channels: int, classes: int) -> int:
    """Parameters of a ResNet of basic blocks: bias-free convolutions, two parameters per normed channel."""
    total = conv(channels, 64, 3, bias=False) + 2 * 64
    before = 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for _ in range(count):
            total += conv(before, width, 3, bias=False) + conv(width, width, 3, bias=False) + 4 * width
            if before != width:
                total += conv(before, width, 1, bias=False) + 2 * width
            before = width
    return total + linear(512, classes)


# The sides of the maps, for the first linear layer: lenet 28-24-12-8-4 and 32-28-14-10-5; cnn 28-26-24-12;
# cnn-svhn 32-30-28-14; cnn-cifar 32-16-8-4; cnn-emnist 28-24-12-8-4; cnn-mnist-pacdp 28-14-13-5-4.
BY_HAND = [
    ("logistic", (1, 28, 28), 10, {}, linear(784, 10)),
    ("logistic", (13,), 2, {}, 28),
    ("mlp", (1, 28, 28), 10, {}, linear(784, 64) + linear(64, 10)),
    ("mlp", (20,), 3, {"hidden": 8}, linear(20, 8) + linear(8, 3)),
    ("mlp", (20,), 3, {"hidden": [8, 4]}, linear(20, 8) + linear(8, 4) + linear(4, 3)),
    ("mlp", (20,), 3, {"hidden": "8, 4"}, linear(20, 8) + linear(8, 4) + linear(4, 3)),
    ("dnn-heart", (13,), 2, {}, 13 * 10 + 10 + 10 * 2 + 2),
    (
        "lenet",
        (1, 28, 28),
        10,
        {},
        conv(1, 6, 5) + conv(6, 16, 5) + linear(256, 120) + linear(120, 84) + linear(84, 10),
    ),
    (
        "lenet",
        (3, 32, 32),
        10,
        {},
        conv(3, 6, 5) + conv(6, 16, 5) + linear(400, 120) + linear(120, 84) + linear(84, 10),
    ),
    ("cnn", (1, 28, 28), 62, {}, conv(1, 32, 3) + conv(32, 64, 3) + linear(9216, 128) + linear(128, 62)),
    ("cnn-svhn", (3, 32, 32), 10, {}, 1_626_442),
    ("cnn-cifar", (3, 32, 32), 10, {}, 343_946),
    ("cnn-emnist", (1, 28, 28), 47, {}, conv(1, 10, 5) + conv(10, 20, 5) + linear(320, 50) + linear(50, 47)),
    ("cnn-mnist-pacdp", (1, 28, 28), 10, {}, 26_010),
    (
        "resnet9",
        (3, 32, 32),
        10,
        {},
        sum(
            conv(a, b, 3) + 2 * b
            for a, b in [(3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512)] + 2 * [(512, 512)]
        )
        + linear(512, 10),
    ),
    ("resnet18", (3, 32, 32), 10, {}, resnet((2, 2, 2, 2), 3, 10)),
    ("resnet34", (3, 32, 32), 100, {}, resnet((3, 4, 6, 3), 3, 100)),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "expected"), BY_HAND)
def test_parameter_counts_by_hand(name, shape, classes, options, expected):
    assert parameters(models.build(name, shape, classes, **options)) == expected


def test_resnet18_count_is_the_usual_one():
    # The count known for the CIFAR-10 ResNet-18 with BatchNorm, whose affine parameters GroupNorm shares.
    assert resnet((2, 2, 2, 2), 3, 10) == 11_173_962


@pytest.mark.parametrize("name", NETWORKS)
def test_what_names_says_holds(name):
    network = NETWORKS[name]
    module = models.build(name, network.shape, network.classes)
    assert f"{parameters(module):,} parameters" in models.names()[name]
    models.check(module)
    assert not list(module.buffers())
    for part in module.modules():
        assert not isinstance(part, nn.modules.batchnorm._NormBase)
        if isinstance(part, nn.GroupNorm):
            assert part.num_groups == 32
    assert module.training
    # No in-place operations, which could write to a caller's data.
    assert not any(getattr(part, "inplace", False) for part in module.modules())


def test_every_name_is_documented_in_one_line():
    assert set(models.names()) == {
        *("logistic", "mlp", "lenet", "cnn", "cnn-svhn", "cnn-cifar", "cnn-emnist", "cnn-mnist-pacdp"),
        *("dnn-heart", "hazards", "head", "resnet9", "resnet18", "resnet34"),
    }
    assert all(text and "\n" not in text for text in models.names().values())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 16, 21)])
def test_outputs_are_logits(name, shape):
    inputs = torch.randn(4, *shape)
    before = inputs.clone()
    logits = models.build(name, shape, 7)(inputs)
    assert logits.shape == (4, 7)
    assert torch.equal(inputs, before)
    # A log-softmax would sum to one in each row.
    assert not torch.allclose(logits.exp().sum(1), torch.ones(4), atol=1e-3)


@pytest.mark.parametrize(("name", "shape"), [("resnet9", (1, 28, 28)), ("resnet18", (1, 8, 8))])
def test_resnets_take_small_images(name, shape):
    assert models.build(name, shape, 5)(torch.randn(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize("name", ["logistic", "mlp", "dnn-heart"])
def test_tables_are_taken_as_they_are(name):
    assert models.build(name, (13,), 2)(torch.randn(5, 13)).shape == (5, 2)


@pytest.mark.parametrize("name", [name for name, network in NETWORKS.items() if network.least_side])
def test_least_side_is_the_least_that_works(name):
    network = NETWORKS[name]
    least = network.least_side
    if name != "resnet34":
        assert models.build(name, (1, least, least), 3)(torch.randn(2, 1, least, least)).shape == (2, 3)
    if least > 1:
        with pytest.raises(UserError, match=f"{name}.*at least {least}, not"):
            models.build(name, (1, least, least - 1), 3)
        with pytest.raises(RuntimeError):
            network.make((1, least, least - 1), 3)(torch.randn(2, 1, least, least - 1))
    with pytest.raises(UserError, match=r"channels, height, width.*not \(13,\)"):
        models.build(name, (13,), 3)


@pytest.mark.parametrize("name", [*SMALL, "resnet18"])
def test_the_seed_decides_the_weights(name):
    network = NETWORKS[name]

    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        module = models.build(name, network.shape, network.classes)
        return nn.utils.parameters_to_vector(module.parameters()).detach()

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


@pytest.mark.parametrize("name", ["lenet", *DROPPING])
def test_only_initial_weights_draw_randomness(name):
    network = NETWORKS[name]
    torch.manual_seed(5)
    module = models.build(name, network.shape, network.classes)
    after_build = torch.get_rng_state()
    torch.manual_seed(5)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            part.reset_parameters()
    assert torch.equal(torch.get_rng_state(), after_build)


@pytest.mark.parametrize("name", [*SMALL, "resnet9", "resnet18"])
def test_gradients_reach_every_parameter(name):
    torch.manual_seed(0)
    network = NETWORKS[name]
    module = models.build(name, network.shape, network.classes)
    logits = module(torch.randn(8, *network.shape))
    nn.functional.cross_entropy(logits, torch.arange(8) % network.classes).backward()
    for path, parameter in module.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.abs().sum() > 0, path


def gradients_of_examples(module, inputs, labels, **how):
    weights = {path: parameter.detach() for path, parameter in module.named_parameters()}

    def loss(weights, one, label):
        logits = functional_call(module, weights, (one.unsqueeze(0),))
        return nn.functional.cross_entropy(logits, label.unsqueeze(0))

    return vmap(grad(loss), in_dims=(None, 0, 0), **how)(weights, inputs, labels)


@pytest.mark.parametrize("name", [*SMALL, "resnet9", "resnet18"])
def test_per_example_gradients_equal_one_by_one(name):
    torch.manual_seed(0)
    shape = NETWORKS[name].shape if name in SMALL else (3, 8, 8)
    module = models.build(name, shape, 4, **({"dropout": False} if name in DROPPING else {})).double()
    # In double precision: a near-tie under a ReLU or a pool would fall either way in single.
    inputs, labels = torch.randn(2, *shape, dtype=torch.float64), torch.tensor([1, 3])
    together = gradients_of_examples(module, inputs, labels)
    for i in range(2):
        module.zero_grad()
        nn.functional.cross_entropy(module(inputs[i : i + 1]), labels[i : i + 1]).backward()
        for path, parameter in module.named_parameters():
            scale = parameter.grad.abs().max()
            assert (together[path][i] - parameter.grad).abs().max() <= 1e-10 * scale, path


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_under_vmap_is_each_examples_own(name):
    module = models.build(name, (1, 28, 28), 4)
    twice = torch.randn(1, 1, 28, 28).expand(2, -1, -1, -1)
    found = gradients_of_examples(module, twice, torch.tensor([1, 1]), randomness="different")
    assert not torch.equal(found["fc1.weight"][0], found["fc1.weight"][1])


def test_stacked_clients_under_vmap():
    # Two clients with weights of their own, as the simulator stacks them.
    clients = [models.build("lenet", (1, 28, 28), 4) for _ in range(2)]
    stacked, _ = torch.func.stack_module_state(clients)
    inputs = torch.randn(2, 3, 1, 28, 28)
    logits = vmap(lambda weights, x: functional_call(clients[0], weights, (x,)))(stacked, inputs)
    for i, client in enumerate(clients):
        torch.testing.assert_close(logits[i], client(inputs[i]), atol=1e-5, rtol=1e-4)


def test_dropout_is_on_in_training_and_off_on_request():
    inputs = torch.randn(2, 1, 28, 28)
    for name in DROPPING:
        on = models.build(name, (1, 28, 28), 10)
        assert not torch.equal(on(inputs), on(inputs))
        off = models.build(name, (1, 28, 28), 10, dropout=False)
        assert torch.equal(off(inputs), off(inputs))
        assert on.state_dict().keys() == off.state_dict().keys()
    rates = [part.p for part in models.build("cnn", (1, 28, 28), 10).modules() if isinstance(part, nn.Dropout)]
    assert rates == [0.25, 0.5]
    personal = models.build("resnet18", (3, 8, 8), 10, dropout=0.5)
    assert [part.p for part in personal.modules() if isinstance(part, nn.Dropout)] == [0.5]


def test_femnist_network_is_linear_after_its_pool():
    # FedDPA's has a ReLU after the second convolution only: none between its two linear layers.
    module = models.build("cnn", (1, 28, 28), 62)
    assert sum(isinstance(part, nn.ReLU) for part in module.modules()) == 1
    assert sum(isinstance(part, nn.ReLU) for part in models.build("cnn-svhn", (3, 32, 32), 10).modules()) == 3


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((13,), "logistic"),
        ((64,), "logistic"),
        ((1, 8, 8), "logistic"),
        ((65,), "logistic"),
        ((500,), "logistic"),
        ((3, 8, 8), "mlp"),
        ((1, 27, 28), "mlp"),
        ((1, 28, 28), "lenet"),
        ((3, 32, 32), "lenet"),
        ((28, 28), "mlp"),
    ],
)
def test_default(shape, expected):
    assert models.default(shape) == expected


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(2, 20))
def test_the_default_always_fits(shape, classes):
    shape = tuple(shape)
    module = models.build(models.default(shape), shape, classes)
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (("lenett", (1, 28, 28), 10), {}, "no model 'lenett'; did you mean 'lenet'"),
        (("mlp", (5,), 3), {"hiden": 4}, "option of the model 'mlp' called 'hiden'; did you mean 'hidden'"),
        (("lenet", (1, 28, 28), 10), {"hidden": 4}, "'lenet' has no options; leave 'hidden' out"),
        (("mlp", (5,), 3), {"hidden": "4,x"}, "positive widths.*not '4,x'"),
        (("mlp", (5,), 3), {"hidden": 0}, "positive widths.*not 0"),
        (("mlp", (5,), 3), {"hidden": []}, "positive widths"),
        (("mlp", (5,), 3), {"hidden": True}, "positive widths"),
        (("mlp", (5,), 3), {"hidden": 2.5}, "positive widths"),
        (("cnn", (1, 28, 28), 3), {"dropout": 0.3}, "true .* or false, not 0.3"),
        (("resnet18", (1, 28, 28), 3), {"dropout": 1.0}, "rate from 0 to below 1"),
        (("resnet18", (1, 28, 28), 3), {"dropout": True}, "rate from 0 to below 1"),
        (("logistic", (), 3), {}, "input shape of positive sizes"),
        (("logistic", (0, 3), 3), {}, "input shape of positive sizes"),
    ],
)
def test_refusals(arguments, options, sentence):
    with pytest.raises(UserError, match=sentence):
        models.build(*arguments, **options)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (nn.BatchNorm2d(4), "'body.1' .* is a BatchNorm2d.*use GroupNorm: "),
        (nn.BatchNorm1d(4, track_running_stats=False), "'body.1' .* is a BatchNorm1d.*use GroupNorm: "),
        (nn.SyncBatchNorm(4), "'body.1' .* is a SyncBatchNorm.*use GroupNorm: "),
        (nn.InstanceNorm2d(4, track_running_stats=True), "'body.1' .* running statistics.*use GroupNorm: "),
        (nn.LazyLinear(4), "'body.1.weight' .* no size yet"),
    ],
)
def test_check_names_the_part_in_the_way(part, sentence):
    module = nn.Sequential()
    module.add_module("body", nn.Sequential(nn.Conv2d(1, 4, 3), part))
    with pytest.raises(UserError, match=sentence):
        models.check(module)


def test_check_of_whole_networks():
    with pytest.raises(UserError, match="The network itself is a BatchNorm1d"):
        models.check(nn.BatchNorm1d(3))
    with pytest.raises(UserError, match=r"\(ReLU\) has no trainable parameters"):
        models.check(nn.ReLU())
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameters"):
        models.check(frozen)
    models.check(nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(3)))


MIXING = ("Crowded", "CrowdedInTraining", "Centred", "CentredUnseen", "CentredInTraining", "Counted", "Attentive")
HANGING = ("object", "function", "method", "partial")

OWN = """
    import functools
    import numpy as np
    import torch
    from torch import nn

    class Crowded(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.layer = nn.Linear(shape[0], classes)
        def forward(self, x):
            return self.layer(x - x.mean(dim=0) if len(x) >= 8 else x)

    class CrowdedInTraining(Crowded):
        def forward(self, x):
            return self.layer(x - x.mean(dim=0) if len(x) >= 8 and self.training else x)

    class Sized(nn.Module):
        def __init__(self, shape, classes, *, width=5):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(shape[0], width), nn.Dropout(), nn.Linear(width, classes)
            )
        def forward(self, x):
            return self.layers(x)

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("scale", torch.ones(1))
        def forward(self, x):
            return self.layer(x * self.scale)

    class Bare(nn.Module):
        pass

    class Greedy(Sized):
        def __init__(self, **everything):
            super().__init__(**everything)

    def factory(classes):
        return nn.Linear(6, classes)

    def needy(shape, depth):
        return nn.Linear(6, 3)

    def number():
        return 3

    def broken(shape):
        raise KeyError("weights")

    def wide(classes):
        return nn.Linear(6, classes + 1)

    def narrow(classes):
        return nn.Linear(5, classes)

    def normed(shape, classes):
        return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, classes))

    def spectral(classes):
        layer = nn.Linear(6, classes)
        with torch.no_grad():  # singular values near each other: after fifteen steps the iteration still moves
            layer.weight.copy_(torch.eye(classes, 6) * torch.linspace(1, 0.97, classes)[:, None])
        return nn.utils.parametrizations.spectral_norm(layer)

    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("mean", torch.zeros(6))
        def forward(self, x):
            if self.training:
                self.mean += 0.1 * (x.detach().mean(0) - self.mean)
            return self.layer(x - self.mean)

    class Centred(Fixed):
        def forward(self, x):
            return self.layer(x - x.mean(0))

    class CentredUnseen(Fixed):
        def forward(self, x):
            return self.layer(x - x.detach().mean(0))

    class CentredInTraining(Fixed):
        def forward(self, x):
            return self.layer(x - x.mean(0) if self.training else x)

    class Counted(Fixed):
        def forward(self, x):
            return self.layer(x) / len(x)

    class Attentive(Fixed):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2)
        def forward(self, x):
            x = x.unsqueeze(1)
            return self.layer(self.attention(x, x, x)[0].squeeze(1))

    class AttentiveWithin(Fixed):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(2, 1, batch_first=True, dropout=0.1)
        def forward(self, x):
            x = x.view(-1, 3, 2)
            return self.layer(self.attention(x, x, x)[0].flatten(1))

    class Remembering(Fixed):
        def __init__(self):
            super().__init__()
            self.last = None
        def forward(self, x):
            self.last = x.detach()
            return self.layer(x)

    class Listing(Fixed):
        def __init__(self):
            super().__init__()
            self.means = {"all": []}
        def forward(self, x):
            self.means["all"].append(float(x.detach().mean()))
            return self.layer(x)

    class Numpy(Fixed):
        def __init__(self):
            super().__init__()
            self.mean = np.zeros(6)
        def forward(self, x):
            self.mean = self.mean + x.detach().mean(0).numpy()
            return self.layer(x)

    class Objects(Numpy):
        def __init__(self):
            super().__init__()
            self.mean = np.array([0.0], dtype=object)

    class Bytes(Fixed):
        def __init__(self):
            super().__init__()
            self.seen = bytearray()
        def forward(self, x):
            self.seen.append(len(x))
            return self.layer(x)

    class Box:
        __slots__ = ("mean",)

    class Slotted(Fixed):
        def __init__(self):
            super().__init__()
            self.box = Box()
        def forward(self, x):
            self.box.mean = x.detach().mean()
            return self.layer(x)

    class Hidden(Fixed):
        def __init__(self):
            super().__init__()
            self.norms = [nn.BatchNorm1d(6)]
        def forward(self, x):
            self.norms[0](x.detach().repeat(2, 1))
            return self.layer(x)

    class Running:
        def __init__(self):
            self.mean = 0.0
        def __call__(self, layer, inputs, outputs):
            before, self.mean = self.mean, float(outputs.detach().mean())
            return outputs + 0 * before

    class Hung(Fixed):
        def __init__(self, shape, classes, how="object"):
            super().__init__()
            called = Running()
            hooks = {"object": called, "function": lambda *seen: called(*seen), "method": called.__call__}
            hooks["partial"] = functools.partial(called)
            self.layer.register_forward_hook(hooks[how])

    class Moving(Fixed):
        def forward(self, x):
            with torch.no_grad():
                self.layer.bias += x.mean()
            return self.layer(x)

    class Positions(Fixed):
        table = None
        def forward(self, x):
            if self.table is None:
                self.table = torch.linspace(0, 1, 6)
            return nn.functional.dropout(self.layer(x + self.table), training=self.training)

    def weighted(classes):
        return nn.utils.parametrizations.weight_norm(nn.Linear(6, classes))

    class Pair(Fixed):
        def forward(self, x):
            return super().forward(x), x

    ready = Fixed()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a user's networks, as the current directory."""
    (tmp_path / "ward").mkdir()
    (tmp_path / "ward" / "nets.py").write_text(textwrap.dedent(OWN))
    (tmp_path / "ward_broken.py").write_text("import no_such_library\n")
    (tmp_path / "ward_syntax.py").write_text("def\n")
    (tmp_path / "ward_empty.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("ward.nets:Sized", {}, linear(6, 5) + linear(5, 3)),
        ("ward.nets.Sized", {"width": 7}, linear(6, 7) + linear(7, 3)),
        ("ward.nets:Greedy", {"width": 7}, linear(6, 7) + linear(7, 3)),
        ("ward.nets:Fixed", {}, linear(6, 3)),
        ("ward.nets:factory", {}, linear(6, 3)),
        ("ward.nets:Positions", {}, linear(6, 3)),
    ],
)
def test_own_models(name, options, expected):
    torch.manual_seed(1)
    module = models.build(name, (6,), 3, **options)
    after_build = torch.get_rng_state()
    assert parameters(module) == expected
    assert module.training
    # Neither the import (`ready` draws weights) nor trying the network out (dropout) draws randomness.
    torch.manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    assert torch.equal(torch.get_rng_state(), after_build)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("wardd.nets:Sized", {}, "no module 'wardd'.*current directory"),
        ("ward.netts:Sized", {}, r"no module 'ward.netts'"),
        ("ward.nets:Sizd", {}, "in the module 'ward.nets' named 'Sizd'; did you mean 'Sized'"),
        ("ward_empty:Sized", {}, "has no 'Sized', nor any other"),
        ("ward_broken:Net", {}, "'ward_broken' cannot be imported: ModuleNotFoundError.*no_such_library"),
        ("ward_syntax:Net", {}, "'ward_syntax' cannot be imported: SyntaxError"),
        ("ward.nets:", {}, "not a dotted name; write it as 'package.module:Class'"),
        (".nets", {}, "not a dotted name"),
        ("nets.py:Net", {}, "names a file; write the module, 'nets:Net'"),
        ("ward.nets:Sized", {"widht": 3}, "called 'widht'; did you mean 'width'"),
        ("ward.nets:Fixed", {"width": 3}, "has no options"),
        ("ward.nets:needy", {}, "missing a required argument: 'depth'; pass the missing argument as an option"),
        ("ward.nets:number", {}, "gives a int; a model must be a torch.nn.Module"),
        ("ward.nets:broken", {}, "cannot be made: KeyError: 'weights'"),
        ("ward.nets:ready", {}, "object; name the class"),
        ("ward.nets:Bare", {}, "no trainable parameters"),
        ("ward.nets:wide", {}, r"gives shape \(1, 4\).*logits of shape \(1, 3\)"),
        ("ward.nets:Pair", {}, r"gives a tuple.*logits of shape \(1, 3\)"),
        ("ward.nets:narrow", {}, r"fails on an input of shape \(6,\): RuntimeError"),
        ("ward.nets:normed", {}, "'0' in the network is a BatchNorm1d"),
        ("ward.nets:spectral", {}, "buffer 'parametrizations.weight.0._[uv]' .* changes in training"),
        ("ward.nets:Average", {}, "buffer 'mean' .* changes in training"),
        ("ward.nets:Remembering", {}, "attribute 'last' .* changes in training"),
        ("ward.nets:Listing", {}, "attribute 'means' .* changes in training"),
        ("ward.nets:Numpy", {}, "attribute 'mean' .* changes in training"),
        ("ward.nets:Objects", {}, "attribute 'mean' .* changes in training"),
        ("ward.nets:Bytes", {}, "attribute 'seen' .* changes in training"),
        ("ward.nets:Slotted", {}, "attribute 'box' .* changes in training"),
        ("ward.nets:Hidden", {}, "attribute 'norms' .* changes in training"),
        *(("ward.nets:Hung", {"how": how}, "hooks' .* changes in training") for how in HANGING),
        ("ward.nets:Moving", {}, "parameter 'layer.bias' .* changes in training"),
        *((f"ward.nets:{name}", {}, f"'ward.nets:{name}' mixes the records of a batch") for name in MIXING),
    ],
)
def test_refusals_of_own_models(name, options, sentence):
    with pytest.raises(UserError, match=sentence):
        models.build(name, (6,), 3, **options)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["AttentiveWithin", "weighted"])
def test_attention_within_a_record_and_normed_weights_are_fine(name):
    assert models.build(f"ward.nets:{name}", (6,), 3).training


@pytest.mark.parametrize("name", ["lenet", "cnn-emnist", "cnn-mnist-pacdp", "cnn-cifar", "mlp"])
def test_networks_by_name_would_pass_as_own_ones(name):
    network = NETWORKS[name]
    try_out(name, models.build(name, network.shape, network.classes), network.shape, network.classes)


@pytest.mark.usefixtures("own")
def test_loading_leaves_the_search_path_alone():
    before = list(sys.path)
    models.build("ward.nets:Fixed", (6,), 3)
    assert sys.path == before


def test_the_interface_is_the_agreed_one():
    assert list(inspect.signature(models.build).parameters) == ["name", "shape", "outputs", "options"]
    assert list(inspect.signature(models.default).parameters) == ["shape"]
    assert list(inspect.signature(models.check).parameters) == ["module"]
