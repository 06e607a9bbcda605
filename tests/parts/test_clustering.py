"""Who is alike: by hand, without noise, and at the noise of epsilon 1; and what clusters learn from each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from sordino.data import catalogue, load
from sordino.parts.clustering import (
    angles,
    class_subspace,
    clusters,
    directions,
    draw,
    first_vectors,
    moment_distances,
    moment_threshold,
    noise_that_shows,
    of_all,
    proximal,
    relations,
    split_in_two,
)
from sordino.privacy.release import Matrix, Public

EPSILON_ONE = 3.73
"""The Gaussian multiplier of epsilon 1 at delta 1e-5."""
HERE = {entry.name for entry in catalogue() if entry.present}
needs_fashion = pytest.mark.skipif("fashion-mnist" not in HERE, reason="Fashion-MNIST is not here")


@pytest.fixture(scope="module")
def fashion() -> tuple[Tensor, Tensor]:
    data = load("fashion-mnist")
    return data.x, data.y


Clients = list[tuple[Tensor, Tensor]]


def rotated(x: Tensor, y: Tensor, clients: int, records: int, seed: int, groups: int = 4) -> tuple[Clients, list[int]]:
    """Clients whose images are turned by 0, 90, 180 or 270 degrees."""
    generator = torch.Generator().manual_seed(seed)
    truth = [client % groups for client in range(clients)]
    chosen = [torch.randperm(len(y), generator=generator)[:records] for _ in truth]
    return [(x[c].rot90(turn, (2, 3)), y[c]) for c, turn in zip(chosen, truth, strict=True)], truth


def parted(x: Tensor, y: Tensor, clients: int, records: int, seed: int) -> tuple[Clients, list[int]]:
    """Clients that hold labels {0, 1}, {2, 3}, ... or {8, 9}."""
    generator = torch.Generator().manual_seed(seed)
    truth = [client % 5 for client in range(clients)]
    of_group = [torch.nonzero(y // 2 == group).squeeze(1) for group in range(5)]
    chosen = [of_group[g][torch.randperm(len(of_group[g]), generator=generator)[:records]] for g in truth]
    return [(x[c], y[c]) for c in chosen], truth


def second_moments(x: Tensor, basis: Tensor) -> Tensor:
    """As the gate makes them of sealed records, before noise."""
    whole = Matrix(share=0.2).bounded(x.reshape(len(x), -1) @ basis, Public({}))
    return whole.rows.reshape(basis.shape[1], basis.shape[1])


def moments(clients: Clients, dimensions: int, noise: float, seed: int) -> list[Tensor]:
    """Second moments after a public projection, with mirrored Gaussian noise."""
    generator = torch.Generator().manual_seed(1000 + seed)
    basis = directions(clients[0][0][0].numel(), dimensions, generator)
    found = []
    for x, _ in clients:
        drawn = noise * torch.randn(basis.shape[1], basis.shape[1], generator=generator)
        found.append(second_moments(x, basis) + drawn.triu() + drawn.triu(1).T)
    return found


def test_angles_by_hand() -> None:
    """Equal spans 0, orthogonal ones 90, a line at 30 degrees to a plane 30, planes that share a line 0."""
    plane = torch.eye(4)[:, :2]
    line = torch.tensor([[0.75**0.5], [0.0], [0.5], [0.0]])
    found = angles([plane, -plane.flip(1), torch.eye(4)[:, 2:], line, torch.eye(4)[:, 1:3]])
    assert found[0] == pytest.approx([0, 0, 90, 30, 0], abs=1e-5)
    assert found[2, 3] == pytest.approx(60, abs=1e-5)
    assert np.array_equal(found, found.T)


def test_disjoint_features_are_at_right_angles() -> None:
    """Clients whose records are one-hot in different features; a class of one record adds one vector."""
    x = torch.eye(6)
    first = class_subspace(x[[0, 1, 0, 2]], torch.tensor([0, 0, 0, 1]), 3)
    other = class_subspace(x[[3, 4, 5]], torch.tensor([0, 1, 1]), 3)
    assert first.shape == (6, 3)
    assert torch.allclose(first.T @ first, torch.eye(3, dtype=torch.float64), atol=1e-12)
    assert angles([first, other])[0, 1] == pytest.approx(90)


def test_dependent_vectors_do_not_add_directions() -> None:
    """Two classes along one line span a line, although QR of their vectors would return a plane."""
    x = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    assert class_subspace(x, torch.tensor([0, 1]), 2).shape == (3, 1)


@pytest.mark.parametrize("records", [30, 300])
def test_identical_clients_are_never_parted_without_noise(records: int) -> None:
    """The same records in another order and in single precision, with and without a threshold, in both ways."""
    data = load("digits")
    x, y = data.x[:records], data.y[:records]
    orders = [torch.randperm(records, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    found = angles([class_subspace(x[order], y[order], 3).float() for order in orders])
    assert np.array_equal(found, np.zeros((8, 8)))
    assert not clusters(found).any()
    assert not clusters(found, 0.0).any()
    basis = directions(64, 16, torch.Generator().manual_seed(0))
    found = moment_distances([second_moments(x[order], basis) for order in orders], 0.0)
    assert found.max() < 1e-4
    assert not clusters(found, moment_threshold(16)).any()


def test_directions_are_orthonormal() -> None:
    generator = torch.Generator().manual_seed(0)
    basis = directions(64, 16, generator)
    assert torch.allclose(basis.T @ basis, torch.eye(16), atol=1e-6)
    assert directions(13, 16, generator).shape == (13, 13)


def test_the_first_vectors_of_chosen_records() -> None:
    """The same span as with the records picked out; zeros where there are fewer; the same for many clients at once."""
    data = load("digits")
    x, y = data.x[:60], data.y[:60]
    everybody = torch.stack([first_vectors(x, y == label, 3, 100) for label in range(10)])
    for label, found in enumerate(everybody):
        left = torch.linalg.svd(x[y == label].reshape(-1, 64).double().T, full_matrices=False).U[:, :3]
        assert torch.allclose((found.double() @ found.double().T), left @ left.T, atol=1e-5)
    stacked = torch.func.vmap(lambda chosen: first_vectors(x, chosen, 3, 100))(
        torch.stack([y == label for label in range(10)])
    )
    assert torch.allclose(stacked @ stacked.mT, everybody @ everybody.mT, atol=1e-5)
    assert first_vectors(x, torch.arange(60) == 7, 3, 100).norm(dim=0) == pytest.approx([1, 0, 0], abs=1e-6)
    assert not first_vectors(x, torch.zeros(60, dtype=torch.bool), 3, 100).any()
    assert first_vectors(x[:2], torch.ones(2, dtype=torch.bool), 3, 100).shape == (64, 3)
    assert torch.allclose(first_vectors(x, y < 5, 1, 4).abs(), first_vectors(x[y < 5][:4], y[:4] < 99, 1, 4).abs())


def test_halves_by_hand() -> None:
    """At 0, 100, 10 and 90 degrees, however long; three alike and one opposite; where all are alike, both have some."""
    turns = torch.deg2rad(torch.tensor([0.0, 100.0, 10.0, 90.0]))
    rows = torch.stack([turns.cos(), turns.sin()], dim=1) * torch.tensor([[1.0], [5.0], [0.1], [3.0]])
    assert split_in_two(rows).tolist() == [False, True, False, True]
    assert split_in_two(torch.tensor([[1.0], [2.0], [-1.0], [3.0]])).tolist() == [False, False, True, False]
    assert 0 < int(split_in_two(torch.ones(5, 3)).sum()) < 5
    assert split_in_two(torch.tensor([[0.0, 0.0], [1.0, 0.0]])).tolist() == [False, True]


def test_moment_distances_by_hand() -> None:
    """diag(1, 0) and diag(0, 1) are sqrt 2 apart; 100 records each, noise of deviation 5 in 2 x 2 entries."""
    pair = [torch.diag(torch.tensor([100.0, 0.0])), torch.diag(torch.tensor([0.0, 100.0]))]
    assert moment_distances(pair, 0.0)[0, 1] == pytest.approx((2 / (2 * 0.01)) ** 0.5)
    assert moment_distances(pair, 5.0)[0, 1] == pytest.approx((2 / (2 * (0.01 + 0.01))) ** 0.5)
    assert moment_distances(pair, torch.tensor([0.0, 5.0]))[0, 1] == pytest.approx((2 / 0.03) ** 0.5)


def test_alike_clients_are_at_distance_one() -> None:
    """190 pairs of clients of one distribution, noise of epsilon 1, and unequal numbers of records."""
    generator = torch.Generator().manual_seed(0)
    records = [torch.randn(100 + 40 * client, 1, 4, 4, generator=generator) for client in range(20)]
    matrices = moments([(x, x) for x in records], 16, EPSILON_ONE, 0)
    found = moment_distances(matrices, EPSILON_ONE)[np.triu_indices(20, 1)]
    assert found.mean() == pytest.approx(1, abs=0.03)
    assert found.std() == pytest.approx(1 / 16, abs=0.03)


def test_the_noise_in_which_a_gap_shows() -> None:
    """Clients a gap apart are at 1 + 3.4/k in the mean with the noise that just lets it show; with twice that, not."""
    k, records, gap = 8, 200, 0.4
    noise = noise_that_shows(records, k, gap)
    base = torch.eye(k) * records / k
    shift = torch.zeros(k, k)
    shift[0, 0], shift[1, 1] = 1.0, -1.0
    other = base + shift * records * gap / 2**0.5
    assert float((other - base).norm()) / records == pytest.approx(gap)
    generator = torch.Generator().manual_seed(0)
    means = []
    for deviation in (noise, 2 * noise):
        drawn = deviation * torch.randn(400, k, k, generator=generator)
        noisy = torch.cat([base.repeat(200, 1, 1), other.repeat(200, 1, 1)]) + drawn.triu() + drawn.triu(1).mT
        means.append(moment_distances(noisy, deviation)[:200, 200:].mean())
    # no draw of records is simulated: the chance of the draw, 1/records of each, is missing in the numerator
    missing = 2 / records / (2 * ((k * noise / records) ** 2 + 1 / records))
    assert means[0] == pytest.approx(((1 + 3.4 / k) ** 2 - missing) ** 0.5, rel=0.02)
    assert means[1] < moment_threshold(k)
    assert noise_that_shows(5, k, 0.1) == 0


def test_clusters_are_numbered_by_their_first_member() -> None:
    place = np.array([5.0, 0.0, 5.2, 9.0, 0.1])
    matrix = np.abs(place[:, None] - place)
    assert clusters(matrix, 1.0).tolist() == [0, 1, 0, 2, 1]
    assert clusters(matrix).tolist() == [0, 1, 0, 2, 1]  # heights 0.1, 0.2, 3.9, 6.35
    assert clusters(matrix, 0.15).tolist() == [0, 1, 2, 3, 1]
    assert clusters(matrix, 99).tolist() == [0] * 5
    assert clusters(np.zeros((1, 1))).tolist() == [0]


def test_whoever_did_not_answer_is_in_the_first_cluster() -> None:
    """Of four clients 3, 0 and 2 answered, in this order; the first of them is far from the others."""
    matrix = np.array([[0.0, 9.0, 8.0], [9.0, 0.0, 1.0], [8.0, 1.0, 0.0]])
    distances, found = of_all(matrix, 2.0, [3, 0, 2], clients=4)
    assert found.tolist() == [1, 0, 1, 0]
    assert distances.tolist() == [[0, 0, 1, 9], [0, 0, 0, 0], [1, 0, 0, 8], [9, 0, 8, 0]]


def test_average_linkage_by_hand() -> None:
    """Points 0, 2, 5: the pair joins at 2, the third at the mean of 5 and 3."""
    matrix = np.abs(np.subtract.outer([0.0, 2.0, 5.0], [0.0, 2.0, 5.0]))
    assert clusters(matrix, 3.99).tolist() == [0, 0, 1]
    assert clusters(matrix, 4.0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_digits_are_found_without_noise(seed: int) -> None:
    """By angles and the largest gap (labels), and by moments and their threshold (turns and labels)."""
    data = load("digits")
    people, truth = parted(data.x, data.y, 15, 60, seed)
    found = angles([class_subspace(x, y, 3) for x, y in people])
    assert adjusted_rand_score(truth, clusters(found)) == 1
    for make in (rotated, parted):
        people, truth = make(data.x, data.y, 16, 200, seed)
        found = moment_distances(moments(people, 16, 0.0, seed), 0.0)
        assert adjusted_rand_score(truth, clusters(found, moment_threshold(16))) >= 0.9


@needs_fashion
@pytest.mark.parametrize("make", [rotated, parted])
@pytest.mark.parametrize(("people", "records"), [(40, 300), (20, 600)])
def test_groups_are_found_at_epsilon_one(
    make: object, people: int, records: int, fashion: tuple[Tensor, Tensor]
) -> None:
    """The issue's figure: an adjusted Rand index of at least 0.9 for each of five seeds."""
    for seed in range(5):
        members, truth = make(*fashion, people, records, seed)  # type: ignore[operator]
        found = moment_distances(moments(members, 16, EPSILON_ONE, seed), EPSILON_ONE)
        assert adjusted_rand_score(truth, clusters(found, moment_threshold(16))) >= 0.9


