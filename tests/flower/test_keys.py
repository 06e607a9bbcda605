"""Keys and certificates: made here, checked by the standard library's TLS and by Flower's own functions."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, sign_message, verify_signature

from sordino.errors import UserError
from sordino.flower import keys


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
    trust = keys.trusting(server / keys.AUTHORITY)
    trust.verify_flags |= ssl.VERIFY_X509_STRICT  # as newer versions of Python demand by themselves
    for name in ("fl.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1"):
        handshake(server, trust, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        handshake(server, trust, "elsewhere.example.org")
    handshake(server, keys.trusting(server / keys.AUTHORITY, any_name=True), "elsewhere.example.org")


def test_another_authority_is_not_trusted(server, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    keys.make_authority(other, ["fl.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, keys.trusting(other / keys.AUTHORITY, any_name=True), "fl.example.org")
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
        keys.trusting(tmp_path / "ca.pem")
    with pytest.raises(UserError, match="no certificate in PEM"):
        keys.trusting(tmp_path / keys.NODE_KEY)
    with pytest.raises(UserError, match="serve init"):
        keys.check_server_keys(tmp_path)
