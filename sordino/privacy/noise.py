"""Randomness: the ground of a run, its noise and coins, and the masks of dropout.

Two kinds are kept apart. The *ground* (partition, batches, initial model, order of turns) is a function of the seed
alone, so that methods are compared on the same ground. *Noise and coins* are functions of the seed, of the
experiment's identity and of what the draw is for; where values may differ between runs, noise also of the values it
covers, and coins of a random number of the run. A resumed run repeats exactly what it had drawn, and results depend
neither on which process draws nor on which clients are drawn together.

`Seeded` is for simulation. A deployment takes its noise from the operating system (`Secure`), because whoever knows the
seed can subtract this noise, and in whole numbers (`sordino.privacy.integers`), because numbers in floating point lie
on a grid, which can give away what they hide.

**Keys.** A key is 192 bits of BLAKE2b over an encoding of the purpose that no other purpose has, and all of them
enter the state of SFC64. That two of 2^40 keys are equal has probability 2^-113.

**Values.** The same command may compute other values: a user's step may read the clock or ask the operating system for
randomness, a network may draw unseeded numbers, a graphics card adds in any order. If such values shared a draw, the
difference of two published models would be the difference of the values that noise was to hide. A key therefore holds a
digest of the bounded values that its noise covers, and of the size and the places of that noise (`Covered`): equal
values have equal noise, others an independent draw.

Where all code is the package's own, on a processor, values are a function of seed and identity on one machine: the code
has no other source of randomness, works in one thread, adds in one order, and the identity holds data, settings,
version and sources. There equal purposes mean equal values, and a source that `repeats` leaves the digest out of its
float noise. Another processor or version of torch may round differently: the same command there has the same noise on
values that differ in their last bits, and both results must not be published (docs/limits.md). A digest of 128 bits
that misses no change costs more than the 2 % of a round of many small clients that it may cost: BLAKE2b of what a
hundred clients with 4,810 parameters send takes 28 % of their round, four sums with random weights that are sound for
every change 10 %; a single one takes 1 % and does not notice that two signs have changed.

**Nonces.** A digest alone would tell two runs with equal values from two with different ones: a contribution that
differs each time is seen to be there, because its absence gives the same bits twice. And coins are drawn before there
are values: two runs with equal coins would not be two independent samples, as they are charged. Where values may differ
from one run to the next, a `nonce` of the operating system therefore enters the keys of noise and coins. It is made for
each run and stored with it, so that a resumed run repeats its draws.

**Masks.** A network's dropout on sampled records is drawn from words that are as secret as coins, new for each
gradient: who could repeat the masks of a batch's places would see in the other records' gradients whether a record took
a place.

**Normal numbers** come in pairs, by Box and Muller: (R cos a, R sin a) with P(R > r) = exp(-r^2 / 2) and a uniform
angle. One word of 32 bits stands for the probability p = exp(-R^2 / 2), another for the angle.
- Tails: where the word of p is below 2^16, p gets 128 more bits, so that its smallest value is 2^-160. R reaches
  14.89, an event of probability 7e-49, and up to there P(R > r) is right to one part in 30,000.
- Bulk: the arithmetic is in float32. Every pair is an exact Gaussian pair moved by less than 1e-6 (R + 1/R): a
  rounding, as storing the sum in float32 is one. The variance is right to six parts in a million.
The same machine gives the same bits. Another may differ in the last of them, because logarithm, sine and cosine are
computed otherwise by other sets of instructions.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import SFC64
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor

from sordino.privacy.integers import Words

KEY_BYTES = 24
"""Bytes of a key: three words of 64 bits, with which SFC64 is seeded."""
RARE = 2**16
"""Words of p below this one get more bits."""
MORE_BITS = 128
PAIRS_OF_A_ROW = 2**14
"""Pairs of one row that are computed together: their intermediate results stay in the cache."""
NONCE_BYTES = 16
MASK_WORDS, STATE_BEGIN = 624, 24
"""Words of the state of torch's generator on processors, and the byte at which they begin."""
DIGEST_BYTES = 32
"""Length of a digest of covered values, in bytes."""
PAIRS_OF_ROWS = 2**16
"""Pairs of several rows that are computed together: more of them are not worth the room, fewer not the calls."""


