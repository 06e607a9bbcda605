"""A server and three sites as services for a while, as fast as they can: proxies in between, kills, a renewal, logs."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_deployment import KEYS, SITES, _after_first_round, _rounds, prepared, related, running, until

from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.status import status
from sordino.experiment.config import Experiment
from sordino.flower import keys, serving
from sordino.flower.link import free_port
from sordino.util.files import LOG_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROUNDS = 40
GROWTH = 1.25
"""Times by which memory may grow from the tenth round to the last."""


def pump(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either end closes."""
    with one, other, contextlib.suppress(OSError):
        while True:
            for ready in select.select([one, other], [], [])[0]:
                content = ready.recv(2**16)
                if not content:
                    return
                (other if ready is one else one).sendall(content)


@contextlib.contextmanager
def proxy(to: tuple[str, int] | None) -> Iterator[tuple[int, list[str]]]:
    """A proxy of TCP to an address; without one a proxy that is told where to connect. Yields its port and what it was
    asked for."""
    listening, seen = socket.create_server(("127.0.0.1", 0)), []

    def serve(client: socket.socket) -> None:
        where = to
        with contextlib.suppress(OSError, ValueError):
            if where is None:
                line = client.recv(2**16).decode("latin-1").splitlines()[0]
                seen.append(line)
                host, _, port = line.split()[1].rpartition(":")
                where = (host, int(port))
            else:
                seen.append("")
            server = socket.create_connection(where)
            if to is None:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            pump(client, server)
        client.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1], seen
    finally:
        listening.close()


def metrics(port: int) -> dict[str, float]:
    """What a service tells of itself; nothing where it does not answer."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        lines = [line.rpartition(" ") for line in reply.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}
    return {}


def memory(process: int) -> int:
    """Bytes of a process that are its own and in memory."""
    text = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(text.split("RssAnon:")[1].split()[0])


def lines(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON in a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory as Linux tells it")
def test_services_go_on_through_kills_renewals_and_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, port, watched = Experiment.make(KEYS | {"rounds": ROUNDS}), free_port(), free_port()
    _, folders, serve = prepared(tmp_path, original, port)
    serve = (*serve, "--take-up", "--log-json", "--monitor", f"127.0.0.1:{watched}")
    authority = str(tmp_path / "server" / keys.AUTHORITY)
    before = keys.server_expiry(tmp_path / "server")
    with contextlib.ExitStack() as stack:
        tcp, carried = stack.enter_context(proxy(("127.0.0.1", port)))
        tunnel, asked = stack.enter_context(proxy(None))
        ports = [free_port() for _ in folders]

        def join(number: int) -> Any:
            """The first site reaches the server through a proxy of the environment, the others through one of TCP."""
            where = port if number == 0 else tcp
            with monkeypatch.context() as context:
                if number == 0:
                    context.setenv("HTTPS_PROXY", f"http://127.0.0.1:{tunnel}")
                    context.delenv("NO_PROXY", raising=False)
                    context.delenv("no_proxy", raising=False)
                context.setenv("SORDINO_SERVER", f"localhost:{where}")
                context.setenv("SORDINO_CA", authority)
                options = ("--log-json", "--monitor", f"127.0.0.1:{ports[number]}")
                return stack.enter_context(running(tmp_path, "join", str(folders[number]), *options))

        joined = [join(number) for number in range(SITES)]
        with running(tmp_path, *serve) as process:
            run = until(lambda: process.poll() is None and _after_first_round(tmp_path / "store"))
            until(lambda: metrics(watched).get("sordino_server_rounds_done", 0) > 1)
            assert metrics(watched)["sordino_server_sites_connected"] == SITES
            assert all(metrics(one)["sordino_site_connected"] == 1 for one in ports)
            assert all(metrics(one)["sordino_certificate_expiry_seconds"] == pytest.approx(before) for one in ports)
            process.send_signal(signal.SIGKILL)
        until(lambda: not any("flower.link" in one for one in related(tmp_path)))
        time.sleep(1.1)  # certificates count whole seconds
        serving.renew_certificate(tmp_path / "server", ["fl.example.org"])
        joined[1].send_signal(signal.SIGKILL)
        joined[1].wait(60)
        joined[1] = join(1)
        with running(tmp_path, *serve) as process:
            until(lambda: _rounds(tmp_path / "store", run) >= 10 or process.poll() is not None)
            used = {one.pid: memory(one.pid) for one in (process, *joined)}
            until(lambda: _rounds(tmp_path / "store", run) >= ROUNDS - 3 or process.poll() is not None)
            assert process.poll() is None, (tmp_path / "serve.log").read_text()
            grown = {one: memory(one) / used[one] for one in used}
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0, (tmp_path / "serve.log").read_text()
        assert json.loads(out)["run"] == run, "the same run, not another one that sites would pay for"
        assert max(grown.values()) < GROWTH, grown
        until(lambda: all(metrics(one)["sordino_certificate_expiry_seconds"] > before for one in ports))
        assert any(line.startswith("CONNECT localhost:") for line in asked)
        assert carried
        for one in joined:
            one.send_signal(signal.SIGTERM)
        assert [one.wait(60) for one in joined] == [0] * SITES
    assert related(tmp_path) == []
    told = lines(tmp_path / "serve.log")
    assert [one["round"] for one in told if one["event"] == "round"][-1] == ROUNDS
    assert f"Taking up the run {run}." in [one.get("text") for one in told]
    assert {one["service"] for one in lines(tmp_path / "join.log")} == {"site"}
    for folder in folders:
        assert [one["state"] for one in status(folder)["runs"]] == ["done"]
        assert all(path.stat().st_size < LOG_BYTES for path in folder.glob("*.log*"))
        assert (folder / "site.log").stat().st_size < 300 * ROUNDS + 5000, "one line a round, and a few more"
        with SiteLedger(folder) as ledger:
            asks = [tuple(one.content["ask"]) for one in ledger.entries() if one.kind == "release"]
        assert len(set(asks)) == len(asks)
    assert (tmp_path / "server" / "link.log").stat().st_size < LOG_BYTES
