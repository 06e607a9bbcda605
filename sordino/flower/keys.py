"""Keys and certificates, made here: nobody needs openssl.

A server has an authority of its own (`ca.pem`, which every site gets) and a certificate by it for the names that it is
reached under. A site has a key on the curve P-384 with which Flower knows its connection; it is no identity: that one
lies in the site's database.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.errors import UserError, quoted
from sordino.files import read_file

AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
CERTIFICATE, CERTIFICATE_KEY = "server.pem", "server.key"
NODE_KEY = "node.key"
HERE = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, for which every certificate holds."""
HOST = re.compile(r"(?=.{1,253}$)(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)
"""A host's name, perhaps for all names below it."""
AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 1825
EARLIER = datetime.timedelta(days=1)
"""Certificates hold from a day ago: clocks differ."""


def make_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Write an authority and a certificate for `hosts`, host names or addresses, into a folder."""
    names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys((*hosts, *HERE))])
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Sordino deployment")])
    uses = _key_usage(signs=False, certifies=True)
    own = (
        _begun(name, name, authority_key.public_key(), authority_key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(uses, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    server = (
        _begun(subject, name, key.public_key(), authority_key.public_key(), CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=True, certifies=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write_secret(folder / CERTIFICATE_KEY, _private_pem(key))
    (folder / CERTIFICATE).write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / AUTHORITY).write_bytes(own.public_bytes(serialization.Encoding.PEM))
    # Last: where it is there, all are, and what was stopped before can be begun anew.
    _write_secret(folder / AUTHORITY_KEY, _private_pem(authority_key))


def make_node_key(folder: Path) -> str:
    """Write the key of a site's connection into its folder; the public half as a line of text."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(folder / NODE_KEY, _private_pem(key))
    return public_text(key)


def node_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The key of a site's connection."""
    path = folder / NODE_KEY
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise UserError(f"There is no site in {folder}: `sordino site init` makes one.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"The key of the site's connection, {path}, cannot be read.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(f"{path} holds no key on the curve P-384.")
    return key


def public_text(key: ec.EllipticCurvePrivateKey) -> str:
    """The public half of a connection's key, in hexadecimal digits."""
    return key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint).hex()


def public_pem(text: str) -> bytes:
    """The public half of a connection's key as Flower wants it, from hexadecimal digits."""
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), bytes.fromhex(text))
    except ValueError as error:
        raise UserError(f"{text[:40]!r} is not the public key of a site's connection.") from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def trusting(authority: Path, any_name: bool = False) -> ssl.SSLContext:
    """A TLS context that trusts one authority only; `any_name`: whatever the server is called."""
    try:
        text = read_file(authority).decode("ascii")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=text)
    except FileNotFoundError as error:
        raise UserError(f"There is no certificate {authority}: the server's operator gives you its ca.pem.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{authority} is no certificate in PEM: the server's operator gives you its ca.pem.") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = not any_name
    return context


def check_server_keys(folder: Path) -> None:
    """Refuse a server's folder whose keys are missing, have run out or do not belong together."""
    for name in (AUTHORITY, CERTIFICATE, CERTIFICATE_KEY):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: `sordino serve init --host NAME` makes a server's keys.")
    try:
        own = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        server = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        server.verify_directly_issued_by(own)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise UserError(f"The certificates in {folder} cannot be read, or do not belong together.") from error
    if server.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise UserError(f"The certificate in {folder} has run out: `sordino serve init` makes a new one.")


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, by: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """A certificate to which its uses have yet to be added."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by), critical=False)
    )


def _key_usage(signs: bool, certifies: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        key_cert_sign=certifies,
        crl_sign=certifies,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if HOST.fullmatch(host) is None:
        raise UserError(f"{quoted(host)} is neither a host's name nor an address: write it as sites reach it.")
    return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
