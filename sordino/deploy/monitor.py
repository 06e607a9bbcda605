"""Health and metrics of a server or a site, for those who watch machines: `/health` and `/metrics` over HTTP.

Nothing here depends on anybody's records: no durations, no budgets, no refusals, no sizes. A metric says what whoever
watches the network may know anyway: who is connected, how many messages have gone to and fro, how many rounds are done.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from sordino.deploy.protocol.carrier import Carrier, Failure, Waiting
from sordino.errors import UserError
from sordino.federation.rounds import RoundReport, Watch
from sordino.version import VERSION

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus's text format."""


@dataclass(frozen=True)
class MonitoredMetric:
    """One number that is watched."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str


SITE = (
    MonitoredMetric("sordino_site_connected", "gauge", "Whether the site is connected to its server."),
    MonitoredMetric("sordino_site_connections_total", "counter", "Times that the site has connected."),
    MonitoredMetric(
        "sordino_site_messages_total", "counter", "Messages of the server that were answered, refusals included."
    ),
)
SERVER = (
    MonitoredMetric("sordino_server_sites", "gauge", "Sites that were added to the server."),
    MonitoredMetric(
        "sordino_server_sites_connected", "gauge", "Sites that were connected when the server last looked."
    ),
    MonitoredMetric("sordino_server_requests_total", "counter", "Requests to sites, repeated ones included."),
    MonitoredMetric("sordino_server_answers_total", "counter", "Answers of sites, refusals included."),
    MonitoredMetric("sordino_server_rounds_planned", "gauge", "Rounds of the run."),
    MonitoredMetric("sordino_server_rounds_done", "gauge", "Rounds of the run that are done."),
    MonitoredMetric("sordino_server_run_over", "gauge", "Whether the run is over."),
)
COMMON = (
    MonitoredMetric("sordino_start_time_seconds", "gauge", "Time at which this process began, in seconds since 1970."),
    MonitoredMetric(
        "sordino_certificate_expiry_seconds", "gauge", "Time at which the server's certificate expires; 0: unknown."
    ),
)


class Monitor:
    """Health and metrics of one process."""

    def __init__(self, metrics: Sequence[MonitoredMetric], is_healthy: Callable[[], bool] = lambda: True) -> None:
        """Watch `metrics` and those that all processes have; `is_healthy` says whether the process does its work."""
        self.metrics, self.is_healthy = (*metrics, *COMMON), is_healthy
        self._values = {metric.name: 0.0 for metric in self.metrics}
        self._lock = threading.Lock()
        self.set("sordino_start_time_seconds", time.time())

    @classmethod
    def of_server(cls, is_healthy: Callable[[], bool], sites: int, rounds: int, expiry: float) -> Monitor:
        """Watch a server.

        Args:
            is_healthy: Whether it does its work.
            sites: Number of sites that were added to it.
            rounds: Number of rounds of its run.
            expiry: Time at which its certificate expires, in seconds since 1970.
        """
        made = cls(SERVER, is_healthy)
        made.set("sordino_server_sites", sites)
        made.set("sordino_server_rounds_planned", rounds)
        made.set("sordino_certificate_expiry_seconds", expiry)
        return made

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[name] = float(value)

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._values[name] += amount

    def watching(self, watch: Watch) -> Watch:
        """Watch of a run that also counts its rounds."""
        return _CountedRounds(self, watch)

    def values(self) -> Mapping[str, float]:
        """Values of all metrics, by name."""
        with self._lock:
            return dict(self._values)

    def text(self) -> str:
        """Metrics in Prometheus's text format."""
        values = self.values()
        lines = [
            "# HELP sordino_info Version of Sordino.",
            "# TYPE sordino_info gauge",
            f'sordino_info{{version="{VERSION}"}} 1',
        ]
        for metric in self.metrics:
            lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
            lines.append(f"{metric.name} {values[metric.name]:.17g}")
        return "\n".join(lines) + "\n"

    def answer(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Status, content type and content for a path."""
        if path == "/metrics":
            return HTTPStatus.OK, TEXT_FORMAT, self.text()
        if path == "/health":
            healthy = self.is_healthy()
            status = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
            told = {"status": "ok" if healthy else "failing", "version": VERSION}
            return status, "application/json", json.dumps(told)
        return HTTPStatus.NOT_FOUND, "text/plain", "There are /health and /metrics.\n"


@dataclass(frozen=True)
class _CountedRounds:
    monitor: Monitor
    watch: Watch

    def __call__(self, report: RoundReport) -> None:
        self.monitor.set("sordino_server_rounds_done", report.round + 1)
        self.watch(report)

    def blending(self, done: int, clients: int) -> None:
        """Pass on that clients have blended their models."""
        self.watch.blending(done, clients)


@contextlib.contextmanager
def answering(monitor: Monitor, address: tuple[str, int] | None) -> Iterator[None]:
    """Answer `/health` and `/metrics` at an address until the end of the block; not at all where it is None."""
    if address is None:
        yield
        return

    class MetricsHandler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            """Answer a request."""
            status, kind, content = monitor.answer(self.path.partition("?")[0])
            body = content.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: who watches asks every few seconds."""

    host, port = address
    try:
        server = ThreadingHTTPServer((host, port), MetricsHandler)
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"Nothing can be answered at {host}:{port} ({why}): give another --monitor.") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class WatchedCarrier:
    """A carrier whose messages and nodes a monitor counts."""

    def __init__(self, carrier: Carrier, monitor: Monitor) -> None:
        self._carrier, self._monitor = carrier, monitor

    def nodes(self) -> Sequence[int]:
        """Nodes that can be reached now."""
        found = self._carrier.nodes()
        self._monitor.set("sordino_server_sites_connected", len(found))
        return found

    def trip(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Failure | Waiting]]:
        """Bring each node its request, and yield nodes with their answers or failures."""
        self._monitor.add("sordino_server_requests_total", len(requests))
        for node, reply in self._carrier.trip(requests, seconds):
            self._monitor.add("sordino_server_answers_total", isinstance(reply, bytes))
            yield node, reply
