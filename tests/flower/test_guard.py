"""The guard in front of the SuperLink, alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sordino.deploy.protocol.versions import SPOKEN
from sordino.flower.link import ACTIVATES, HEADER, MOST_OUTDATED, OUTDATED, STARTS_RUN, VERSION_HEADER, Guard

MAX_REQUEST_BYTES = 1_000_000
PART = bytes(65536)


def asked(guard: Guard, path: str, secret: str | None = None, kind: str = "http", spoken: str | None = SPOKEN) -> int:
    """The status with which a request is answered; 200 is the app's."""
    told: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        told.append(event)

    headers = [] if secret is None else [(HEADER.encode(), secret.encode())]
    headers += [] if spoken is None else [(VERSION_HEADER.encode(), spoken.encode()), (b"flwr-public-key", b"its key")]
    asyncio.run(guard({"type": kind, "path": path, "headers": headers}, None, send))
    return int(told[0]["status"]) if told else 0


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def test_sites_are_let_in_when_all_of_them_are_registered():
    guard = Guard(app, "secret", MAX_REQUEST_BYTES)
    assert asked(guard, "/health") == 200
    assert asked(guard, "/v1/fleet/activate-node") == 503
    assert asked(guard, STARTS_RUN) == 403
    assert asked(guard, "/v1/fleet/activate-node") == 503
    assert asked(guard, "/v1/control/register-node", "secret") == 200
    assert asked(guard, "/v1/fleet/activate-node", "secret") == 503
    assert asked(guard, STARTS_RUN, "secret") == 200
    assert asked(guard, "/v1/fleet/activate-node") == 200


def test_sites_with_another_protocol_are_not_let_in_but_noted_for_the_operator():
    guard = Guard(app, "secret", MAX_REQUEST_BYTES)
    guard.registered = True
    assert asked(guard, ACTIVATES) == 200
    assert guard.outdated == {}
    assert asked(guard, ACTIVATES, spoken="99/1.2.3") == 426
    assert guard.outdated == {"its key": "99/1.2.3"}
    assert asked(guard, ACTIVATES, spoken=None) == 426
    assert guard.outdated[""] is None
    assert asked(guard, OUTDATED) == 403
    assert asked(guard, OUTDATED, "secret") == 200
    guard.outdated = dict.fromkeys(map(str, range(MOST_OUTDATED)))
    assert asked(guard, ACTIVATES, spoken="99/1.2.3") == 426
    assert len(guard.outdated) == MOST_OUTDATED


def test_everything_else_needs_the_secret():
    guard = Guard(app, "secret", MAX_REQUEST_BYTES)
    for path in ("/", "/docs", "/v1/runtime/acquire-task", "/v1/control/stop-run", "/v1/fleet", "/healthy"):
        assert asked(guard, path) == 403
        assert asked(guard, path, "guess") == 403
        assert asked(guard, path, "secret") == 200
    assert asked(guard, "/v1/fleet/x", "secret", "websocket") == 0


class Stream:
    """A request whose body never ends, or has so many parts; it says how much of it was read."""

    def __init__(
        self, guard: Guard, parts: int, headers: dict[str, str] | None = None, path: str = "/v1/fleet/x"
    ) -> None:
        self.read, self.status, self.parts, self.told = 0, [], parts, b""
        told = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        asyncio.run(guard({"type": "http", "path": path, "headers": told}, self.receive, self.send))

    async def receive(self) -> dict[str, Any]:
        self.read += len(PART)
        return {"type": "http.request", "body": PART, "more_body": self.read < self.parts * len(PART)}

    async def send(self, event: dict[str, Any]) -> None:
        self.status += [event["status"]] if "status" in event else []
        self.told += event.get("body", b"")


async def reads_all(scope: Any, receive: Any, send: Any) -> None:
    """An application that wants the whole body before it looks at who sends it, and answers somebody who is gone."""
    more = True
    while more:
        event = await receive()
        more = event.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})


def registered() -> Guard:
    guard = Guard(reads_all, "secret", MAX_REQUEST_BYTES)
    guard.registered = True
    return guard


@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/health"])
def test_a_body_without_a_length_is_read_up_to_the_limit_and_refused_once(path: str) -> None:
    """A gigabyte in parts: at most one part beyond the limit is ever taken."""
    stream = Stream(registered(), parts=16384, path=path)
    assert stream.status == [413]
    assert stream.read <= MAX_REQUEST_BYTES + len(PART)


@pytest.mark.parametrize("length", ["1000001", "1000000000", "99999999999999999999999", "-1", "1e3", ""])
def test_a_length_beyond_the_limit_is_refused_before_anything_is_read(length: str) -> None:
    stream = Stream(registered(), 16384, {"content-length": length})
    assert (stream.status, stream.read) == ([413], 0)
    assert stream.told == b'{"detail": "The request is larger than a site\'s answer may be."}'


def test_bodies_within_the_limit_and_the_operators_are_read() -> None:
    assert Stream(registered(), 15, {"content-length": str(15 * len(PART))}).status == [200]
    assert Stream(registered(), 15).status == [200]
    assert Stream(registered(), 15, {"content-length": "1"}).status == [200]  # the server's own matter
    assert Stream(registered(), 16, {"content-length": "1"}).status == [413]
    long = Stream(registered(), 100, {HEADER: "secret", "content-length": "6553600"})
    assert (long.status, long.read) == ([200], 6_553_600)
    assert Stream(registered(), 100, {HEADER: "guess"}).status == [413]
