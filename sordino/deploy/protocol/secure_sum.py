"""Secure aggregation: a sum whose parts nobody sees, by pairwise masks that cancel and a mask of each site's own.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, in two trips and with
one answer of each site to one list of survivors. A site i of the cohort U1 sends

    y_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)    modulo 2^32 or 2^64,

and shares b_i among all, so that any t = U_min of them give it back. The server then names the survivors U2; a site
gives its shares of b_k for k in U2 and its seeds s_ki for k in U1 outside of U2, and never answers to another U2.

Whatever a lying server shows to whom, a sum that it can open holds at least h = 2 U_min - n - colluders honest shares
(`honest_shares`): for b_i to open, t - colluders honest sites with i's question had i in their only U2; at most
n - U_min of them are missing from i's own; with each of the others i has a mask that neither reveals, so they open only
together.

s_ij = HKDF-SHA256 of X25519; shares travel under AES-256-GCM with a key for each message; PRG is AES-256-CTR from zero,
one stream for a key. All keys are bound to the hash of the question. Who takes part is not hidden.

| in the protocol | here |
|---|---|
| U1, U2 | `Cohort.parties`, `survivors` |
| U_min, t | `Cohort.minimum` |
| b_i, s_ij | a secret of `secret_sharing`, `Masker._seed` |
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
"""Bytes of a mask that are generated at a time, so that they stay in the processor's cache."""
NONCE = bytes(12)
"""Constant, because every key encrypts one message only."""
UNSIGNED: dict[int, np.dtype] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
SIGNED: dict[int, np.dtype] = {32: np.dtype("<i4"), 64: np.dtype("<i8")}


class MaskingError(UserError):
    """A message of the secure sum violates the protocol."""


# ---- sizes of cohorts


def honest_shares(sites: int, minimum: int, colluders: int, active_server: bool = True) -> int:
    """Number h of honest sites whose noise is in every sum that the server can open.

    Args:
        sites: Number of sites that are asked.
        minimum: Number of sites that must answer, U_min.
        colluders: Number of sites that tell the server all they know.
        active_server: Whether the server may deviate from the protocol; otherwise it is merely curious.
    """
    return 2 * minimum - sites - colluders if active_server else minimum - colluders


