"""Keys and certificates of servers and sites.

A server has its own certificate authority (`ca.pem`, which every site gets) and a certificate by it for the names under
which sites reach the server. A site has a P-384 key by which Flower recognizes its connection. That key is not the
site's identity, which is in its ledger file.
"""

from __future__ import annotations

import contextlib
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
from sordino.util.files import read_file, write_whole

AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
CERTIFICATE, CERTIFICATE_KEY = "server.pem", "server.key"
NODE_KEY = "node.key"
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, which every certificate includes."""
HOST = re.compile(r"(?=.{1,253}$)(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)
"""Host name, perhaps a wildcard."""
SHOWN_CERTIFICATE = "server.pem"
"""File in a site's folder with the certificate that the server last showed."""
AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 1825
NEW_AUTHORITY = (
    "make another server's folder with `sordino serve init`, add all sites there, and give its ca.pem to their owners"
)
WARN_DAYS = 60
"""Days before a certificate expires from which on its users are warned."""
CLOCK_TOLERANCE = datetime.timedelta(days=1)
"""Time before now from which certificates are valid, because clocks differ."""


def make_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Write an authority and a server's certificate for `hosts` (host names or IP addresses) into a folder."""
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *LOCAL_NAMES))]
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Sordino deployment")])
    uses = _key_usage(signs=False, certifies=True)
    authority = (
        _certificate_builder(
            name, name, authority_key.public_key(), authority_key.public_key(), _in_days(AUTHORITY_DAYS)
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(uses, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    _write_secret(folder / CERTIFICATE_KEY, _private_pem(key))
    (folder / CERTIFICATE).write_bytes(_issue_certificate(key.public_key(), subject, names, authority, authority_key))
    (folder / AUTHORITY).write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    # Last: `serve init` takes this file as the sign that all are there, and can be repeated if it was stopped before.
    _write_secret(folder / AUTHORITY_KEY, _private_pem(authority_key))


def renew_certificate(folder: Path, hosts: Sequence[str]) -> datetime.datetime:
    """Replace a server's certificate by one that is valid longer, also for `hosts`; returns when it expires.

    Authority and key stay the same, so that sites need nothing new and only one file is replaced, atomically.
    """
    authority, server = _certificates(folder)
    if authority.not_valid_after_utc < _in_days(0):
        raise UserError(f"The authority in {folder} has expired: {NEW_AUTHORITY}.")
    authority_key = _private_key(folder / AUTHORITY_KEY)
    key = _private_key(folder / CERTIFICATE_KEY)
    known = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = list(dict.fromkeys([*known, *(_general_name(host) for host in hosts)]))
    made = _issue_certificate(key.public_key(), server.subject, names, authority, authority_key)
    write_whole(folder / CERTIFICATE, made)
    return x509.load_pem_x509_certificate(made).not_valid_after_utc


def _issue_certificate(
    key: ec.EllipticCurvePublicKey,
    subject: x509.Name,
    names: Sequence[x509.GeneralName],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> bytes:
    """Issue a server's certificate in PEM; it does not outlive the authority.

    Args:
        key: The server's public key.
        subject: Name that the certificate is issued to.
        names: Host names and addresses for which it is valid.
        authority: The authority's certificate.
        authority_key: Key with which the authority signs.
    """
    until = min(_in_days(CERTIFICATE_DAYS), authority.not_valid_after_utc)
    made = (
        _certificate_builder(subject, authority.subject, key, authority_key.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=True, certifies=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def make_node_key(folder: Path) -> str:
    """Write a new key for a site's connection into its folder; returns the public half in hexadecimal digits."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(folder / NODE_KEY, _private_pem(key))
    return public_text(key)


def node_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Key of the connection of the site in `folder`."""
    path = folder / NODE_KEY
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise UserError(f"There is no site in {folder}: `sordino site init` makes one.") from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"The key of the site's connection, {path}, cannot be read: put it back from a backup."
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(
            f"{path} holds no key on the curve P-384, as `sordino site init` makes it: put it back from a backup."
        )
    return key


def public_text(key: ec.EllipticCurvePrivateKey) -> str:
    """Public half of a connection's key, in hexadecimal digits."""
    return key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint).hex()


def public_pem(text: str) -> bytes:
    """Public half of a connection's key in PEM, as Flower wants it, from hexadecimal digits."""
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), bytes.fromhex(text))
    except ValueError as error:
        raise UserError(f"{text[:40]!r} is not the public key of a site's connection.") from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def tls_context(authority: Path, any_name: bool = False) -> ssl.SSLContext:
    """TLS context that trusts only the certificate in `authority`; with `any_name` the server's name is not checked."""
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


def check_server_keys(folder: Path) -> list[str]:
    """Refuse a server's folder whose keys are missing, expired or do not belong together.

    Returns warnings on certificates that expire soon.
    """
    if not (folder / CERTIFICATE_KEY).is_file():
        raise UserError(f"{folder} has no {CERTIFICATE_KEY}: `sordino serve init --host NAME` makes a server's keys.")
    authority, server = _certificates(folder)
    renewal = f"`sordino serve renew --folder {folder}` makes a new one, and sites need nothing new"
    if authority.not_valid_after_utc < _in_days(0):
        raise UserError(f"The authority in {folder} has expired: {NEW_AUTHORITY}.")
    if server.not_valid_after_utc < _in_days(0):
        raise UserError(f"The certificate in {folder} has expired: {renewal}.")
    over = expiry_warnings(authority, f"The authority in {folder}", NEW_AUTHORITY)
    return over or expiry_warnings(server, f"The certificate in {folder}", renewal)


def expiry_warnings(certificate: x509.Certificate, what: str, cure: str) -> list[str]:
    """Warnings on a certificate that expires within `WARN_DAYS`; `what` names it, `cure` says what to do."""
    left = certificate.not_valid_after_utc - _in_days(0)
    if left > datetime.timedelta(days=WARN_DAYS):
        return []
    return [f"{what} expires in {max(0, left.days)} days, on {certificate.not_valid_after_utc:%d %B %Y}: {cure}."]


def warnings_for_site(folder: Path) -> list[str]:
    """Warnings on the certificate that the server last showed to the site in `folder`."""
    try:
        met = x509.load_pem_x509_certificate((folder / SHOWN_CERTIFICATE).read_bytes())
    except (OSError, ValueError):
        return []
    return expiry_warnings(met, "The server's certificate", "its operator makes a new one with `sordino serve renew`")


def keep_certificate(folder: Path, shown: bytes) -> None:
    """Keep the certificate that a server has shown to the site in `folder` (in DER), for `warnings_for_site`."""
    with contextlib.suppress(OSError):
        (folder / SHOWN_CERTIFICATE).write_text(ssl.DER_cert_to_PEM_cert(shown))


def shown_expiry(folder: Path) -> float:
    """Time, in seconds since 1970, at which the certificate expires that the server last showed to the site in
    `folder`; zero where none is known."""
    return _expiry(folder / SHOWN_CERTIFICATE)


def server_expiry(folder: Path) -> float:
    """Time, in seconds since 1970, at which the certificate of the server in `folder` expires; zero where there is
    none."""
    return _expiry(folder / CERTIFICATE)


def _expiry(path: Path) -> float:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return 0.0


def _certificates(folder: Path) -> tuple[x509.Certificate, x509.Certificate]:
    """Certificates of the authority and of the server in `folder`."""
    for name in (AUTHORITY, CERTIFICATE):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: `sordino serve init --host NAME` makes a server's keys.")
    try:
        authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        server = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        server.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise UserError(
            f"The certificates in {folder} cannot be read, or do not belong together: put them back from a backup."
        ) from error
    return authority, server


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise UserError(
            f"The key {path} cannot be read, and without it no certificate can be renewed: put it back from a backup."
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} holds no key as `sordino serve init` makes it: put it back from a backup.")
    return key


def _in_days(days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


def _certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    by: ec.EllipticCurvePublicKey,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    """Certificate builder with everything but the permitted uses; `by` is the issuer's public key."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_in_days(0) - CLOCK_TOLERANCE)
        .not_valid_after(until)
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
        raise UserError(f"{quoted(host)} is neither a host name nor an IP address: write it as sites reach the server.")
    return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
