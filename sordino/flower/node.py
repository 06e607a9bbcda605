"""A site's end of the SuperLink: fetches messages, passes them to the site's `answer`, and returns its replies.

The site never listens: it asks the server for messages, and works on one at a time. Foreign messages and failures are
answered with a fixed sentence, because Flower would send the text of an exception to the server.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx
import torch
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from sordino.deploy.monitor import SITE, Monitor, answering
from sordino.deploy.protocol.versions import SPOKEN, is_understood, upgrade_advice, version_in
from sordino.deploy.site.site import Site
from sordino.errors import UserError
from sordino.flower import keys
from sordino.flower.link import ACTIVATES, VERSION_HEADER
from sordino.flower.messages import TRANSIENT_STATUS, is_untrusted, retry, to_send, unwrap, wrap
from sordino.flower.serving import parse_address
from sordino.version import VERSION

HEARTBEAT_SECONDS = 10.0
"""Shortest interval that Flower accepts; after two without a heartbeat the server counts a node as gone."""
REFUSED_SECONDS = 40.0
"""Seconds for which to retry when the server refuses a node: after a crash it counts the earlier connection as alive
for twenty seconds."""
FIRST_POLL, GROWTH = 0.05, 1.15
SLOWEST_POLL = 1.0
"""Longest pause between two requests of an idle site, in seconds."""
RETRY_SECONDS = 2.0
SKEW_SECONDS = 4.0
"""Seconds that a site's clock may be ahead of the server's before the site is told; Flower accepts 5."""
NOT_OURS = Error(
    code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    reason=f"This site runs no Flower apps, only Sordino {VERSION}; an earlier server of Sordino must be upgraded.",
)
Tell = Callable[[str], None]


class NotAdmittedError(UserError):
    """The server does not admit this site."""


class ConnectionLostError(Exception):
    """The connection is lost, or the server has forgotten this node; connect again."""


@dataclass(frozen=True)
class ServerAddress:
    """Address of a server, and the authority that a site trusts for it."""

    address: str
    """Host and port, as in fl.example.org:8000."""
    authority: Path
    """Certificate file of the authority that issued the server's certificate."""


class _Versions:
    """Tells the server this site's protocol and version, and keeps what the server tells."""

    def __init__(self) -> None:
        self.server: str | None = None
        """Protocol and version of the server; None where it told none when the site connected."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request with the version, and keep that of the server."""
        context.request.headers[VERSION_HEADER] = SPOKEN
        response = call_next(context)
        if context.request.url.path == ACTIVATES:
            self.server = response.headers.get(VERSION_HEADER)
        return response


class _CertificateKeeper:
    """Keeps the certificate that the server shows, whatever proxy is in between."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._kept = folder, False

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request, and keep the certificate of the first connection."""
        response = call_next(context)
        stream = response.extensions.get("network_stream")
        secured = None if self._kept or stream is None else stream.get_extra_info("ssl_object")
        shown = None if secured is None else secured.getpeercert(True)  # in DER
        if shown is not None:
            keys.keep_certificate(self._folder, shown)
            self._kept = True
        return response


