"""A sum of which nobody sees the parts: pairwise masks that cancel, and a mask of each site's own.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, in two trips and with
one answer of each site to one list of survivors. A site i of the cohort U1 sends

    y_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)    modulo 2^32 or 2^64,

and shares b_i among all, so that any t = U_min of them give it back. The server then names the survivors U2; a site
gives its shares of b_k for k in U2 and its seeds s_ki for k in U1 outside of U2, and never answers to another U2.

Whatever a lying server shows to whom, a sum that it can open holds at least h = 2 U_min - n - colluders honest shares
(`honest_shares`): for b_i to open, t - colluders honest sites with i's ask had i in their only U2; at most n - U_min of
them are missing from i's own; with each of the others i has a mask that neither reveals, so they open only together.

s_ij = HKDF-SHA256 of X25519; shares travel under AES-256-GCM with a key for each message; PRG is AES-256-CTR from zero,
one stream for a key. All keys are bound to the hash of the ask. What is not hidden: who takes part.

| in the protocol | here |
|---|---|
| U1, U2 | `Cohort.parties`, `survivors` |
| U_min, t | `Cohort.minimum` |
| b_i, s_ij | a secret of `sharing`, `Masker._seed` |
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sordino.deploy.protocol import secret_sharing
from sordino.errors import UserError

PROTOCOL = b"sordino secure sum 1"
KEY_BYTES = 32
CHUNK = 2**16
"""Bytes of a mask that are made together: they stay in the cache."""
NONCE = bytes(12)
"""Every key encrypts one message only."""
UNSIGNED: dict[int, np.dtype] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
SIGNED: dict[int, np.dtype] = {32: np.dtype("<i4"), 64: np.dtype("<i8")}


class MaskingError(UserError):
    """A message of the secure sum that is not what the protocol asks for."""


# ---- how many must take part


def honest_shares(sites: int, minimum: int, colluders: int, active_server: bool = True) -> int:
    """h: how many honest sites' noise is in every sum that the server can open.

    `sites` is how many are asked, `minimum` how many must answer, `colluders` how many sites tell the server all they
    know. A server that is not `active` follows the protocol and is merely curious.
    """
    return 2 * minimum - sites - colluders if active_server else minimum - colluders


def check_cohort(sites: int, minimum: int, colluders: int, active_server: bool = True) -> None:
    """Refuse numbers with which a sum could show a single site's message: h must be two at least."""
    if not 1 <= minimum <= sites or colluders < 0:
        raise MaskingError(
            f"Of {sites} sites at least {minimum} cannot answer: minimum_cohort lies between 1 and that."
        )
    if honest_shares(sites, minimum, colluders, active_server) >= 2:
        return
    least = -(-(sites + colluders + 2) // 2) if active_server else colluders + 2
    advice = f"set minimum_cohort to {least}" if least <= sites else f"have {colluders + 2} sites or more"
    raise MaskingError(
        f"With {sites} sites of which {minimum} must answer and {colluders} may collude, a sum could show a single "
        f"site's message: {advice}."
    )


# ---- keys


def new_key() -> bytes:
    """A private X25519 key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public half of a key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Party:
    """A site of a cohort."""

    identity: bytes
    """Its lasting public key."""
    key: bytes
    """Its public X25519 key of this run."""


@dataclass(frozen=True)
class Cohort:
    """U1: the sites that are asked, in the order of their places."""

    question: bytes
    """The hash of everything that the ask says: every key is bound to it."""
    parties: tuple[Party, ...]
    minimum: int
    """U_min: how many must answer, and how many shares open a mask."""

    def __post_init__(self) -> None:
        for what, values in (("site", [one.identity for one in self.parties]), ("key", [p.key for p in self.parties])):
            if len(set(values)) < len(values):
                raise MaskingError(f"A cohort names a {what} twice.")
        if not 1 <= self.minimum <= len(self.parties):
            raise MaskingError(f"A cohort of {len(self.parties)} sites cannot have {self.minimum} answers.")

    def place(self, identity: bytes) -> int:
        """Where a site stands in the order."""
        for place, party in enumerate(self.parties):
            if party.identity == identity:
                return place
        raise MaskingError("A site is named that is not in the cohort.")

    def check_survivors(self, survivors: Sequence[bytes]) -> None:
        """Refuse a U2 that is not within U1, names a site twice, or is too small."""
        if len(set(survivors)) < len(survivors):
            raise MaskingError("The survivors of a sum name a site twice.")
        for identity in survivors:
            self.place(identity)
        if len(survivors) < self.minimum:
            raise MaskingError(f"A sum has {len(survivors)} survivors, but {self.minimum} are needed to open it.")

    def dropped(self, survivors: Sequence[bytes]) -> list[bytes]:
        """Who was asked and did not survive."""
        return [party.identity for party in self.parties if party.identity not in survivors]


# ---- a site


@dataclass(frozen=True)
class MaskedVector:
    """What a site sends in the first trip."""

    vector: np.ndarray
    """Its whole numbers under all of its masks."""
    shares: dict[bytes, bytes]
    """For each site of the cohort, itself included, its share of this site's own mask, encrypted to it."""


@dataclass(frozen=True)
class Share:
    """What one site has entrusted another with."""

    value: int
    note: bytes
    """What the sender wanted the receiver to know, unseen by the server."""


@dataclass(frozen=True)
class Opening:
    """What a site gives in the second trip."""

    shares: dict[bytes, bytes]
    """Its shares of the survivors' own masks."""
    seeds: dict[bytes, bytes]
    """The seeds of the masks that it has in common with those who dropped out."""


class Masker:
    """One site's part in one ask."""

    def __init__(self, cohort: Cohort, identity: bytes, private: bytes) -> None:
        """`private` is its X25519 key of this run."""
        self.cohort, self.identity = cohort, identity
        self.place = cohort.place(identity)
        if cohort.parties[self.place].key != public_key(private):
            raise MaskingError("A cohort names another key for this site than its own.")
        self._private = X25519PrivateKey.from_private_bytes(private)
        self._agreed: dict[bytes, bytes] = {}

    def mask(self, values: np.ndarray, bits: int, notes: Mapping[bytes, bytes] | None = None) -> MaskedVector:
        """Whole numbers under fresh masks: to be called once for an ask, whatever becomes of it.

        `notes` are for the receivers of the shares, by identity.
        """
        notes = notes or {}
        vector = values.astype(SIGNED[64]).astype(UNSIGNED[bits])
        own = secret_sharing.new_secret()
        add_mask(vector, own.to_bytes(KEY_BYTES, "big"), +1)
        for party in self.cohort.parties:
            if party.identity != self.identity:
                add_mask(vector, self._seed(party.identity), self._sign(party.identity))
        places = range(1, len(self.cohort.parties) + 1)
        pieces = secret_sharing.split(own, self.cohort.minimum, places)
        sealed = {
            party.identity: self._encrypt_share(party.identity, piece, notes.get(party.identity, b""))
            for party, piece in zip(self.cohort.parties, pieces, strict=True)
        }
        return MaskedVector(vector, sealed)

    def decrypt_share(self, sender: bytes, sealed: bytes) -> Share:
        """What `sender` has entrusted this site with; altered bytes are refused."""
        salt, content = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
        key = self._derive_key(sender, b"share", sender, self.identity, salt)
        try:
            plain = AESGCM(key).decrypt(NONCE, content, None)
        except InvalidTag as error:
            raise MaskingError("A share was altered on its way, or belongs to another ask.") from error
        if len(plain) < secret_sharing.SHARE_BYTES:
            raise MaskingError("A share is too short.")
        return Share(int.from_bytes(plain[: secret_sharing.SHARE_BYTES], "big"), plain[secret_sharing.SHARE_BYTES :])

    def make_opening(self, survivors: Sequence[bytes], sealed: Mapping[bytes, bytes]) -> Opening:
        """What opens the survivors' sum; `sealed` maps each of them to its share for this site.

        The caller sees to it that this is asked once for an ask: with two lists of survivors single messages open.
        """
        self.cohort.check_survivors(survivors)
        if self.identity not in survivors:
            raise MaskingError("The survivors of a sum do not name this site.")
        missing = [one for one in survivors if one not in sealed]
        if missing:
            raise MaskingError("A survivor's share is missing.")
        shares = {one: self.decrypt_share(one, sealed[one]).value for one in survivors}
        return Opening(
            {one: value.to_bytes(secret_sharing.SHARE_BYTES, "big") for one, value in shares.items()},
            {one: self._seed(one) for one in self.cohort.dropped(survivors)},
        )

    def _sign(self, other: bytes) -> int:
        return 1 if self.cohort.place(other) > self.place else -1

    def _seed(self, other: bytes) -> bytes:
        """s_ij: of the mask in common with another site."""
        first, second = sorted((self.identity, other), key=self.cohort.place)
        return self._derive_key(other, b"mask", first, second)

    def _encrypt_share(self, receiver: bytes, share: int, note: bytes) -> bytes:
        salt = os.urandom(KEY_BYTES)  # another key for each message, even from a site that was restored from a backup
        key = self._derive_key(receiver, b"share", self.identity, receiver, salt)
        plain = share.to_bytes(secret_sharing.SHARE_BYTES, "big") + note
        return salt + AESGCM(key).encrypt(NONCE, plain, None)

    def _derive_key(self, other: bytes, *purpose: bytes) -> bytes:
        """A key that only this site and another can derive, for one purpose of this ask."""
        info = b"".join(len(part).to_bytes(4, "big") + part for part in (PROTOCOL, self.cohort.question, *purpose))
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self._shared_secret(other))

    def _shared_secret(self, other: bytes) -> bytes:
        """What X25519 gives for this site and another; a key of small order, which gives zero, is refused."""
        if other not in self._agreed:
            key = self.cohort.parties[self.cohort.place(other)].key
            try:
                self._agreed[other] = self._private.exchange(X25519PublicKey.from_public_bytes(key))
            except ValueError as error:
                raise MaskingError("A site's key is none with which a secret can be agreed on.") from error
        return self._agreed[other]