@dataclass(frozen=True)
class Covered:
    """Bounded values right before noise is added, one row for each draw, and all that decides how it is added."""

    rows: Tensor
    how: Sequence[Tensor]
    """Deviations, bounds and places of the noise: each one row for all draws, or one for each."""
    about: str = ""
    """Further settings that decide how noise is added."""

    def digests(self) -> list[bytes]:
        """Digest of each row and of how it is noised; it does not depend on the other rows."""
        how = [_row_digests(part) for part in self.how]
        found = []
        for place, row in enumerate(_row_digests(self.rows)):
            parts = [row, *(part[place if len(part) > 1 else 0] for part in how), encode(self.about)]
            found.append(hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES, person=b"covered").digest())
        return found


class Source(Protocol):
    """Source of a run's randomness: its ground, its noise and its coins."""

    def key(self, *purpose: object) -> int:
        """A 63-bit number of the ground."""

    def keys(self, purpose: Sequence[object], last: Sequence[object]) -> list[int]:
        """The ground's keys of `purpose` with each of `last` behind it."""

    def generator(self, *purpose: object) -> torch.Generator:
        """The ground's generator of `purpose`."""

    def normals(self, size: int, purpose: Sequence[object], clients: Sequence[Any], covered: Covered) -> Tensor:
        """Independent standard normal numbers (clients, size), as float32.

        Args:
            size: number of entries of a row.
            purpose: names the draw, together with the client.
            clients: numbers of the clients.
            covered: values that the noise is added to. Where noise follows from a seed, another value gets other noise:
                the difference of two values under the same noise would show what changed.
        """

    def rows(self, size: int, purposes: Sequence[Sequence[object]], covered: Covered) -> Tensor:
        """Rows of normal numbers for purposes given in full: the row of (a, b, c) is that of `normals` for (a, b) and
        c."""

    def words(self, purpose: Sequence[object], clients: Sequence[Any], covered: Covered) -> list[Words]:
        """Sources of random words for each client's whole-number noise, its own for `purpose` and for its row of
        covered values."""

    def coins(self, count: int, rate: float, *purpose: object) -> Tensor:
        """`count` independent booleans that are true with probability `rate`, to within 2^-53."""

    def deal(self, count: int, batches: int, *purpose: object) -> Tensor:
        """Deal `count` records at random to `batches` of equal size, within one: the number of each record's batch. It
        follows from the run's public seed, on real machines too: no guarantee may rest on it."""

    def mask_words(self, *purpose: object) -> np.ndarray:
        """MASK_WORDS secret random words of 32 bits, where torch's global stream begins while a gradient of sampled
        records is taken (`stream_state`). Amplification by sampling needs dropout of its own, and secret: who has the
        masks of a batch's places can tell from the others' gradients whether a record took a place."""

    def take_drawn(self) -> int:
        """Return and forget a digest of all noise drawn since the last call; it does not depend on the order of draws,
        and is 0 where noise does not depend on values."""


