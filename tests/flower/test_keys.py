"""Keys and certificates: made here, checked by the standard library's TLS and by Flower's own functions."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, sign_message, verify_signature

from sordino.errors import UserError
from sordino.flower import keys, node


def handshake(server: Path, client: ssl.SSLContext, name: str) -> None:
    """A TLS connection to a server with the keys of a folder, under a name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / keys.CERTIFICATE, server / keys.CERTIFICATE_KEY)
    ours, theirs = socket.socketpair()

    def answer() -> None:
        try:
            with context.wrap_socket(theirs, server_side=True) as channel:
                channel.recv(1)
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as channel:
            channel.send(b"x")
    finally:
        ours.close()
        thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Path:
    folder = tmp_path / "server"
    folder.mkdir()
    keys.make_authority(folder, ["fl.example.org", "10.1.2.3"])
    return folder


def test_certificate_holds_for_its_names_and_this_machine(server):
    keys.check_server_keys(server)
    trust = keys.tls_context(server / keys.AUTHORITY)
    trust.verify_flags |= ssl.VERIFY_X509_STRICT  # as newer versions of Python demand by themselves
    for name in ("fl.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1"):
        handshake(server, trust, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        handshake(server, trust, "elsewhere.example.org")
    handshake(server, keys.tls_context(server / keys.AUTHORITY, any_name=True), "elsewhere.example.org")


def test_another_authority_is_not_trusted(server, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    keys.make_authority(other, ["fl.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, keys.tls_context(other / keys.AUTHORITY, any_name=True), "fl.example.org")
    (server / keys.AUTHORITY).write_bytes((other / keys.AUTHORITY).read_bytes())
    with pytest.raises(UserError, match="do not belong together"):
        keys.check_server_keys(server)


def test_private_keys_are_readable_by_their_owner_only(server, tmp_path):
    keys.make_node_key(tmp_path)
    for path in (server / keys.AUTHORITY_KEY, server / keys.CERTIFICATE_KEY, tmp_path / keys.NODE_KEY):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_key_of_a_connection_is_one_that_flower_takes(tmp_path):
    text = keys.make_node_key(tmp_path)
    private = keys.node_key(tmp_path)
    public = bytes_to_public_key(keys.public_pem(text))
    assert isinstance(private.curve, ec.SECP384R1)
    assert verify_signature(public, b"now", sign_message(private, b"now"))
    assert len(text) == 2 * 49


def test_what_is_no_key_is_told_in_a_sentence(tmp_path, server):
    with pytest.raises(UserError, match="no site in"):
        keys.node_key(tmp_path)
    (tmp_path / keys.NODE_KEY).write_text("nothing")
    with pytest.raises(UserError, match="cannot be read"):
        keys.node_key(tmp_path)
    (tmp_path / keys.NODE_KEY).write_bytes((server / keys.AUTHORITY_KEY).read_bytes())
    with pytest.raises(UserError, match="P-384"):
        keys.node_key(tmp_path)
    for text in ("", "02" + "ff" * 48, "xyz"):
        with pytest.raises(UserError, match="not the public key"):
            keys.public_pem(text)
    with pytest.raises(UserError, match="no certificate"):
        keys.tls_context(tmp_path / "ca.pem")
    with pytest.raises(UserError, match="no certificate in PEM"):
        keys.tls_context(tmp_path / keys.NODE_KEY)
    with pytest.raises(UserError, match="serve init"):
        keys.check_server_keys(tmp_path)


def test_a_certificate_is_renewed_under_the_same_authority(server, tmp_path):
    """A site that has the old ca.pem trusts the new certificate, under the old names and the new one."""
    authority = (server / keys.AUTHORITY).read_bytes()
    before = (server / keys.CERTIFICATE).read_bytes()
    (tmp_path / "ca.pem").write_bytes(authority)
    until = keys.renew_certificate(server, ["new.example.org", "fl.example.org"])
    assert (server / keys.AUTHORITY).read_bytes() == authority
    assert (server / keys.CERTIFICATE).read_bytes() != before
    assert keys.check_server_keys(server) == []
    trust = keys.tls_context(tmp_path / "ca.pem")
    for name in ("fl.example.org", "10.1.2.3", "localhost", "new.example.org"):
        handshake(server, trust, name)
    own, made = (x509.load_pem_x509_certificate((server / one).read_bytes()) for one in ("ca.pem", "server.pem"))
    assert made.not_valid_after_utc == until <= own.not_valid_after_utc
    assert until - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=keys.CERTIFICATE_DAYS - 1)


def test_a_renewal_that_is_stopped_leaves_all_as_it_was(server, monkeypatch):
    before = {path: path.read_bytes() for path in server.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        keys.renew_certificate(server, [])
    assert {path: path.read_bytes() for path in server.iterdir()} == before


def test_what_runs_out_is_told_beforehand_and_refused_afterwards(server, tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    assert keys.warnings_for_site(site) == []

    def renewed(days):
        monkeypatch.setattr(keys, "CERTIFICATE_DAYS", days)
        keys.renew_certificate(server, [])
        (site / keys.SHOWN_CERTIFICATE).write_bytes((server / keys.CERTIFICATE).read_bytes())
        return keys.check_server_keys(server), keys.warnings_for_site(site)

    assert renewed(62) == ([], [])
    (told,), (told_site,) = renewed(59)
    assert "expires in 58 days" in told
    assert f"`sordino serve renew --folder {server}`" in told
    assert "with `sordino serve renew`" in told_site
    with pytest.raises(UserError, match=r"has expired: `sordino serve renew .*sites need nothing new"):
        renewed(0)
    assert renewed(1825) == ([], [])


def test_an_authority_that_has_run_out_cannot_renew(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "AUTHORITY_DAYS", 30)
    keys.make_authority(tmp_path, ["fl.example.org"])
    (told,) = keys.check_server_keys(tmp_path)
    assert "The authority" in told
    assert "`sordino serve init`" in told
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=31)
    monkeypatch.setattr(keys, "_in_days", lambda days: later + datetime.timedelta(days=days))
    with pytest.raises(UserError, match="has expired: make another server's folder"):
        keys.renew_certificate(tmp_path, [])
    with pytest.raises(UserError, match="has expired: make another server's folder"):
        keys.check_server_keys(tmp_path)


def test_a_site_keeps_the_certificate_with_which_the_server_met_it(server, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / keys.CERTIFICATE, server / keys.CERTIFICATE_KEY)
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        accepted, _ = listening.accept()
        with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as channel:
            channel.recv(65536)
            channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            channel.recv(1)

    thread = threading.Thread(target=answer)
    thread.start()
    keeper = node._CertificateKeeper(tmp_path)
    address = f"https://127.0.0.1:{listening.getsockname()[1]}"
    with httpx.Client(verify=keys.tls_context(server / keys.AUTHORITY), trust_env=False) as client:
        keeper.intercept(SimpleNamespace(), lambda context: client.get(address))
    thread.join()
    listening.close()
    assert (tmp_path / keys.SHOWN_CERTIFICATE).read_text().split() == (server / keys.CERTIFICATE).read_text().split()
    assert keys.shown_expiry(tmp_path) == keys.server_expiry(server) > time.time()
    assert keys.shown_expiry(tmp_path / "none") == 0
