"""Clusters of clients, and learning between clusters (AdaDP-CFL, PACFL, CFL).

As published, a client is described by the span of the first left singular vectors of each class of its records, and two
clients are as far apart as the smallest principal angle between their spans. Such vectors cannot be released privately:
one record can turn them by 90 degrees (privacy.md, H13). Instead a client may release the second moments of records
that are short after a public projection, and `moment_distances` are taken from the noisy matrices. They find groups
under far more noise than the matrices' spans would, because they use the whole matrix and know how large the noise and
the chance of the draw are: 1 for two clients of the same distribution, whatever the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, dendrogram, fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Generator, Tensor
from torch.nn import functional

from sordino.errors import UserError
from sordino.learning.network import Records
from sordino.learning.parameters import Layout
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.budget.allowance import Outlook
from sordino.util.plotting import pyplot

ROUNDING = 1e-9
"""Share of the largest below which singular values and gaps are taken for rounding errors."""


def class_subspace(x: Tensor, y: Tensor, vectors: int) -> Tensor:
    """Return an orthonormal basis (features, at most vectors x classes) of a client's classes.

    It spans the first `vectors` left singular vectors of each class's features x records matrix.
    """
    flat = x.reshape(len(x), -1).double()
    return orthonormal_basis(
        torch.cat([orthonormal_basis(flat[y == label].T)[:, :vectors] for label in y.unique()], dim=1)
    )


def orthonormal_basis(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of some columns, the directions of the largest singular values first.

    Not by QR: of columns that depend on each other it would keep arbitrary directions.
    """
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, values > ROUNDING * values.max()]


def first_vectors(x: Tensor, chosen: Tensor, vectors: int, most: int) -> Tensor:
    """Return the first left singular vectors (features, vectors) of the features x records matrix of some records.

    Control flow depends on shapes only, so that many clients can be computed at once under `vmap`.

    Args:
        x: All records of the client.
        chosen: Which of them are used (records).
        vectors: Number of vectors; missing ones are zero.
        most: Largest number of chosen records that are used.
    """
    order = (~chosen).to(torch.int8).argsort(stable=True)[:most]
    columns = (x.reshape(len(x), -1)[order].double() * chosen[order].unsqueeze(1)).T
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    found = (left * (values > ROUNDING * values.max()))[:, :vectors].float()
    return functional.pad(found, (0, vectors - found.shape[1]))


