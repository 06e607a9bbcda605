"""Sites' lasting Ed25519 identities and signatures."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def new_identity() -> bytes:
    """Draw a private Ed25519 key."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_identity(private: bytes) -> bytes:
    """Public half of a private key; it identifies a site."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, purpose: str, *parts: bytes) -> bytes:
    """Sign `parts` for one purpose; the signature holds for no other."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(_signed_bytes(purpose, parts))


def is_signed(identity: bytes, signature: bytes, purpose: str, *parts: bytes) -> bool:
    """Whether `signature` is that of the site `identity` over `parts`, for this purpose."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, _signed_bytes(purpose, parts))
    except (InvalidSignature, ValueError):
        return False
    return True


def _signed_bytes(purpose: str, parts: tuple[bytes, ...]) -> bytes:
    """Bytes that are signed: purpose and parts, each with its length, so that parts cannot run into each other."""
    whole = (b"sordino 1", purpose.encode(), *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in whole)