@dataclass(frozen=True)
class Seeded:
    """Reproducible randomness of one run, for simulation."""

    seed: int
    identity: str | None = None
    """The digest of everything that decides the run. Without it there is a ground, but neither noise nor coins."""
    repeats: bool = False
    """Whether seed and identity decide all values to the bit, so that equal purposes mean equal values."""
    nonce: bytes = b""
    """Random bytes in the keys of this run's coins; empty where values follow from the seed."""
    _keys: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)
    """Keys of the noise drawn since the last call of `drawn`, where they hold digests of values."""

    def key(self, *purpose: object) -> int:
        """A 63-bit number for the ground: a function of the seed and of `purpose`, the same in every experiment."""
        return self.keys(purpose[:-1], purpose[-1:])[0]

    def keys(self, purpose: Sequence[object], last: Sequence[object]) -> list[int]:
        """The ground's keys of `purpose` with each of `last` behind it."""
        digests = _digests(b"ground", 8, (self.seed,), purpose, last)
        return [int.from_bytes(digest, "big") >> 1 for digest in digests]

    def generator(self, *purpose: object) -> torch.Generator:
        """The ground's generator of `purpose`. It heeds 32 bits of its key, too few for noise and coins."""
        return torch.Generator().manual_seed(self.key(*purpose))

    def normals(self, size: int, purpose: Sequence[object], clients: Sequence[int], covered: Covered) -> Tensor:
        """A float32 row of `size` independent standard normal numbers for each client, its own for `purpose`."""
        digests = None if self.repeats else covered.digests()
        return normal_rows(size, self._noise(b"noise", purpose, clients, digests))

    def rows(self, size: int, purposes: Sequence[Sequence[object]], covered: Covered) -> Tensor:
        """Rows of normal numbers for purposes given in full: the row of (a, b, c) is that of `normals` for (a, b) and
        c."""
        digests = [None] * len(purposes) if self.repeats else [[one] for one in covered.digests()]
        named = zip(purposes, digests, strict=True)
        return normal_rows(size, [self._noise(b"noise", one[:-1], one[-1:], digest)[0] for one, digest in named])

    def coins(self, count: int, rate: float, *purpose: object) -> Tensor:
        """`count` independent booleans that are true with probability `rate`, to within 2^-53."""
        (key,) = self._secret(b"coins", purpose[:-1], purpose[-1:])
        return toss_coins(np.asarray(stream(key).random_raw(count)), rate)

    def deal(self, count: int, batches: int, *purpose: object) -> Tensor:
        """Number of the batch of each of `count` records, of which each batch has equally many, within one."""
        return torch.randperm(count, generator=self.generator("batches", *purpose)) * batches // max(1, count)

    def mask_words(self, *purpose: object) -> np.ndarray:
        """MASK_WORDS random words of 32 bits for the masks of one gradient."""
        (key,) = self._secret(b"masks", purpose[:-1], purpose[-1:])
        return np.asarray(stream(key).random_raw(MASK_WORDS)) >> np.uint64(32)

    def words(self, purpose: Sequence[object], clients: Sequence[Any], covered: Covered) -> list[Words]:
        """Each client's own stream for `purpose`, from its beginning. Its key always holds the values' digest: whole
        numbers take longer to draw than values to digest, and a deployment's trial draws the same."""
        keys = self._noise(b"integers", purpose, clients, covered.digests())
        return [stream(key).random_raw for key in keys]

    def take_drawn(self) -> int:
        """The exclusive or of all keys that hold digests of values."""
        found = functools.reduce(operator.xor, (int.from_bytes(key, "big") for key in self._keys), 0)
        self._keys.clear()
        return found

    def _noise(
        self, kind: bytes, purpose: Sequence[object], last: Sequence[object], digests: Sequence[bytes] | None
    ) -> list[bytes]:
        """Keys of noise of `purpose` with each of `last` behind it, and with the digest of covered values, where
        given."""
        keys = self._secret(kind, purpose, last, digests)
        if digests is not None:
            self._keys.extend(keys)
        return keys

    def _secret(
        self,
        kind: bytes,
        purpose: Sequence[object],
        last: Sequence[object],
        digests: Sequence[bytes] | None = None,
    ) -> list[bytes]:
        """Keys of noise or coins of `purpose` with each of `last` behind it, and with its digest, where given."""
        if self.identity is None:
            raise ValueError(
                "Noise and coins need the experiment's identity: make the source as Seeded(seed, identity)."
            )
        run = (self.seed, self.identity, *([self.nonce.hex()] if self.nonce else []))
        return _digests(kind, KEY_BYTES, run, purpose, last, digests)