class Connection:
    """A site's connection to the SuperLink, from activation to deactivation."""

    def __init__(self, server: ServerAddress, folder: Path) -> None:
        self.server = server
        self.versions = _Versions()
        key = keys.node_key(folder)
        self._public = public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient(
            f"https://{server.address}",
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
                _CertificateKeeper(folder),
                self.versions,
            ],
            verify=keys.tls_context(server.authority),
        )
        self._node = Node()
        self._ending = threading.Event()
        self._beating: threading.Thread | None = None

    def activate(self) -> None:
        """Connect this node, and start its heartbeats."""
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_SECONDS)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def receive(self) -> Message | None:
        """Next message for this site; None where there is none."""
        answer = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        return message_from_proto(answer.messages_list[0])

    def reply(self, message: Message) -> None:
        """Send a reply, with retries."""
        head, tree = to_send(message)
        request = PushMessagesRequest(
            node=self._node, messages_list=[head], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )  # no durations: how long a site works depends on its data
        retry(lambda: self._client.PushMessages(request), REFUSED_SECONDS)

    def close(self) -> None:
        """Tell the server that this node leaves, if the server can be reached."""
        self._ending.set()
        if self._beating is not None:
            self._beating.join()
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def _beat(self) -> None:
        """Send heartbeats to the server until the connection is closed."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_SECONDS)
        while not self._ending.wait(HEARTBEAT_SECONDS / 2):
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self._client.SendNodeHeartbeat(request)


def take_part(
    answer: Callable[[bytes], bytes],
    server: ServerAddress,
    folder: Path,
    tell: Tell,
    stop: Callable[[], bool] = lambda: False,
    max_pause: float = SLOWEST_POLL,
    monitor: Monitor | None = None,
) -> None:
    """Connect and answer the server's messages until `stop` returns true; reconnect when the connection is lost.

    Args:
        answer: Answers a message, as `Site.answer` does.
        server: The server to connect to.
        folder: The site's folder, with the key of its connection.
        tell: Shows a sentence to the site's owner.
        stop: Whether to end.
        max_pause: Longest pause between two requests for messages, in seconds.
        monitor: Counts connections and messages.
    """
    monitor = Monitor(SITE) if monitor is None else monitor
    told = _TellOnce(tell)
    while not stop():
        connection = _connect(server, folder, told, stop)
        if connection is None:
            return
        told(f"Connected to {server.address}.")
        if not is_understood(connection.versions.server):
            told(_explain_versions(server, connection))
        monitor.add("sordino_site_connections_total")
        monitor.set("sordino_site_connected", 1)
        monitor.set("sordino_certificate_expiry_seconds", keys.shown_expiry(folder))
        for sentence in keys.warnings_for_site(folder):
            told(sentence)
        try:
            _answer_messages(connection, answer, stop, max_pause, monitor)
        except ConnectionLostError:
            told(f"The connection to {server.address} is lost: trying to connect again.")
        finally:
            monitor.set("sordino_site_connected", 0)
            connection.close()


def _answer_messages(
    connection: Connection,
    answer: Callable[[bytes], bytes],
    stop: Callable[[], bool],
    max_pause: float,
    monitor: Monitor,
) -> None:
    """Answer messages one by one until `stop` returns true."""
    pause = FIRST_POLL
    while not stop():
        asked = time.monotonic()
        try:
            message = connection.receive()
            if message is not None:
                connection.reply(_reply(message, answer))
                monitor.add("sordino_site_messages_total")
                pause = FIRST_POLL
                continue
        except (httpx.HTTPError, ValueError) as error:
            if not _keeps_connection(error):
                raise ConnectionLostError from error
        time.sleep(max(0.0, pause - (time.monotonic() - asked)))  # the server may have held the request
        pause = min(GROWTH * pause, max_pause)


def _reply(message: Message, answer: Callable[[bytes], bytes]) -> Message:
    content = unwrap(message)
    if content is None:
        return Message(NOT_OURS, reply_to=message)
    return Message(wrap(answer(content)), reply_to=message)


def _keeps_connection(error: Exception) -> bool:
    """Whether a failed request leaves the connection usable, as when the run of a message has ended."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code != httpx.codes.UNAUTHORIZED


def _connect(server: ServerAddress, folder: Path, told: _TellOnce, stop: Callable[[], bool]) -> Connection | None:
    """Connect, with retries, until the server admits this site; None where `stop` returned true first."""
    refused_until: float | None = None
    while not stop():
        connection = Connection(server, folder)
        try:
            connection.activate()
            return connection
        except (httpx.HTTPError, ValueError) as error:
            connection.close()
            if isinstance(error, httpx.TransportError) and is_untrusted(error):
                raise NotAdmittedError(_explain_untrusted(server, str(error))) from error
            if _is_transient(error):
                told(f"The server {server.address} does not answer: trying until it does. Ctrl-C ends this.")
                refused_until = None
                _wait(RETRY_SECONDS, stop)
                continue
            if _is_of_other_version(error):
                raise NotAdmittedError(_explain_versions(server, connection)) from error
            late = _explain_clock_skew(error)
            if late is not None:
                raise NotAdmittedError(late) from error
            now = time.monotonic()
            refused_until = refused_until or now + REFUSED_SECONDS
            if now > refused_until:
                raise NotAdmittedError(
                    f"The server at {server.address} does not accept this site's key: its operator adds the site with "
                    f"`sordino serve add {folder.name}.pub` and starts `sordino serve` again. If the site takes part "
                    "from another process or machine already, end that one first."
                ) from error
            told(f"The server {server.address} does not admit this site yet: trying for {REFUSED_SECONDS:.0f} s.")
        _wait(1.0, stop)
    return None


