"""Projections of scattering coefficients to a few numbers, made of public data or of random numbers.

A projection by principal components subtracts the mean of the public records' coefficients and takes their widest
directions, each divided by the square root of its variance, so that all count alike. It is kept in half precision.
That of Fashion-MNIST comes with Sordino, and this made it:

    python -m sordino.features.projection fashion-mnist sordino/features/fashion_mnist.safetensors
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor, nn

from sordino.data.dataset import Dataset
from sordino.errors import UserError
from sordino.features.scattering import Scattering, StandardisedOrders
from sordino.util.files import write_whole

SHIPPED = Path(__file__).with_name("fashion_mnist.safetensors")
"""Projection of Fashion-MNIST, for grey images of 28x28."""
SHIPPED_DIGEST = "ba3d6c61fdfb790cb245aec89065307fc8acd6f86046136d1d57b9acc3986538"
SHIPPED_SHAPE = (1, 28, 28)
SHIPPED_DATA = "fashion-mnist"
WIDEST = 256
"""Number of directions that a file of principal components holds."""
PUBLIC_RECORDS = 10_000
"""Number of public records, at most, of which components are made."""
LEAST_VARIANCE = 1e-6
"""Variance, as a share of the largest, below which directions count as noise of rounding."""
ABOUT = "sordino"
"""Key of the description in a file's metadata."""


@dataclass(frozen=True)
class Projection:
    """A projection (x - mean) @ components."""

    mean: Tensor
    """(coefficients,)"""
    components: Tensor
    """(coefficients, width)"""
    origin: str
    """Data that it was made of."""
    made_of: frozenset[int] = frozenset()
    """Hashes of the records that it was made of (`record_hashes`)."""

    def narrow(self, width: int) -> Projection:
        """Return the projection to its first `width` numbers."""
        if width > self.components.shape[1]:
            raise UserError(
                f"features.width is {width}, and the projection of {self.origin} has {self.components.shape[1]} "
                "directions: ask for at most so many."
            )
        return Projection(self.mean, self.components[:, :width].contiguous(), self.origin, self.made_of)


class Projected(nn.Module):
    """Coefficients centred, projected and scaled to length 1."""

    mean: Tensor
    components: Tensor

    def __init__(self, mean: Tensor, components: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.float())
        self.register_buffer("components", components.float())

    def forward(self, x: Tensor) -> Tensor:
        return of_unit_length((x - self.mean) @ self.components)


class UnitLength(nn.Module):
    """Coefficients scaled to length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return of_unit_length(x)


def of_unit_length(x: Tensor) -> Tensor:
    """Rows scaled to length 1; a row of zeros stays."""
    return x / (x * x).sum(dim=1, keepdim=True).sqrt().clamp(min=1e-12)


def principal(coefficients: np.ndarray, width: int) -> tuple[Tensor, Tensor]:
    """Mean and scaled principal components of public coefficients, rounded to half precision.

    Args:
        coefficients: (records, coefficients) in float64.
        width: number of components, at most.
    """
    mean = coefficients.mean(axis=0)
    centred = coefficients - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    order = np.argsort(variances)[::-1]
    variances, directions = variances[order], directions[:, order]
    many = min(width, int((variances > LEAST_VARIANCE * variances[0]).sum()))
    variances, directions = variances[:many], directions[:, :many]
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(many)])
    scaled = directions * signs / np.sqrt(variances)
    centre, matrix = (torch.from_numpy(np.ascontiguousarray(one)).half().float() for one in (mean, scaled))
    return centre, matrix


def random_directions(coefficients: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """A projection by independent normal numbers of variance 1 / width; its mean is zero."""
    drawn = np.random.default_rng([seed, coefficients, width]).standard_normal((coefficients, width))
    return torch.zeros(coefficients), torch.from_numpy(drawn / np.sqrt(width)).half().float()


def chosen_records(dataset: Dataset) -> Tensor:
    """The public records that components are made of: all, or as many as are enough, spread evenly."""
    many = len(dataset.x)
    if many <= PUBLIC_RECORDS:
        return dataset.x
    return dataset.x[torch.from_numpy(np.linspace(0, many - 1, PUBLIC_RECORDS).astype(np.int64))]


def record_hashes(x: Tensor) -> list[int]:
    """One number of 63 bits for each record, by which equal records are found."""
    rows = x.contiguous().numpy()
    return [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "big") >> 1 for row in rows]


def read_projection(content: bytes, path: Path, trained_on: str | None) -> Projection:
    """Read a projection from the content of a safetensors file, named `path` in errors."""
    try:
        tensors = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])  # the format's first part
        about = json.loads(header.get("__metadata__", {}).get(ABOUT, "{}"))
        mean, components = tensors["mean"].float(), tensors["components"].float()
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} holds no projection of scattering coefficients: `python -m sordino.features.projection DATA FILE` "
            "writes one."
        ) from error
    origin = trained_on or about.get("public")
    if not origin:
        raise UserError(f"Say which public data the projection {path} was made of: features.trained_on.")
    made_of = frozenset(tensors["records"].tolist()) if "records" in tensors else frozenset()
    return Projection(mean, components, str(origin), made_of)


def shipped() -> Projection:
    """Return the projection that comes with Sordino, its bytes checked."""
    content = SHIPPED.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHIPPED_DIGEST:
        raise UserError(f"The projection {SHIPPED} is damaged: install Sordino anew.")
    return read_projection(content, SHIPPED, None)


def write_projection(data: str, path: Path, scales: int, angles: int, pool: int, data_dir: Path | None) -> str:
    """Write the projection of a public data set, and return the SHA-256 of the file."""
    from sordino.data import load
    from sordino.features.extractor import in_parts

    dataset = load(data, data_dir)
    coefficients = Scattering(tuple(dataset.x.shape[1:]), scales, angles, pool)
    frozen = nn.Sequential(coefficients, StandardisedOrders(coefficients.coefficients)).eval()
    records = chosen_records(dataset)
    rows = np.concatenate(list(in_parts(frozen, records)))
    mean, components = principal(rows.astype(np.float64), WIDEST)
    about = {"public": data, "scales": scales, "angles": angles, "pool": pool, "shape": list(dataset.x.shape[1:])}
    tensors = {"mean": mean.half(), "components": components.half(), "records": torch.tensor(record_hashes(records))}
    content = save(tensors, metadata={ABOUT: json.dumps(about)})
    write_whole(path, content)
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    """Write a projection; the arguments are those of the module's help."""
    parser = argparse.ArgumentParser(description="Make a projection of scattering coefficients from public images.")
    parser.add_argument("data", help="a data set that is public: a known one, or a folder")
    parser.add_argument("file", type=Path, help="file to write (safetensors)")
    for name, value in (("scales", 2), ("angles", 8), ("pool", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--data-dir", type=Path, default=None)
    given = parser.parse_args()
    print(write_projection(given.data, given.file, given.scales, given.angles, given.pool, given.data_dir))


if __name__ == "__main__":
    main()
