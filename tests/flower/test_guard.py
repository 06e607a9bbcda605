"""The guard in front of the SuperLink, alone."""

from __future__ import annotations

import asyncio
from typing import Any

from sordino.flower.link import HEADER, STARTS_RUN, Guard


def asked(guard: Guard, path: str, secret: str | None = None, kind: str = "http") -> int:
    """The status with which a request is answered; 200 is the app's."""
    told: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        told.append(event)

    headers = [] if secret is None else [(HEADER.encode(), secret.encode())]
    asyncio.run(guard({"type": kind, "path": path, "headers": headers}, None, send))
    return int(told[0]["status"]) if told else 0


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def test_sites_are_let_in_when_all_of_them_are_registered():
    guard = Guard(app, "secret")
    assert asked(guard, "/health") == 200
    assert asked(guard, "/v1/fleet/activate-node") == 503
    assert asked(guard, STARTS_RUN) == 403
    assert asked(guard, "/v1/fleet/activate-node") == 503
    assert asked(guard, "/v1/control/register-node", "secret") == 200
    assert asked(guard, "/v1/fleet/activate-node", "secret") == 503
    assert asked(guard, STARTS_RUN, "secret") == 200
    assert asked(guard, "/v1/fleet/activate-node") == 200


def test_everything_else_needs_the_secret():
    guard = Guard(app, "secret")
    for path in ("/", "/docs", "/v1/runtime/acquire-task", "/v1/control/stop-run", "/v1/fleet", "/healthy"):
        assert asked(guard, path) == 403
        assert asked(guard, path, "guess") == 403
        assert asked(guard, path, "secret") == 200
    assert asked(guard, "/v1/fleet/x", "secret", "websocket") == 0