@dataclass(frozen=True)
class Secure:
    """Noise and coins from the operating system, for a deployment: nobody can repeat a draw, and nothing that was drawn
    is kept for later, so that no two processes ever share it."""

    ground: Seeded
    """Source of what is decided without noise: the order of batches, the choice of validation records."""

    def key(self, *purpose: object) -> int:
        return self.ground.key(*purpose)

    def keys(self, purpose: Sequence[object], last: Sequence[object]) -> list[int]:
        return self.ground.keys(purpose, last)

    def generator(self, *purpose: object) -> torch.Generator:
        return self.ground.generator(*purpose)

    def normals(self, size: int, purpose: Sequence[object], clients: Sequence[Any], covered: Covered) -> Tensor:
        raise ValueError("A deployment's noise is in whole numbers: make the gate with the mechanism `integers`.")

    def rows(self, size: int, purposes: Sequence[Sequence[object]], covered: Covered) -> Tensor:
        return self.normals(size, (), purposes, covered)

    def words(self, purpose: Sequence[object], clients: Sequence[Any], covered: Covered) -> list[Words]:
        """The operating system's words; no purpose and no value ever gets another's."""
        return [system_words for _ in clients]

    def take_drawn(self) -> int:
        return 0

    def coins(self, count: int, rate: float, *purpose: object) -> Tensor:
        return toss_coins(system_words(count), rate)

    def deal(self, count: int, batches: int, *purpose: object) -> Tensor:
        return self.ground.deal(count, batches, *purpose)

    def mask_words(self, *purpose: object) -> np.ndarray:
        return system_words(MASK_WORDS) >> np.uint64(32)


def new_nonce() -> bytes:
    """A nonce for one run, from the operating system."""
    return os.urandom(NONCE_BYTES)


def system_words(count: int) -> np.ndarray:
    """`count` random words of 64 bits from the operating system."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def stream_state(words: np.ndarray) -> Tensor:
    """State of torch's generator on processors (MT19937) that begins with these MASK_WORDS words of 32 bits.

    `manual_seed` heeds 32 bits, which can all be tried. Behind the seed (8 bytes) and two numbers (16 bytes) its state
    holds one word in each 8 bytes; a generator that was just seeded has used none of them.
    """
    state = torch.Generator().manual_seed(0).get_state()
    held = state.numpy()[STATE_BEGIN : STATE_BEGIN + 8 * MASK_WORDS]
    held[:] = np.ascontiguousarray(words, dtype="<u8").view(np.uint8)
    return state


def toss_coins(words: np.ndarray, rate: float) -> Tensor:
    """Toss a coin for each word, from its 53 highest bits: true where they, as a number below 1, are below the
    `rate`."""
    edge = math.ceil(rate * 2.0**53) << 11  # of the words that have those bits
    return torch.from_numpy(words < np.uint64(edge) if edge < 2**64 else np.ones(len(words), dtype=bool))


def _digests(
    kind: bytes,
    size: int,
    run: tuple[object, ...],
    purpose: Iterable[object],
    last: Sequence[object],
    covered: Sequence[bytes] | None = None,
) -> list[bytes]:
    """Digests of `size` bytes over a run's name, `purpose`, each of `last` and, where given, the digest of covered
    values; `kind` sets uses apart."""
    begun = _begin_digest(kind, size, run).copy()
    begun.update(b"".join(map(encode, purpose)))
    found = []
    for part, digest in zip(last, repeat(b"") if covered is None else covered, strict=covered is not None):
        ended = begun.copy()
        ended.update(encode(part) + digest)
        found.append(ended.digest())
    return found


def _row_digests(rows: Tensor) -> list[bytes]:
    """Digest of each row's bytes, type and shape: zeros with different signs, and different NaNs, are different
    values."""
    whole = rows.detach().cpu().contiguous()
    kind = f"{whole.dtype} {tuple(whole.shape[1:])}"
    begun = hashlib.blake2b(encode(kind), digest_size=DIGEST_BYTES, person=b"row")
    found = []
    for row in whole.flatten(1).view(torch.uint8).numpy() if whole.numel() else [b""] * len(whole):
        ended = begun.copy()
        ended.update(row)
        found.append(ended.digest())
    return found


@functools.lru_cache(maxsize=64)
def _begin_digest(kind: bytes, size: int, run: tuple[object, ...]) -> Any:
    """The part of a digest that all draws of a run share: to be copied, not to be added to."""
    return hashlib.blake2b(b"".join(map(encode, run)), digest_size=size, person=kind)


def encode(part: object) -> bytes:
    """Encode a text or whole number as bytes that say where they end, so that no two purposes run into the same
    bytes."""
    if isinstance(part, str):
        text = part.encode()
        return b"%d:%s" % (len(text), text)
    try:
        return b"i%d;" % operator.index(part)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"A draw is named by texts and whole numbers, not by {part!r}.") from None


class _Key(ISeedSequence):
    """A key as numpy's generators want to be seeded; they mix it into their state."""

    def __init__(self, key: bytes) -> None:
        self._words = np.frombuffer(key, dtype="<u8")

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """All bits of the key, which must be as many as are asked for."""
        if n_words != len(self._words) or np.dtype(dtype) != np.uint64:
            raise ValueError(f"A generator asked for {n_words} words of {np.dtype(dtype)}; keys have three of 64 bits.")
        return self._words


