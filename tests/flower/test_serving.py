"""A server's folder: keys once, sites by their public lines, addresses."""

from __future__ import annotations

import io
import os
from pathlib import Path

import httpx
import pytest

from sordino.deploy.protocol.roster import read_roster
from sordino.errors import UserError
from sordino.flower import QUIET, keys, link, serving
from sordino.flower.serving import PublicSite


def public(folder: Path, name: str, identity: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pub"
    path.write_text(PublicSite(name, identity, keys.make_node_key(folder)).line() + "\n")
    return path


def test_sites_are_added_once_and_listed(tmp_path):
    server = tmp_path / "server"
    serving.create_server(server, ["localhost"])
    first, second = public(tmp_path / "a", "a", bytes(32)), public(tmp_path / "b", "b", bytes([1] * 32))
    serving.add_sites(server, [first])
    serving.add_sites(server, [first, second])
    assert [site.name for site in serving.read_sites(server)] == ["a", "b"]
    assert [site.line() for site in serving.read_sites(server)] == [
        path.read_text().strip() for path in (first, second)
    ]
    (tmp_path / "roster.toml").write_text(serving.roster_file(server))
    assert read_roster(tmp_path / "roster.toml") == [site.member for site in serving.read_sites(server)]


def test_keys_are_not_replaced(tmp_path):
    serving.create_server(tmp_path, ["localhost"])
    with pytest.raises(UserError, match="not replaced"):
        serving.create_server(tmp_path, ["localhost"])


def test_keys_that_were_not_all_written_are_made_anew(tmp_path, monkeypatch):
    whole, written = keys._write_secret, []

    def full(path, content):
        if written:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        whole(path, content)

    monkeypatch.setattr(keys, "_write_secret", full)
    with pytest.raises(UserError, match="No space left"):
        serving.create_server(tmp_path, ["localhost"])
    monkeypatch.undo()
    serving.create_server(tmp_path, ["localhost"])
    keys.check_server_keys(tmp_path)


def test_mistakes_are_told_in_a_sentence(tmp_path):
    server = tmp_path / "server"
    with pytest.raises(UserError, match="serve init"):
        serving.add_sites(server, [])
    serving.create_server(server, ["localhost"])
    with pytest.raises(UserError, match="serve add"):
        serving.roster_file(server)
    with pytest.raises(UserError, match="no file"):
        serving.add_sites(server, [tmp_path / "none.pub"])
    for content in ("", "hello", "sordino-site a 00", "sordino-site a zz 00", f"sordino-site ../a {'00' * 32} 00"):
        (tmp_path / "bad.pub").write_text(content)
        with pytest.raises(UserError):
            serving.add_sites(server, [tmp_path / "bad.pub"])
    serving.add_sites(server, [public(tmp_path / "a", "a", bytes(32))])
    with pytest.raises(UserError, match="another site a"):
        serving.add_sites(server, [public(tmp_path / "again", "a", bytes([1] * 32))])
    with pytest.raises(UserError, match="was added under that name"):
        serving.add_sites(server, [public(tmp_path / "b", "b", bytes(32))])
    (server / serving.SITES).write_text("[[site]]\nname = 1\n")
    with pytest.raises(UserError, match="cannot be read"):
        serving.read_sites(server)


def test_the_superlink_is_told_to_be_quiet(tmp_path, monkeypatch):
    serving.create_server(tmp_path, ["localhost"])
    started = {}

    class Process:
        stdin = io.StringIO()

    monkeypatch.setattr(link.subprocess, "Popen", lambda command, **given: started.update(given) or Process())
    for name in QUIET:
        monkeypatch.setenv(name, "loud")
    link.Link(tmp_path, "127.0.0.1", link.free_port(), tmp_path, 1).start()
    assert {name: started["env"][name] for name in QUIET} == QUIET | {"FLWR_LOG_LEVEL": "INFO"}
    assert Path(started["env"]["FLWR_HOME"]).is_relative_to(tmp_path)


def test_requests_to_this_machine_s_superlink_take_no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "intranet.example")
    monkeypatch.delenv("NO_PROXY", raising=False)
    link.reach_directly("127.0.0.1")
    link.reach_directly("127.0.0.1")
    assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == ("intranet.example,127.0.0.1", "127.0.0.1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    with httpx.Client() as client:
        assert not client._transport_for_url(httpx.URL("https://fl.example.org"))._pool.__class__.__name__.startswith(
            "ConnectionPool"
        )
        direct = client._transport_for_url(httpx.URL("https://127.0.0.1:8000"))
        assert direct is client._transport or direct._pool.__class__.__name__ == "ConnectionPool"


def test_addresses():
    assert serving.parse_address("0.0.0.0:8000") == ("0.0.0.0", 8000)
    assert serving.parse_address("[::1]:80") == ("::1", 80)
    for text in ("", "8000", "host:", ":8000", "host:port", "host:0", "host:65536", "::1:80"):
        with pytest.raises(UserError, match="HOST:PORT"):
            serving.parse_address(text)
