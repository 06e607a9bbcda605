"""Scattering of images: averages of wavelet moduli, which no data have trained.

Mallat, "Group invariant scattering", 2012; Bruna, Mallat, "Invariant scattering convolution networks", 2013; with
private heads: Tramer, Boneh, "Differentially private learning needs better features (or much more data)", ICLR 2021.
Filters and borders are those of kymatio (Andreux et al., JMLR 2020), of which this gives the coefficients:

    S0 = x * phi,    S1 = |x * psi_1| * phi,    S2 = ||x * psi_1| * psi_2| * phi    (scale of psi_2 above that of psi_1)

Wavelets are applied as strided convolutions, so that the transform can be exported like any other network. The low-pass
phi, its subsampling and the pooling of the maps are linear and separable: one matrix for rows and one for columns.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.errors import UserError

SUPPORT = 3.0
"""Half the width of a truncated wavelet, in standard deviations of its envelope."""
COLOURS = (1, 3, 4)
"""Numbers of channels that images have."""
EPSILON = 1e-6
"""Smallest standard deviation by which an order's coefficients are divided: an empty image has zeros everywhere."""


class Scattering(nn.Module):
    """Scattering coefficients of orders 0, 1 and 2 of images: (records, channels, height, width) to (records, channels,
    coefficients, rows, columns); orders follow each other."""

    def __init__(self, shape: tuple[int, ...], scales: int = 2, angles: int = 8, pool: int | None = None) -> None:
        """Build the filters.

        Args:
            shape: (channels, height, width) of one image.
            scales: J: maps are averaged over 2^J pixels.
            angles: L: number of orientations of the wavelets.
            pool: side to which maps are averaged, where they are larger; None to keep them as they are.
        """
        super().__init__()
        check_image(shape, scales)
        self.scales, self.angles = scales, angles
        self.channels, *sides = shape
        self.sides = tuple(sides)
        self.padded = tuple(padded_side(side, scales) for side in sides)
        # Reflected around the image, half on each side; the wavelets then see a periodic image, as kymatio's do.
        self.before = tuple((whole - side) // 2 for whole, side in zip(self.padded, sides, strict=True))
        self.after = tuple(
            whole - side - first for whole, side, first in zip(self.padded, sides, self.before, strict=True)
        )
        for level in range(scales):
            rows, columns = (averaging(whole, scales, level, pool) for whole in self.padded)
            self.register_buffer(f"rows{level}", torch.from_numpy(rows).float(), persistent=False)
            self.register_buffer(f"columns{level}", torch.from_numpy(columns).float(), persistent=False)
            for scale in range(level, scales):
                if level == 0 or scale > level:
                    bank = wavelets(self.padded, scale, level, angles, scales)
                    self.register_buffer(f"psi{scale}_{level}", torch.from_numpy(bank).float(), persistent=False)
            if level == 0:
                self.rows, self.columns = len(rows), len(columns)

    @property
    def coefficients(self) -> tuple[int, int, int]:
        """Number of maps of each order."""
        return 1, self.scales * self.angles, self.angles**2 * self.scales * (self.scales - 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        records = x.shape[0]
        image = self._pad(x.reshape(-1, 1, *x.shape[2:]))
        zeroth, first, second = [self._average(image, 0)], [], []
        for scale in range(self.scales):
            moduli = self._moduli(image, scale, 0)
            level = min(scale, self.scales - 1)
            first.append(self._average(moduli, level))
            alone = moduli.reshape(-1, 1, *moduli.shape[2:])
            # One row of maps for each angle of the first wavelet, with all scales of the second.
            above = range(scale + 1, self.scales)
            found = [self._average(self._moduli(alone, larger, scale), larger) for larger in above]
            if found:
                maps = torch.cat(found, dim=1)
                second.append(maps.reshape(image.shape[0], -1, *maps.shape[2:]))
        whole = torch.cat([*zeroth, *first, *second], dim=1)
        return whole.reshape(records, self.channels, -1, self.rows, self.columns)

    def _pad(self, x: Tensor) -> Tensor:
        (top, left), (bottom, right) = self.before, self.after
        return functional.pad(x, (left, right, top, bottom), mode="reflect")

    def _moduli(self, x: Tensor, scale: int, level: int) -> Tensor:
        """Moduli of the wavelet coefficients at `scale` of maps at resolution 2^-level: (maps, angles, rows, columns)
        at resolution 2^-scale."""
        bank: Tensor = getattr(self, f"psi{scale}_{level}")
        stride = 2 ** (scale - level)
        parts = functional.conv2d(_wrap(x, bank.shape[2:]), bank, stride=stride)
        real, imaginary = parts[:, : self.angles], parts[:, self.angles :]
        return (real * real + imaginary * imaginary).sqrt()

    def _average(self, maps: Tensor, level: int) -> Tensor:
        rows: Tensor = getattr(self, f"rows{level}")
        columns: Tensor = getattr(self, f"columns{level}")
        return rows @ maps @ columns.T


class StandardisedOrders(nn.Module):
    """Coefficients of each record with mean 0 and standard deviation 1 in each order, as one vector."""

    def __init__(self, coefficients: tuple[int, int, int]) -> None:
        super().__init__()
        self.coefficients = [one for one in coefficients if one]

    def forward(self, x: Tensor) -> Tensor:
        parts = [part.flatten(1) for part in x.split(self.coefficients, dim=2)]
        return torch.cat([_standardised(part) for part in parts], dim=1)


def _standardised(part: Tensor) -> Tensor:
    centred = part - part.mean(dim=1, keepdim=True)
    deviation = (centred * centred).mean(dim=1, keepdim=True).sqrt()
    return centred / (deviation + EPSILON)


def check_image(shape: tuple[int, ...], scales: int) -> None:
    """Refuse records that are no images, or images too small for the scales."""
    if len(shape) != 3:
        grey = f" Grey images have one channel: shape (1, {shape[0]}, {shape[1]})." if len(shape) == 2 else ""
        raise UserError(
            f"Scattering is for images of shape (channels, height, width), and these records have shape {shape}: leave "
            f"`features` out, or name a backbone of your own.{grey}"
        )
    least = 2**scales
    if shape[2] in COLOURS and shape[2] < least <= min(shape[:2]):
        raise UserError(
            f"Scattering is for images of shape (channels, height, width), and these records of shape {shape} seem to "
            f"have their channels last: put them first, as ({shape[2]}, {shape[0]}, {shape[1]})."
        )
    if min(shape[1:]) < least:
        raise UserError(
            f"Scattering with scales = {scales} needs images of at least {least}x{least}, not {shape[1]}x{shape[2]}: "
            "take fewer scales, as in scattering:scales=1."
        )


def padded_side(side: int, scales: int) -> int:
    """Number of pixels of a side with its reflected border: a multiple of 2^scales."""
    return ((side + 2**scales) // 2**scales + 1) * 2**scales


def _wrap(x: Tensor, kernel: torch.Size) -> Tensor:
    """Maps continued periodically so that a convolution with a centred kernel keeps their size."""
    for axis, taps in ((2, kernel[0]), (3, kernel[1])):
        first, last = taps // 2, (taps - 1) // 2
        size = x.shape[axis]
        pieces = [x.narrow(axis, size - first, first)] if first else []
        pieces += [x, *([x.narrow(axis, 0, last)] if last else [])]
        x = torch.cat(pieces, dim=axis)
    return x


def gabor(sides: tuple[int, ...], sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """A periodic Gabor filter: a Gaussian envelope of standard deviations `sigma` and sigma / slant, times a wave."""
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    curve = turn @ np.diag([1, slant**2]) @ turn.T / (2 * sigma**2)
    total = np.zeros(sides, dtype=np.complex128)
    for periods in np.ndindex(5, 5):
        first, second = (period - 2 for period in periods)
        y, x = np.mgrid[first * sides[0] : (first + 1) * sides[0], second * sides[1] : (second + 1) * sides[1]]
        envelope = curve[0, 0] * y * y + (curve[0, 1] + curve[1, 0]) * y * x + curve[1, 1] * x * x
        total += np.exp(-envelope + 1j * frequency * (y * math.cos(angle) + x * math.sin(angle)))
    return total / (2 * math.pi * sigma**2 / slant)


def morlet(sides: tuple[int, ...], sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """A Gabor filter less so much of its envelope that its sum is zero."""
    wave, envelope = gabor(sides, sigma, angle, frequency, slant), gabor(sides, sigma, angle, 0.0, slant)
    return wave - wave.sum() / envelope.sum() * envelope


def crop_spectrum(spectrum: np.ndarray, level: int) -> np.ndarray:
    """The spectrum of a filter for maps at resolution 2^-level: its low frequencies."""
    for axis in range(spectrum.ndim):
        size = spectrum.shape[axis]
        keep = np.ones(size)
        start, length = int(size * 2.0 ** (-level - 1)), int(size * (1 - 2.0**-level))
        keep[start : start + length] = 0
        moved = np.moveaxis(spectrum, axis, -1) * keep
        folded = moved.reshape(*moved.shape[:-1], 2**level, size // 2**level).sum(axis=-2)
        spectrum = np.moveaxis(folded, -1, axis)
    return spectrum


def wavelets(sides: tuple[int, ...], scale: int, level: int, angles: int, scales: int) -> np.ndarray:
    """Kernels of all wavelets of a scale for maps at resolution 2^-level, (2 angles, 1, taps, taps): their real parts,
    then their imaginary parts, as a correlation takes them."""
    slant, found = 4.0 / angles, []
    for number in range(angles):
        angle = (int(angles - angles / 2 - 1) - number) * math.pi / angles
        wave = morlet(sides, 0.8 * 2**scale, angle, 0.75 * math.pi / 2**scale, slant)
        found.append(np.fft.ifft2(crop_spectrum(np.fft.fft2(wave).real, level)))
    bank = np.stack(found)
    reach = math.ceil(SUPPORT * 0.8 * 2 ** (scale - level) * max(1.0, 1 / slant))
    for axis in (1, 2):
        size = bank.shape[axis]
        if 2 * reach + 1 >= size:
            places = np.arange(size // 2, size // 2 - size, -1)
        else:
            places = np.arange(reach, -reach - 1, -1)
        bank = bank.take(places % size, axis=axis)
    whole = np.concatenate([bank.real, bank.imag])[:, None]
    return np.ascontiguousarray(whole)


def averaging(side: int, scales: int, level: int, pool: int | None) -> np.ndarray:
    """Matrix from a side of a map at resolution 2^-level to the averaged side: low-pass, subsampling, the border taken
    off, and averages over windows to `pool` places."""
    line = np.arange(side)
    sigma = 0.8 * 2 ** (scales - 1)
    low = sum(np.exp(-((line + period * side) ** 2) / (2 * sigma**2)) for period in range(-2, 3))
    low = low / (math.sqrt(2 * math.pi) * sigma)
    small = np.fft.ifft(crop_spectrum(np.fft.fft(low).real, level)).real
    size = len(small)
    circulant = small[(np.arange(size)[:, None] - np.arange(size)) % size]
    kept = circulant[:: 2 ** (scales - level)][1:-1]
    if pool is None or len(kept) <= pool:
        return kept
    ends = [(math.floor(place * len(kept) / pool), math.ceil((place + 1) * len(kept) / pool)) for place in range(pool)]
    return np.stack([kept[first:last].mean(axis=0) for first, last in ends])