def _is_transient(error: Exception) -> bool:
    """Whether a request failed because the server cannot be reached or is not ready yet."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in TRANSIENT_STATUS
    return isinstance(error, httpx.TransportError)


def _is_of_other_version(error: Exception) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UPGRADE_REQUIRED


def _explain_versions(server: ServerAddress, connection: Connection) -> str:
    """Sentence on a server with another protocol, and who must upgrade."""
    advice = upgrade_advice(VERSION, version_in(connection.versions.server))
    return f"The server {server.address} and this site do not understand each other. {advice}"


def _explain_untrusted(server: ServerAddress, why: str) -> str:
    """Sentence on a server's certificate that a site does not trust; `why` is the text of TLS's error."""
    if "mismatch" in why or "not valid for" in why:
        return (
            f"The server's certificate is not valid for {server.address}: connect to a name that its operator gave to "
            "`sordino serve init --host`."
        )
    if "expired" in why or "not yet valid" in why:
        return (
            f"The certificate of {server.address} has expired, or this machine's clock is wrong. The operator renews "
            "the certificate with `sordino serve renew`."
        )
    return (
        f"The server at {server.address} is not certified by {server.authority}: ask its operator for the server's "
        "ca.pem, and do not connect before you have it."
    )


def _explain_clock_skew(error: Exception) -> str | None:
    """Sentence on clocks of site and server that differ too much for Flower; None where that is not the cause."""
    if not isinstance(error, httpx.HTTPStatusError) or error.response.status_code != httpx.codes.UNAUTHORIZED:
        return None
    with contextlib.suppress(KeyError, TypeError, ValueError):
        there = email.utils.parsedate_to_datetime(error.response.headers["date"])
        ahead = (datetime.datetime.now(datetime.UTC) - there).total_seconds()
        if ahead > SKEW_SECONDS or ahead < -60:
            side = "ahead of" if ahead > 0 else "behind"
            return (
                f"This machine's clock is {abs(ahead):.0f} s {side} the server's: the server accepts at most 5 s ahead "
                "and 5 min behind. Set the clocks (NTP) and join again."
            )
    return None


def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop():
        time.sleep(0.1)


class _TellOnce:
    """Shows a sentence unless it was the last one shown."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._last = tell, ""

    def __call__(self, sentence: str) -> None:
        if sentence != self._last:
            self._last = sentence
            self._tell(sentence)


def join(
    folder: Path,
    address: str,
    authority: Path,
    threads: int,
    tell: Callable[[str], None],
    watched_at: tuple[str, int] | None = None,
) -> None:
    """Open a site and take part until Ctrl-C or SIGTERM.

    The first signal lets the site finish the message it works on; the second ends it at once, which loses nothing
    either.

    Args:
        folder: The site's folder.
        address: Host and port of the server.
        authority: Certificate file of the server's authority, `ca.pem`.
        threads: Number of threads for training.
        tell: Shows a sentence to the site's owner.
        watched_at: Host and port at which health and metrics are answered; None for nowhere.
    """
    parse_address(address)
    keys.tls_context(authority)
    if not folder.is_dir():
        raise UserError(f"There is no site in {folder}: `sordino site init` makes one.")
    keys.node_key(folder)
    torch.set_num_threads(threads)
    leaving = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        if leaving.is_set():
            raise KeyboardInterrupt
        leaving.set()
        tell("The site leaves when its work at hand is done; the same signal again ends it at once.")

    site = Site.open(folder)
    site.context.tell = tell
    for sentence in site.notices:
        tell(sentence)
    if site.context.policy.roster is None:
        tell(
            "No roster is pinned in site.toml: other sites' noise is not counted, so the budget is used up sooner, and "
            "no other site can confirm this one's ledger."
        )
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    monitor = Monitor(SITE)
    try:
        with answering(monitor, watched_at):
            take_part(site.answer, ServerAddress(address, authority), folder, tell, leaving.is_set, monitor=monitor)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        site.close()
    tell(f"The site {site.name} has left.")
