"""Flower's SuperLink, in a process of its own that ends with the one that started it.

`python -m sordino.flower.link` is that process. It listens on one port, with TLS, behind a guard: sites reach the Fleet
API only, where each authenticates with its key. Requests that start runs, register nodes or claim the server's task
need a secret that only the starting process knows. Apps that others submit are refused, and none would be run: the
SuperLink starts no process.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

from sordino.deploy.protocol.versions import SPOKEN, is_understood
from sordino.errors import UserError
from sordino.flower import QUIET, keys
from sordino.util.files import keep_rotating, rotate

HEADER = "x-sordino-operator"
VERSION_HEADER = "x-sordino-version"
"""Header in which a site and the server tell each other protocol and version when they connect."""
REFUSED = "This server is for the sites of its roster."
OTHER_PROTOCOL = "Site and server have versions of Sordino that do not understand each other."
TOO_LARGE = "The request is larger than a site's answer may be."
FLEET, HEALTH = "/v1/fleet/", "/health"
"""Paths that are open to sites."""
ACTIVATES = f"{FLEET}activate-node"
"""Path at which a site connects."""
OUTDATED = "/outdated"
"""Path at which the operator learns which sites with another protocol wanted to connect."""
MOST_OUTDATED = 1000
STARTS_RUN = "/v1/control/start-run"
"""Path that the operator requests when all sites are registered."""
START_SECONDS = 120.0
STOP_SECONDS = 10.0
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class LinkError(UserError):
    """The SuperLink did not start, or ended early."""


class Guard:
    """Middleware that admits requests to sites' paths, once sites are registered, and those with the operator's secret.

    No more than `max_request_bytes` of a request without the secret are read: its sender is not authenticated yet.
    """

    def __init__(self, app: Application, secret: str, max_request_bytes: int) -> None:
        self.app, self.secret, self.max_request_bytes = app, secret.encode(), max_request_bytes
        self.registered = False
        self.outdated: dict[str, str | None] = {}
        """Unchecked self-descriptions of sites with another protocol, by the key that each showed."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or answer it with a refusal."""
        send = _telling_version(send) if scope.get("path") == ACTIVATES else send
        status = self._refusal(scope)
        if status is not None:
            if scope["type"] == "http":
                await _refuse(send, status)
        elif scope.get("path") == OUTDATED:
            await _answer(send, httpx.codes.OK, self.outdated)
        elif scope["type"] == "lifespan" or self._is_operator(scope):
            await self.app(scope, receive, send)
            self.registered |= scope.get("path") == STARTS_RUN
        else:
            body = _CappedBody(receive, send, self.max_request_bytes)
            await self.app(scope, body.receive, body.send)

    def _refusal(self, scope: Scope) -> int | None:
        """HTTP status with which a request is refused; None where it may pass."""
        if scope["type"] == "lifespan":
            return None
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == HEALTH or path.startswith(FLEET) or self._is_operator(scope)):
            return httpx.codes.FORBIDDEN
        if path.startswith(FLEET) and not self.registered:
            return httpx.codes.SERVICE_UNAVAILABLE
        if path == ACTIVATES and not self._understands(scope):
            return httpx.codes.UPGRADE_REQUIRED
        lengths = [value for name, value in scope.get("headers", ()) if name == b"content-length"]
        too_long = any(not value.isdigit() or int(value) > self.max_request_bytes for value in lengths)
        return httpx.codes.REQUEST_ENTITY_TOO_LARGE if too_long and not self._is_operator(scope) else None

    def _understands(self, scope: Scope) -> bool:
        """Whether a site that connects has the protocol of this server; one that has not is noted for the operator."""
        spoken = _header(scope, VERSION_HEADER)
        if is_understood(spoken):
            return True
        if len(self.outdated) < MOST_OUTDATED:
            self.outdated[_header(scope, FLEET_HTTP_PUBLIC_KEY_HEADER) or ""] = spoken
        return False

    def _is_operator(self, scope: Scope) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name == HEADER.encode()]
        return len(given) == 1 and hmac.compare_digest(given[0], self.secret)


def _header(scope: Scope, wanted: str) -> str | None:
    """First value of a request's header, at most 1,000 bytes of it; None where it has none."""
    for name, value in scope.get("headers", ()):
        if name == wanted.encode():
            return str(value[:1000].decode("latin-1"))
    return None


def _telling_version(send: Any) -> Any:
    """Function that sends an answer with the server's protocol and version in a header."""

    async def sends(event: Any) -> None:
        if event["type"] == "http.response.start":
            told = (VERSION_HEADER.encode(), SPOKEN.encode())
            event = {**event, "headers": [*event.get("headers", ()), told]}
        await send(event)

    return sends


async def _refuse(send: Any, status: int) -> None:
    """Answer a request with a refusal; nothing more of the request is read."""
    told = {httpx.codes.REQUEST_ENTITY_TOO_LARGE: TOO_LARGE, httpx.codes.UPGRADE_REQUIRED: OTHER_PROTOCOL}
    await _answer(send, status, {"detail": told.get(httpx.codes(status), REFUSED)})


