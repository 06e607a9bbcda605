"""Scattering coefficients: by hand, against kymatio, and each record by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.features.scattering import Scattering, StandardisedOrders


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_constant_image_has_its_value_and_nothing_else() -> None:
    """Wavelets have mean zero; the low-pass has sum one, which is also that of every row of the averages."""
    found = Scattering((1, 12, 16), scales=2, angles=4)(torch.full((1, 1, 12, 16), 0.7))
    assert torch.allclose(found[:, :, 0], torch.tensor(0.7), atol=1e-3)
    assert found[:, :, 1:].abs().max() < 1e-3


def test_twice_the_image_has_twice_the_coefficients() -> None:
    transform, x = Scattering((1, 12, 12), scales=2, angles=4), images(2, 1, 12, 12)
    assert torch.allclose(transform(2 * x), 2 * transform(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "scales", "angles"), [((1, 28, 28), 2, 8), ((2, 32, 40), 3, 6), ((1, 9, 14), 1, 4)], ids=str
)
def test_the_coefficients_are_those_of_kymatio(shape: tuple[int, int, int], scales: int, angles: int) -> None:
    frontend = pytest.importorskip("kymatio.scattering2d.frontend.torch_frontend")
    x = images(3, *shape)
    ours, theirs = Scattering(shape, scales, angles), frontend.ScatteringTorch2D(scales, shape[1:], L=angles)(x)
    orders = [one for one in ours.coefficients if one]
    for mine, other in zip(ours(x).split(orders, dim=2), theirs.split(orders, dim=2), strict=True):
        assert (mine - other).norm() < 2e-3 * other.norm()


def test_pooled_maps_are_averages_of_the_maps() -> None:
    """Seven places become three windows: 0 to 3, 2 to 5 and 4 to 7."""
    x = images(2, 1, 28, 28)
    whole, pooled = Scattering((1, 28, 28))(x), Scattering((1, 28, 28), pool=3)(x)
    windows = torch.nn.functional.adaptive_avg_pool2d(whole.flatten(0, 2), 3)
    assert pooled.shape == (2, 1, 81, 3, 3)
    assert torch.allclose(pooled.flatten(0, 2), windows, atol=1e-5)


def test_channels_and_records_stay_apart() -> None:
    transform, x = Scattering((3, 12, 12), angles=4), images(4, 3, 12, 12)
    alone = Scattering((1, 12, 12), angles=4)
    assert torch.allclose(transform(x)[:, 1:2], alone(x[:, 1:2]), atol=1e-6)
    assert torch.allclose(transform(x)[2:3], transform(x[2:3]), atol=1e-6)


def test_each_order_of_each_record_is_standardised() -> None:
    transform = Scattering((2, 12, 12), angles=4)
    found = StandardisedOrders(transform.coefficients)(transform(images(3, 2, 12, 12)))
    many = 2 * transform.rows * transform.columns
    for part in found.split([many * one for one in transform.coefficients], dim=1):
        assert part.mean(dim=1).abs().max() < 1e-4
        assert torch.allclose(part.square().mean(dim=1), torch.ones(3), atol=1e-2)


def test_an_empty_image_is_no_reason_to_divide_by_zero() -> None:
    transform = Scattering((1, 12, 12), angles=4)
    assert torch.isfinite(StandardisedOrders(transform.coefficients)(transform(torch.zeros(1, 1, 12, 12)))).all()


def test_records_that_are_no_images_or_too_small_are_refused() -> None:
    with pytest.raises(UserError, match="is for images"):
        Scattering((13,))
    with pytest.raises(UserError, match=r"shape \(1, 28, 30\)"):
        Scattering((28, 30))
    with pytest.raises(UserError, match=r"channels last: put them first, as \(3, 28, 30\)"):
        Scattering((28, 30, 3))
    with pytest.raises(UserError, match="needs images of at least 16x16"):
        Scattering((1, 12, 12), scales=4)
