"""Sites and servers of different versions: they say who must upgrade, and a service goes on with its own run."""

from __future__ import annotations

from pathlib import Path

import pytest
from federations import Federation, federation, kind

from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Fault
from sordino.deploy.protocol.versions import PROTOCOL, is_understood, upgrade_advice, version_in
from sordino.deploy.server import coordinator, presence
from sordino.errors import UserError
from sordino.version import VERSION


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    with federation(tmp_path_factory.mktemp("federation"), rounds=1) as found:
        yield found


@pytest.mark.parametrize(
    ("version", "whom"),
    [("0.0.1", "site"), ("999.0.0", "server"), (None, "site"), ("\x1b[31m1.2.3", "site"), (7, "site")],
)
def test_who_must_upgrade_is_said(version: object, whom: str) -> None:
    advice = upgrade_advice(version, VERSION)
    assert f"the {whom} must be upgraded" in advice
    assert advice.isprintable()


@pytest.mark.parametrize(("server", "whom"), [("0.0.1", "server"), ("999.0.0", "site"), (None, "server")])
def test_a_site_says_so_too(server: object, whom: str) -> None:
    assert f"the {whom} must be upgraded" in upgrade_advice(VERSION, server)


def test_equal_versions_of_other_code_are_told_apart() -> None:
    assert "Both have" in upgrade_advice(VERSION, VERSION)
    assert "install the same package on both" in upgrade_advice(VERSION, VERSION)


def test_ends_with_another_protocol_do_not_understand_each_other() -> None:
    assert is_understood(f"{PROTOCOL}/999.0.0")
    assert version_in("7/0.9.1") == "0.9.1"
    for other in (None, "", "x", f"{PROTOCOL + 1}/{VERSION}", f"{PROTOCOL}{PROTOCOL}/{VERSION}"):
        assert not is_understood(other)


def told_by(made: Federation, fault: Fault) -> list[str]:
    made.told.clear()
    with pytest.raises(UserError, match="of 3 sites take part"):
        made.run(fault)
    return made.told


def test_a_site_with_an_older_protocol_is_told_to_the_operator_once(made: Federation) -> None:
    """The first site is of an earlier version: it knows protocol 1 alone, and names no version."""

    def older(node: int, request: bytes, answer) -> bytes:
        if node:
            return answer()
        reply = wire.unpack(made.sites[0].answer(wire.pack({**wire.unpack(request), "protocol": 1})))
        assert reply.pop("version") == VERSION
        assert reply["code"] == "protocol"
        return wire.pack(reply)

    told = [one for one in told_by(made, older) if "protocol" in one]
    assert len(told) == 1
    assert f"older than {VERSION}, which the server has: the site must be upgraded." in told[0]


def test_an_older_site_that_derives_other_terms_is_named_with_its_version(made: Federation) -> None:
    def older(node: int, request: bytes, answer) -> bytes:
        message = wire.unpack(request)
        if node or message["kind"] not in ("hello", "enrol"):
            return answer()
        if message["kind"] == "enrol":
            request = wire.pack({**message, "identity": "0" * 64})
        reply = wire.unpack(made.sites[0].answer(request))
        return wire.pack(reply | {"version": "0.3.9", "package": "0" * 64})

    told = told_by(made, older)
    named = [one for one in told if one.startswith("site-0") or made.members[0].name in one]
    assert any(f"The site has 0.3.9, the server {VERSION}: the site must be upgraded." in one for one in named)
    assert any("derives other terms" in one for one in named)


def test_a_site_tells_its_owner_who_must_upgrade(made: Federation) -> None:
    """The server derives other terms, and has another version."""

    def other(node: int, request: bytes, answer) -> bytes:
        message = wire.unpack(request)
        if message["kind"] == "enrol":
            assert message["version"] == VERSION
            return made.sites[node].answer(wire.pack({**message, "identity": "0" * 64, "version": "999.0.0"}))
        return answer()

    told_by(made, other)
    log = (made.folders[0] / "site.log").read_text()
    assert f"The site has {VERSION}, the server 999.0.0: the site must be upgraded." in log


def test_a_hostile_site_cannot_fill_the_operator_s_screen(made: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(1000))

    def hostile(node: int, request: bytes, answer) -> bytes:
        if kind(request) != "hello":
            return answer()
        return wire.pack({"ok": False, "code": "protocol", "sentence": f"No. {next(count)}", "version": VERSION})

    monkeypatch.setattr(presence, "MOST_STRANGERS", 2)
    told = told_by(made, hostile)
    assert sum("No. " in one for one in told) == 2


def test_a_service_takes_up_its_own_run_and_no_other(tmp_path: Path) -> None:
    with federation(tmp_path, rounds=1) as made:
        assert coordinator.newest_run(made.experiment, made.members, made.store) is None
        result = made.run()
        assert coordinator.newest_run(made.experiment, made.members, made.store) == result.run
        assert coordinator.newest_run(made.experiment, made.members[:2], made.store) is None
        other = made.experiment.model_copy(update={"rounds": 2})
        assert coordinator.newest_run(other, made.members, made.store) is None
        assert made.resume(result.run).to_dict() == result.to_dict()