def directions(features: int, dimensions: int, random: Generator) -> Tensor:
    """Draw a public random orthonormal basis (features, dimensions); with fewer features, as many as there are."""
    drawn = torch.randn(features, min(dimensions, features), generator=random, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.float()


def angles(subspaces: Sequence[Tensor]) -> np.ndarray:
    """Return the smallest principal angle, in degrees, between each two spans of columns.

    It is the arccos of the largest singular value of U_i^T U_j, where U are orthonormal bases of the spans.
    """
    bases = [orthonormal_basis(subspace.double()).numpy() for subspace in subspaces]
    found = np.zeros((len(bases), len(bases)))
    for i, mine in enumerate(bases):
        for j, other in enumerate(bases[:i]):
            cosine = np.linalg.norm(mine.T @ other, 2)
            # arccos would make a millionth of a degree between equal clients of a cosine's last digit
            found[i, j] = found[j, i] = 0.0 if cosine > 1 - 1e-12 else np.degrees(np.arccos(cosine))
    return found


def moment_distances(matrices: Sequence[Tensor] | Tensor, noise: float | Tensor) -> np.ndarray:
    """Return distances between noisy second moments, in units of what noise and the draw of records alone explain.

    The Frobenius distance of the matrices divided by their traces, over the root of its expected square for two
    clients of one distribution: k^2 noise^2/trace^2 for the noise and at most 1/trace for the records, of each
    client. `noise` is the deviation of the noise in each of the k x k entries, whose lower triangle mirrors the
    upper one: one number, or one for each client.
    """
    stacked = torch.stack(list(matrices)).double()
    size = stacked.shape[-1]
    noise = torch.as_tensor(noise, dtype=torch.float64)
    # a client of hardly any records has a trace of mere noise, which may even be negative
    trace = stacked.diagonal(dim1=1, dim2=2).sum(1).clamp(min=1).maximum(noise * size**0.5)
    shapes = (stacked / trace.reshape(-1, 1, 1)).flatten(1)
    squares = torch.stack([(shapes - shape).square().sum(1) for shape in shapes])
    chance = (size * noise / trace).square() + 1 / trace
    return (squares / (chance.unsqueeze(1) + chance)).sqrt().numpy()


def moment_threshold(dimensions: int) -> float:
    """Return the distance at which `moment_distances` of k x k matrices are cut: 1 + 2.4/k.

    Noise in k^2/2 free entries makes the distance of two alike clients 1 with a deviation of about 1/k.
    """
    return 1 + 2.4 / dimensions


def noise_that_shows(records: float, dimensions: int, gap: float) -> float:
    """Return the largest standard deviation of noise with which two clients of `records` records each, `gap` apart, are
    told apart.

    `gap` is the Frobenius distance of their second moments at trace one, without chance. By chance the square of the
    distance is 2 c with c = (k noise/records)^2 + 1/records, so that `moment_distances` gives sqrt(1 + gap^2/(2 c)) in
    the middle. It must reach the threshold and one deviation more, 1 + 3.4/k. Records are taken to be of norm one after
    the projection. Zero where records are too few without any noise.
    """
    chance = gap**2 / 2 / ((moment_threshold(dimensions) + 1 / dimensions) ** 2 - 1)
    return records / dimensions * math.sqrt(max(0.0, chance - 1 / records))


def clusters(matrix: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """Return the cluster of each client, numbered from 0 in the order of their first members.

    Average linkage joins clients and clusters until none are within `threshold`, in the units of `matrix`. Without
    a threshold it is the middle of the largest gap between the distances of successive joins.
    """
    if len(matrix) == 1:
        return np.zeros(1, dtype=np.int64)
    joins = average_linkage(matrix)
    found = fcluster(joins, widest_gap(joins[:, 2]) if threshold is None else threshold, criterion="distance")
    _, first, place = np.unique(found, return_index=True, return_inverse=True)
    return first.argsort().argsort()[place]


def of_all(matrix: np.ndarray, threshold: float | None, who: Sequence[int], clients: int) -> tuple[Tensor, Tensor]:
    """Return the distances between all `clients` and the cluster of each, from the `matrix` of those who answered.

    A client that did not answer is in the first cluster, at distance zero from all.
    """
    distances, found = torch.zeros(clients, clients), torch.zeros(clients, dtype=torch.int64)
    places = torch.as_tensor(list(who))
    distances[places.unsqueeze(1), places] = torch.as_tensor(matrix, dtype=torch.float32)
    found[places] = torch.as_tensor(clusters(matrix, threshold))
    return distances, found


def split_in_two(updates: Tensor) -> Tensor:
    """Split at least two clients into the two groups whose updates point apart most; true for the group without the
    first client.

    Complete linkage by cosines joins clients until two groups are left (CFL's bipartition).
    """
    unit = updates.double() / torch.linalg.vector_norm(updates.double(), dim=1, keepdim=True).clamp(min=1e-12)
    distances = (1 - unit @ unit.T).clamp(min=0).fill_diagonal_(0).numpy()
    joins = linkage(squareform(distances, checks=False), method="complete")
    found = torch.as_tensor(cut_tree(joins, n_clusters=2).reshape(-1))
    return found != found[0]


def average_linkage(matrix: np.ndarray) -> np.ndarray:
    """Return scipy's table of joins by average linkage."""
    return linkage(squareform(matrix, checks=False), method="average")


def widest_gap(heights: np.ndarray) -> float:
    """Return the middle of the largest gap between ascending heights; the last of them if all are equal."""
    gaps = np.diff(heights)
    if len(gaps) == 0 or gaps.max() <= ROUNDING * heights[-1]:
        return float(heights[-1])
    place = int(gaps.argmax())
    return float(heights[place] + heights[place + 1]) / 2


def proximal(models: Tensor, weight: float, steps: int = 10, rate: float = 0.01, momentum: float = 0.5) -> Tensor:
    """Return the cluster models (K, d) after each has learned from the others (Eq. 4.4 to 4.6).

    Each row G_s takes `steps` steps of SGD from itself on |w - G_s|^2 + weight sum_j lambda_sj |w - G_j|^2, where the
    G are the models before the step and lambda_sj = max(cos(G_s, G_j), 0), divided by its sum over j != s. The
    function is quadratic with the same curvature in all directions, so that the steps lead along the line to its
    least point, and how far is a recursion of numbers.
    """
    alike = relations(models)
    total = alike.sum(1, keepdim=True)  # 1, or 0 for a cluster like no other
    least = (models + weight * alike @ models) / (1 + weight * total)
    left, speed = 1.0, 0.0
    for _ in range(steps):
        speed = momentum * speed + 2 * (1 + weight) * left
        left -= rate * speed
    return least + left * (models - least)


def relations(models: Tensor) -> Tensor:
    """Return lambda_sj: the positive cosines between models, each row divided by its sum, zero on the diagonal."""
    unit = models / torch.linalg.vector_norm(models, dim=1, keepdim=True).clamp(min=1e-12)
    alike = (unit @ unit.T).clamp(min=0).fill_diagonal_(0)
    return alike / alike.sum(1, keepdim=True).clamp(min=1e-12)


def draw(matrix: np.ndarray, labels: np.ndarray, path: Path, unit: str = "angle in degrees") -> None:
    """Draw the dendrogram of clients with its cut, beside the matrix in the same order; nothing for one client."""
    if len(matrix) < 2:
        return
    drawing = pyplot()
    joins = average_linkage(matrix)
    inner = len(matrix) - int(labels.max()) - 1  # so many joins are within clusters
    heights = np.concatenate([[0.0], joins[:, 2], [1.05 * joins[-1, 2]]])
    cut = (heights[inner] + heights[inner + 1]) / 2
    figure, (tree, grid) = drawing.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    drawn = dendrogram(joins, ax=tree, color_threshold=cut, above_threshold_color="0.6", no_labels=len(matrix) > 50)
    tree.axhline(cut, color="0.3", lw=0.8, ls="--", label=f"cut at {cut:.3g}: {labels.max() + 1} clusters")
    tree.set_xlabel("client")
    tree.set_ylabel(unit)
    tree.legend(frameon=False)
    order = np.array(drawn["leaves"])
    shown = np.where(np.eye(len(order)) > 0, np.nan, matrix[np.ix_(order, order)])  # zeros would take half the colours
    image = grid.imshow(shown, cmap="viridis", interpolation="nearest")
    for edge in np.flatnonzero(np.diff(labels[order])) + 0.5:
        grid.axhline(edge, color="white", lw=0.8)
        grid.axvline(edge, color="white", lw=0.8)
    grid.set_title("clients in the order of the tree", fontsize=10)
    grid.set_xticks([])
    grid.set_yticks([])
    figure.colorbar(image, ax=grid, label=unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    drawing.close(figure)


def check_count(clusters: int, clients: int) -> None:
    """Refuse more models than there are clients to choose them."""
    if clusters > clients:
        raise UserError(
            f"clusters is {clusters:,}, but every client chooses one model only: set it to {clients:,}, the number of "
            "clients, or less."
        )


def starts(model: Tensor, count: int, layout: Layout, random: Generator) -> Tensor:
    """Return `count` models to start from, one row each: `model`, then its entries shuffled within each tensor.

    Shuffling keeps the distribution of the initialisation, and tensors that start constant.
    """
    rows = [model]
    for _ in range(count - 1):
        parts = [part[torch.randperm(len(part), generator=random)] for part in layout.tensors(model)]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def least_loss(models: Tensor, data: Records) -> tuple[Tensor, Tensor]:
    """Return the row of `models` with the smallest mean loss on the client's training records, and its number."""
    losses = [(data.task.losses(data.logits(model), data.y) * data.weight).sum() for model in models]
    chosen = torch.stack(losses).argmin()
    return models.index_select(0, chosen.unsqueeze(0)).squeeze(0), chosen


LARGEST_CLUSTER_SHARE = 0.5
"""The largest share of epsilon that a grouping is given: training then needs about a fifth more noise."""


def affordable_share(outlook: Outlook, records: int, dimensions: int, gap: float) -> tuple[float, str]:
    """Return the share of epsilon that tells clients of `records` training records, `gap` apart, from each other, and a
    sentence on it; 0 if it takes too much."""
    noise = noise_that_shows(records, dimensions, gap)
    alike = f"clients with {records} training records whose second moments differ by {gap:g}"
    if not math.isfinite(outlook.epsilon):
        if (outlook.multiplier or 0.0) <= noise:
            return LARGEST_CLUSTER_SHARE, f"Clients are grouped: the given noise lets {alike} be told apart."
        return 0.0, f"Clients are not grouped, and share one model: the given noise would hide {alike}."
    needed = epsilon_of(1 / noise, outlook.delta) if noise > 0 else math.inf
    share = max(needed / outlook.epsilon, 0.01)
    if share <= LARGEST_CLUSTER_SHARE:
        return share, f"The grouping gets {share:.0%} of epsilon: enough to tell {alike} apart."
    return 0.0, (
        f"Clients are not grouped, and share one model: to tell {alike} apart takes an epsilon of {needed:.2g}, "
        f"and at most {LARGEST_CLUSTER_SHARE:.0%} of {outlook.epsilon:g} may go there; set cluster_share to insist."
    )