def check_cohort(sites: int, minimum: int, colluders: int, active_server: bool = True) -> None:
    """Refuse numbers with which a sum could reveal a single site's message: h < 2. Arguments as those of
    `honest_shares`."""
    if not 1 <= minimum <= sites or colluders < 0:
        raise MaskingError(
            f"minimum_cohort is {minimum}, but must be between 1 and {sites}, the number of sites that are asked."
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
    """Draw a private X25519 key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Public half of a private X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Party:
    """A site of a cohort."""

    identity: bytes
    """Lasting Ed25519 public key."""
    key: bytes
    """Public X25519 key of the site for this run."""


@dataclass(frozen=True)
class Cohort:
    """Cohort U1 of a question: the sites that are asked, in the order of their places."""

    question: bytes
    """Hash of the question's whole content, to which every key is bound."""
    parties: tuple[Party, ...]
    minimum: int
    """U_min: number of sites that must answer, and of shares that open a mask."""

    def __post_init__(self) -> None:
        for what, values in (("site", [one.identity for one in self.parties]), ("key", [p.key for p in self.parties])):
            if len(set(values)) < len(values):
                raise MaskingError(f"The cohort names a {what} twice.")
        if not 1 <= self.minimum <= len(self.parties):
            raise MaskingError(f"A cohort of {len(self.parties)} sites cannot give at least {self.minimum} answers.")

    def place(self, identity: bytes) -> int:
        """Index of a site in the cohort."""
        for place, party in enumerate(self.parties):
            if party.identity == identity:
                return place
        raise MaskingError(f"The site {identity.hex()[:8]} is not in the cohort.")

    def check_survivors(self, survivors: Sequence[bytes]) -> None:
        """Refuse survivors U2 that are not within U1, name a site twice, or are too few."""
        if len(set(survivors)) < len(survivors):
            raise MaskingError("The survivors of a sum name a site twice.")
        for identity in survivors:
            self.place(identity)
        if len(survivors) < self.minimum:
            raise MaskingError(f"A sum has {len(survivors)} survivors, but {self.minimum} are needed to open it.")

    def dropped(self, survivors: Sequence[bytes]) -> list[bytes]:
        """Sites of the cohort that are not among the survivors."""
        return [party.identity for party in self.parties if party.identity not in survivors]


# ---- a site


@dataclass(frozen=True)
class MaskedVector:
    """A site's message in the first trip."""

    vector: np.ndarray
    """The site's whole numbers under all of its masks."""
    shares: dict[bytes, bytes]
    """Encrypted share of this site's own mask for each site of the cohort, itself included."""


@dataclass(frozen=True)
class Share:
    """A share of one site's own mask, decrypted by the site that holds it."""

    value: int
    note: bytes
    """Bytes from the sender to the receiver, unseen by the server."""


@dataclass(frozen=True)
class Opening:
    """A site's message in the second trip."""

    shares: dict[bytes, bytes]
    """Shares of the survivors' own masks."""
    seeds: dict[bytes, bytes]
    """Seeds of the masks that the site shares with sites that dropped out."""


class Masker:
    """One site's part in the secure sum of one question."""

    def __init__(
        self, cohort: Cohort, identity: bytes, private: bytes, agreed: dict[bytes, bytes] | None = None
    ) -> None:
        """Join a cohort.

        Args:
            cohort: The question's cohort.
            identity: Public key of this site.
            private: Its X25519 key for this run.
            agreed: Secrets that `private` has agreed on with other sites' X25519 keys, by key; new ones are added. All
                keys of a question are derived from them with its hash, so that they hold for a whole run.
        """
        self.cohort, self.identity = cohort, identity
        self.place = cohort.place(identity)
        if cohort.parties[self.place].key != public_key(private):
            raise MaskingError("The cohort names another key for this site than the site's own.")
        self._private = X25519PrivateKey.from_private_bytes(private)
        self._agreed = {} if agreed is None else agreed

    def mask(self, values: np.ndarray, bits: int, notes: Mapping[bytes, bytes] | None = None) -> MaskedVector:
        """Mask whole numbers. To be called once for a question, whatever becomes of it.

        Args:
            values: Row of whole numbers.
            bits: Width in which the sum is computed, 32 or 64.
            notes: Bytes for the receivers of the shares, by identity.
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
        """Decrypt the share that `sender` has encrypted to this site; altered bytes are refused."""
        salt, content = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
        key = self._derive_key(sender, b"share", sender, self.identity, salt)
        try:
            plain = AESGCM(key).decrypt(NONCE, content, None)
        except InvalidTag as error:
            raise MaskingError("A share was altered on its way, or belongs to another question.") from error
        if len(plain) < secret_sharing.SHARE_BYTES:
            raise MaskingError("A share is too short.")
        return Share(int.from_bytes(plain[: secret_sharing.SHARE_BYTES], "big"), plain[secret_sharing.SHARE_BYTES :])

    def make_opening(self, survivors: Sequence[bytes], sealed: Mapping[bytes, bytes]) -> Opening:
        """Make this site's part of opening the survivors' sum.

        The caller must answer one list of survivors only for a question: two lists would open single messages.

        Args:
            survivors: Identities of the survivors U2.
            sealed: Encrypted share for this site, by survivor.
        """
        self.cohort.check_survivors(survivors)
        if self.identity not in survivors:
            raise MaskingError("This site is not among the survivors of the sum.")
        missing = [one for one in survivors if one not in sealed]
        if missing:
            raise MaskingError("A survivor's share is missing.")
        shares = {one: self.decrypt_share(one, sealed[one]).value for one in survivors}
        return Opening(
            {one: value.to_bytes(secret_sharing.SHARE_BYTES, "big") for one, value in shares.items()},
            {one: self._seed(one) for one in self.cohort.dropped(survivors)},
        )

    def _sign(self, other: bytes) -> int:
        """Sign of the mask that is shared with another site: the two have opposite signs."""
        return 1 if self.cohort.place(other) > self.place else -1

    def _seed(self, other: bytes) -> bytes:
        """Seed s_ij of the mask that is shared with another site."""
        first, second = sorted((self.identity, other), key=self.cohort.place)
        return self._derive_key(other, b"mask", first, second)

    def _encrypt_share(self, receiver: bytes, share: int, note: bytes) -> bytes:
        salt = os.urandom(KEY_BYTES)  # a new key for each message, even from a site that was restored from a backup
        key = self._derive_key(receiver, b"share", self.identity, receiver, salt)
        plain = share.to_bytes(secret_sharing.SHARE_BYTES, "big") + note
        return salt + AESGCM(key).encrypt(NONCE, plain, None)

    def _derive_key(self, other: bytes, *purpose: bytes) -> bytes:
        """Key that only this site and another can derive, for one purpose of this question."""
        info = b"".join(len(part).to_bytes(4, "big") + part for part in (PROTOCOL, self.cohort.question, *purpose))
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self._shared_secret(other))

    def _shared_secret(self, other: bytes) -> bytes:
        """X25519 secret of this site and another. A key of small order, which would give zero, is refused."""
        key = self.cohort.parties[self.cohort.place(other)].key
        if key not in self._agreed:
            try:
                self._agreed[key] = self._private.exchange(X25519PublicKey.from_public_bytes(key))
            except ValueError as error:
                raise MaskingError("A site's X25519 key is invalid: no secret can be agreed on with it.") from error
        return self._agreed[key]


def add_mask(vector: np.ndarray, seed: bytes, sign: int) -> None:
    """Add PRG(seed) to a vector in place; subtract it where `sign` is negative."""
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
    """Unmask the sum of the survivors' whole numbers, as int64.

    U_min openings are enough where no site dropped out; otherwise those of all survivors are needed. Shares beyond
    U_min must agree.

    Args:
        cohort: The cohort that was asked.
        vectors: Masked vector of each site that answered.
        survivors: Identities of the survivors U2.
        openings: Messages of the second trip, by site.
    """
    cohort.check_survivors(survivors)
    dropped = cohort.dropped(survivors)
    given = {one: openings[one] for one in survivors if one in openings}
    if len(given) < (len(survivors) if dropped else cohort.minimum):
        raise MaskingError(
            f"{len(given)} of {len(survivors)} survivors have answered the second trip: too few to open their sum."
        )
    total = _add_vectors([vectors[one] for one in survivors if one in vectors], len(survivors))
    for one in survivors:
        add_mask(total, _recover_own_seed(cohort, one, given), -1)
        for other in dropped:
            seed = given[one].seeds.get(other, b"")
            if len(seed) != KEY_BYTES:
                raise MaskingError("A site's opening lacks the seed of a site that dropped out.")
            add_mask(total, seed, -1 if cohort.place(other) > cohort.place(one) else +1)
    signed: np.ndarray = total.view(SIGNED[8 * total.itemsize])
    return signed.astype(np.int64)


def _add_vectors(vectors: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Sum of `count` masked vectors, modulo their width."""
    kinds = {(vector.dtype, vector.shape) for vector in vectors}
    if len(vectors) < count or len(kinds) != 1:
        raise MaskingError("The survivors' vectors are incomplete, or differ in length or width.")
    ((dtype, shape),) = kinds
    if dtype not in UNSIGNED.values() or len(shape) != 1:
        raise MaskingError("A masked vector is a row of unsigned whole numbers of 32 or 64 bits.")
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


def _recover_own_seed(cohort: Cohort, identity: bytes, openings: Mapping[bytes, Opening]) -> bytes:
    """Seed of a site's own mask, recovered from the shares of it that others give."""
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