def add_mask(vector: np.ndarray, seed: bytes, sign: int) -> None:
    """Add PRG(seed) to a vector in place, or subtract it."""
    encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(CHUNK)
    buffer = bytearray(CHUNK + 15)  # the library wants room for another block
    mask = np.frombuffer(buffer, dtype=vector.dtype, count=CHUNK // vector.itemsize)
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, len(vector), len(mask)):
        part = vector[start : start + len(mask)]
        encryptor.update_into(zeros, buffer)
        combine(part, mask[: len(part)], out=part)


# ---- the server


def open_sum(
    cohort: Cohort, vectors: Mapping[bytes, np.ndarray], survivors: Sequence[bytes], openings: Mapping[bytes, Opening]
) -> np.ndarray:
    """The sum of the survivors' whole numbers, as int64.

    U_min openings are enough where nobody dropped out; else all survivors' are needed. Shares beyond U_min must agree.
    """
    cohort.check_survivors(survivors)
    dropped = cohort.dropped(survivors)
    given = {one: openings[one] for one in survivors if one in openings}
    if len(given) < (len(survivors) if dropped else cohort.minimum):
        raise MaskingError(f"{len(given)} of {len(survivors)} survivors have answered: too few to open their sum.")
    total = _add_vectors([vectors[one] for one in survivors if one in vectors], len(survivors))
    for one in survivors:
        add_mask(total, _recover_own_seed(cohort, one, given), -1)
        for other in dropped:
            seed = given[one].seeds.get(other, b"")
            if len(seed) != KEY_BYTES:
                raise MaskingError("A site's opening lacks the seed of one that dropped out.")
            add_mask(total, seed, -1 if cohort.place(other) > cohort.place(one) else +1)
    signed: np.ndarray = total.view(SIGNED[8 * total.itemsize])
    return signed.astype(np.int64)


def _add_vectors(vectors: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The sum of masked vectors."""
    kinds = {(vector.dtype, vector.shape) for vector in vectors}
    if len(vectors) < count or len(kinds) != 1:
        raise MaskingError("The survivors' vectors are not all there, or not of one length and width.")
    ((dtype, shape),) = kinds
    if dtype not in UNSIGNED.values() or len(shape) != 1:
        raise MaskingError("A masked vector is a row of unsigned whole numbers of 32 or 64 bits.")
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


def _recover_own_seed(cohort: Cohort, identity: bytes, openings: Mapping[bytes, Opening]) -> bytes:
    """The seed of a site's own mask, from the shares that others give of it."""
    shares = {}
    for holder, opening in openings.items():
        share = opening.shares.get(identity, b"")
        if len(share) != secret_sharing.SHARE_BYTES:
            raise MaskingError("A site's opening lacks its share of a survivor's mask.")
        shares[1 + cohort.place(holder)] = int.from_bytes(share, "big")
    try:
        return secret_sharing.combine(shares, cohort.minimum).to_bytes(KEY_BYTES, "big")
    except secret_sharing.SharingError as error:
        raise MaskingError(f"A survivor's mask cannot be opened: {str(error)[0].lower()}{str(error)[1:]}") from error