def iterated(models: Tensor, weight: float, steps: int, rate: float, momentum: float) -> Tensor:
    """torch's SGD on the written function."""
    moved = []
    for s, anchor in enumerate(models):
        cosines = torch.cosine_similarity(anchor.unsqueeze(0), models).clamp(min=0)
        cosines[s] = 0
        share = cosines / cosines.sum() if cosines.sum() > 0 else cosines
        w = anchor.clone().requires_grad_()
        descent = torch.optim.SGD([w], lr=rate, momentum=momentum)
        for _ in range(steps):
            descent.zero_grad()
            ((w - anchor).square().sum() + weight * (share * (w - models).square().sum(1)).sum()).backward()
            descent.step()
        moved.append(w.detach())
    return torch.stack(moved)


@pytest.mark.parametrize(("weight", "steps", "rate", "momentum"), [(0.1, 10, 0.01, 0.5), (1.0, 25, 0.1, 0.9)])
def test_the_proximal_step_is_the_iteration(weight: float, steps: int, rate: float, momentum: float) -> None:
    """Also for a cluster that is like no other, which stays where it is."""
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(4, 30, generator=generator, dtype=torch.float64) + 0.5
    models[3] = -models[:3].sum(0)
    assert float(relations(models)[3].sum()) == 0
    found = proximal(models, weight, steps, rate, momentum)
    assert torch.allclose(found, iterated(models, weight, steps, rate, momentum), atol=1e-12)
    assert torch.equal(found[3], models[3])
    assert not torch.allclose(found[0], models[0])


def test_one_cluster_learns_from_nobody() -> None:
    models = torch.randn(1, 9)
    assert torch.equal(proximal(models, 1.0), models)


def test_relations_by_hand() -> None:
    models = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [-1.0, 0.0]])
    root = 0.5**0.5
    expected = [[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert torch.allclose(relations(models), torch.tensor(expected), atol=1e-6)
    assert torch.allclose(
        relations(torch.tensor([[1.0, 0], [1, 1], [1, 0]]))[0], torch.tensor([0, root, 1]) / (1 + root)
    )


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    place = np.array([5.0, 0.0, 5.2, 9.0, 0.1])
    matrix = np.abs(place[:, None] - place)
    for labels in (clusters(matrix), clusters(matrix, 0.0), clusters(matrix, 99.0)):
        draw(matrix, labels, tmp_path / "new" / "clusters.png")
        assert (tmp_path / "new" / "clusters.png").stat().st_size > 10_000