async def _answer(send: Any, status: int, content: Any) -> None:
    """Answer a request with JSON."""
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})


class _CappedBody:
    """Reads at most `max_request_bytes` of a request's body, whatever length it announced, and refuses a longer one."""

    def __init__(self, receive: Any, send: Any, max_request_bytes: int) -> None:
        self._receive, self._send, self._left = receive, send, max_request_bytes
        self._started = self._refused = False

    async def receive(self) -> Any:
        """Next part of the body. For a body that is too long, the application sees a disconnected client."""
        if self._refused:
            return {"type": "http.disconnect"}
        event = await self._receive()
        self._left -= len(event.get("body", b""))
        if self._left >= 0:
            return event
        self._refused = True
        if not self._started:
            await _refuse(self._send, httpx.codes.REQUEST_ENTITY_TOO_LARGE)
        return {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        """Send the application's answer, unless the request was refused."""
        self._started = True
        if not self._refused:
            await self._send(event)


class Link:
    """The SuperLink of one run."""

    def __init__(self, folder: Path, host: str, port: int, work: Path, max_request_bytes: int) -> None:
        """Describe a SuperLink; `start` starts it.

        Args:
            folder: Folder with the server's keys.
            host: Address at which it listens.
            port: Port at which it listens.
            work: Folder for its log and Flower's files.
            max_request_bytes: Number of bytes of a site's request that are read.
        """
        self.folder, self.port, self.log = folder, port, work / "link.log"
        self.secret = secrets.token_hex(32)
        connect = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
        self.address = f"[{connect}]:{port}" if ":" in connect else f"{connect}:{port}"
        self.trust = keys.tls_context(
            folder / keys.AUTHORITY, any_name=True
        )  # it runs on this machine, so its name does not matter
        reach_directly(connect)
        self._host = host
        self._options = {
            **{"host": host, "port": port, "folder": str(folder.resolve()), "secret": self.secret},
            **{"max_request_bytes": max_request_bytes, "log": str(self.log.resolve())},
        }
        self._work = work
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process without waiting for it."""
        check_free(self._host, self.port)
        environment = os.environ | QUIET | {"FLWR_LOG_LEVEL": "INFO", "FLWR_HOME": str((self._work / "home").resolve())}
        environment |= {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "sordino.flower.link"]
        rotate(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._options) + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until the SuperLink answers."""
        until = time.monotonic() + START_SECONDS
        with httpx.Client(verify=self.trust, timeout=5.0) as client:
            while time.monotonic() < until:
                self.check()
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"https://{self.address}/health").status_code == httpx.codes.OK:
                        return
                time.sleep(0.1)
        raise LinkError(f"The SuperLink did not answer within {START_SECONDS:.0f} s; its log {self.log} says why.")

    def check(self) -> None:
        """Raise `LinkError` where the process has ended."""
        if self._process is None or self._process.poll() is not None:
            raise LinkError(f"The SuperLink has ended; its log {self.log} says why.")

    def stop(self) -> None:
        """End the process and wait for it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()  # it ends when its input is closed
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def release_after_fork(self) -> None:
        """Close, in a forked process, the pipe that would keep the SuperLink alive."""
        if self._process is not None and self._process.stdin is not None:
            os.close(self._process.stdin.fileno())
            self._process = None


def reach_directly(host: str) -> None:
    """Keep this process's requests to a host from the proxy that the environment may name: the SuperLink is on this
    machine."""
    for name in ("no_proxy", "NO_PROXY"):
        before = os.environ.get(name, "")
        if host not in before.split(","):
            os.environ[name] = f"{before},{host}" if before else host


def check_free(host: str, port: int) -> None:
    """Refuse an address that is in use, or does not belong to this machine."""
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(family[4])
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(
            f"The server cannot listen at {host}:{port}: {why}; give another address with --address."
        ) from error


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Run the SuperLink with options from a line of JSON on standard input; exit when the input ends."""
    options = json.loads(sys.stdin.readline())

    def follow() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    keep_rotating(Path(options["log"]))
    import anyio.to_thread
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    from sordino.flower.handlers import THREADS, MessageHandlers

    @contextlib.asynccontextmanager
    async def enough_threads(_: Any) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield

    extensions.get_middleware = lambda: (
        Middleware(Guard, secret=options["secret"], max_request_bytes=options["max_request_bytes"]),
    )
    extensions.get_lifespan_contexts = lambda: (enough_threads,)
    MessageHandlers().install()
    folder = Path(options["folder"])
    sys.argv = [
        "flower-superlink",
        *("--isolation", "process"),
        "--enable-supernode-auth",
        *("--host", options["host"], "--port", str(options["port"])),
        *("--ssl-certfile", str(folder / keys.CERTIFICATE)),
        *("--ssl-keyfile", str(folder / keys.CERTIFICATE_KEY)),
        *("--ssl-ca-certfile", str(folder / keys.AUTHORITY)),
    ]
    flower_superlink()


if __name__ == "__main__":
    main()