def stream(key: bytes) -> SFC64:
    """The random words of 64 bits that belong to `key`."""
    return SFC64(_Key(key))  # type: ignore[arg-type]  # numpy takes any ISeedSequence, its type hints do not


def normal_rows(size: int, keys: Sequence[bytes]) -> Tensor:
    """A float32 row of `size` normal numbers from each key."""
    rows = torch.empty(len(keys), size)
    together = max(1, 2 * PAIRS_OF_ROWS // max(1, size))
    for start in range(0, len(keys), together):
        chosen = slice(start, start + together)
        fill_normal(rows.numpy()[chosen], keys[chosen])
    return rows


def fill_normal(out: np.ndarray, keys: Sequence[bytes]) -> None:
    """Fill the rows of `out` with normal numbers, each row from its key: all pairs' cosines, then their sines."""
    streams, size = [stream(key) for key in keys], out.shape[1]
    pairs = (size + 1) // 2
    words = np.empty((len(keys), min(PAIRS_OF_A_ROW, pairs)), dtype=np.uint64)
    for start in range(0, pairs, PAIRS_OF_A_ROW):
        stop = min(start + PAIRS_OF_A_ROW, pairs)
        for row, words_of_row in zip(words, streams, strict=True):
            row[: stop - start] = words_of_row.random_raw(stop - start)
        bits = words[:, : stop - start].view(np.uint32)
        cosines, sines = box_muller(bits, keys, start)
        out[:, start:stop] = cosines
        kept = min(pairs + stop, size) - (pairs + start)  # the last sine of an odd row is left out
        out[:, pairs + start : pairs + start + kept] = sines[:, :kept]


def box_muller(bits: np.ndarray, keys: Sequence[bytes], start: int) -> tuple[np.ndarray, np.ndarray]:
    """R cos a and R sin a of the pairs from place `start` on: their words of p stand before those of their angles.

    Args:
        bits: random words of 32 bits, (rows, 2 * pairs).
        keys: key of each row.
        start: place of the first pair in its row.

    A pair is a function of its own 64 bits and, where they are rare, of its row's key and its place.
    """
    pairs = bits.shape[1] // 2
    angle = bits[:, pairs:].view(np.int32).astype(np.float32)
    angle *= np.float32(math.pi / 2**31)
    radius = radii(bits[:, :pairs], keys, start)
    cosines, sines = np.cos(angle), np.sin(angle)
    cosines *= radius
    sines *= radius
    return cosines, sines


def radii(bits: np.ndarray, keys: Sequence[bytes], start: int) -> np.ndarray:
    """R = sqrt(-2 ln p) where each word of `bits` stands for p = word / 2^32; `start` is the first one's place."""
    rare = np.flatnonzero(bits < RARE) if bits.min(initial=RARE) < RARE else np.empty(0, dtype=np.int64)
    radius = bits.astype(np.float32)
    radius *= np.float32(2**-32)
    flat = radius.reshape(-1)
    flat[rare] = 1.0  # the logarithm of zero is none
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    for at in rare.tolist():
        row, place = divmod(at, bits.shape[1])
        flat[at] = rare_radius(int(bits[row, place]), more_bits(keys[row], start + place))
    return radius


def more_bits(key: bytes, place: int) -> int:
    """The further random bits of the pair at `place` of the row that belongs to `key`."""
    digest = hashlib.blake2b(place.to_bytes(8, "little"), digest_size=MORE_BITS // 8, key=key, person=b"tail")
    return int.from_bytes(digest.digest(), "little")


def rare_radius(word: int, more: int) -> float:
    """R = sqrt(-2 ln p) where p = (word + (more + 1) / 2^128) / 2^32, computed in float64."""
    return math.sqrt(-2 * math.log(((word << MORE_BITS) + more + 1) / (1 << (32 + MORE_BITS))))
