"""A site's end: connects to the server's SuperLink, takes what is for this site to its `answer`, brings back the bytes.

The site never listens: it asks the server for messages. One message is worked on at a time. Whatever is no message of
ours, and whatever fails, is answered with a fixed sentence: Flower would send an exception's text to the server.
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
from typing import Any

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
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from sordino.deploy.site.site import Site
from sordino.errors import UserError
from sordino.flower import keys
from sordino.flower.messages import (
    TRANSIENT_STATUS,
    MissingObjectError,
    is_untrusted,
    pull_message,
    push_message,
    retry,
    unwrap,
    wrap,
)
from sordino.flower.serving import parse_address

HEARTBEAT_SECONDS = 10.0
"""The shortest interval that Flower takes; after two without a sign the server counts a node as gone."""
REFUSED_SECONDS = 40.0
"""How long a server may refuse a node: after a crash it counts the earlier connection as alive for twenty seconds."""
FIRST_POLL, GROWTH = 0.05, 1.15
SLOWEST_POLL = 1.0
"""How long a site that has nothing to do waits between questions, in seconds."""
RETRY_SECONDS = 2.0
SKEW_SECONDS = 4.0
NOT_OURS = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="This site runs no apps: it takes part in Sordino.")
Tell = Callable[[str], None]


class NotAdmittedError(UserError):
    """The server will not have this site."""


class ConnectionLostError(Exception):
    """The connection is gone, or the server has forgotten this node: connect again."""


@dataclass(frozen=True)
class ServerAddress:
    """Where a site connects to."""

    address: str
    """Host and port."""
    authority: Path
    """The certificate of the authority that vouches for it."""

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Host and port apart."""
        host, _, port = self.address.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


class Connection:
    """A site's connection to the SuperLink, from activation to deactivation."""

    def __init__(self, server: ServerAddress, folder: Path) -> None:
        self.server = server
        key = keys.node_key(folder)
        self._public = public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient(
            f"https://{server.address}",
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
            verify=keys.tls_context(server.authority),
        )
        self._node = Node()
        self._ending = threading.Event()
        self._beating: threading.Thread | None = None

    def activate(self) -> None:
        """Make the server count this node as connected."""
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_SECONDS)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def receive(self) -> Message | None:
        """The next message for this site, if there is one."""
        answer = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        head = message_from_proto(answer.messages_list[0])
        return pull_message(self._client, self._node, head.metadata.run_id, answer.message_object_trees[0])

    def reply(self, message: Message) -> None:
        """Send a reply; while it cannot be sent, try again."""

        def request(head: Any, tree: Any) -> PushMessagesRequest:
            return PushMessagesRequest(
                node=self._node, messages_list=[head], message_object_trees=[tree], clientapp_runtime_list=[0.0]
            )  # no times: how long a site works tells of its data

        retry(lambda: push_message(self._client, self._node, message, request), REFUSED_SECONDS)

    def close(self) -> None:
        """Tell the server that this node leaves, if it can be told."""
        self._ending.set()
        if self._beating is not None:
            self._beating.join()
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def _beat(self) -> None:
        """Tell the server that this node is alive, while it works."""
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
) -> None:
    """Connect, and answer what the server asks, until `stop`; a lost connection is made again."""
    told = _TellOnce(tell)
    while not stop():
        connection = _connect(server, folder, told, stop)
        if connection is None:
            return
        told(f"Connected to {server.address}.")
        keys.keep_certificate(folder, *server.host_and_port, server.authority)
        for sentence in keys.warnings_for_site(folder):
            told(sentence)
        try:
            _answer_messages(connection, answer, stop, max_pause)
        except ConnectionLostError:
            told(f"The connection to {server.address} is lost.")
        finally:
            connection.close()


def _answer_messages(
    connection: Connection, answer: Callable[[bytes], bytes], stop: Callable[[], bool], max_pause: float
) -> None:
    """Answer messages, one after the other."""
    pause = FIRST_POLL
    while not stop():
        try:
            message = connection.receive()
            if message is not None:
                connection.reply(_reply(message, answer))
                pause = FIRST_POLL
                continue
        except MissingObjectError:
            pass  # the server has given the message up
        except (httpx.HTTPError, ValueError) as error:
            if not _keeps_connection(error):
                raise ConnectionLostError from error
        time.sleep(pause)
        pause = min(GROWTH * pause, max_pause)


def _reply(message: Message, answer: Callable[[bytes], bytes]) -> Message:
    content = unwrap(message)
    if content is None:
        return Message(NOT_OURS, reply_to=message)
    return Message(wrap(answer(content)), reply_to=message)


def _keeps_connection(error: Exception) -> bool:
    """Whether a request failed in a way that leaves the connection as it was: the run of a message may have ended."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code != httpx.codes.UNAUTHORIZED


def _connect(server: ServerAddress, folder: Path, told: _TellOnce, stop: Callable[[], bool]) -> Connection | None:
    """A connection, once the server lets this site in; None where `stop` came first."""
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
                told(f"{server.address} does not answer: trying until it does. Ctrl-C ends this.")
                refused_until = None
                _wait(RETRY_SECONDS, stop)
                continue
            late = _explain_clock_skew(error)
            if late is not None:
                raise NotAdmittedError(late) from error
            now = time.monotonic()
            refused_until = refused_until or now + REFUSED_SECONDS
            if now > refused_until:
                raise NotAdmittedError(
                    f"The server at {server.address} does not take this site's key: its operator adds the site with "
                    f"`sordino serve add {folder.name}.pub` and starts `sordino serve` again. If the site takes part "
                    "from another process or machine already, end that one first."
                ) from error
            told(f"{server.address} does not let this site in yet: trying for {REFUSED_SECONDS:.0f} s.")
        _wait(1.0, stop)
    return None


def _is_transient(error: Exception) -> bool:
    """Whether a server cannot be reached, or is not ready yet."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in TRANSIENT_STATUS
    return isinstance(error, httpx.TransportError)


def _explain_untrusted(server: ServerAddress, why: str) -> str:
    if "mismatch" in why or "not valid for" in why:
        return (
            f"The server's certificate is not for {server.address}: connect under a name that its operator gave to "
            "`sordino serve init --host`."
        )
    if "expired" in why or "not yet valid" in why:
        return (
            f"The certificate of {server.address} has run out, and its operator makes a new one with `sordino serve "
            "renew`; or this machine's clock is wrong."
        )
    return (
        f"The server at {server.address} is not vouched for by {server.authority}: ask its operator for the server's "
        "ca.pem, and do not connect before you have it."
    )


def _explain_clock_skew(error: Exception) -> str | None:
    """A sentence where the clocks of site and server differ too much for Flower."""
    if not isinstance(error, httpx.HTTPStatusError) or error.response.status_code != httpx.codes.UNAUTHORIZED:
        return None
    with contextlib.suppress(KeyError, TypeError, ValueError):
        there = email.utils.parsedate_to_datetime(error.response.headers["date"])
        ahead = (datetime.datetime.now(datetime.UTC) - there).total_seconds()
        if ahead > SKEW_SECONDS or ahead < -60:
            side = "ahead of" if ahead > 0 else "behind"
            return (
                f"This machine's clock is {abs(ahead):.0f} s {side} the server's: at most 5 s ahead and 5 min behind "
                "are taken. Set the clocks (NTP) and join again."
            )
    return None


def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop():
        time.sleep(0.1)


class _TellOnce:
    """Tells each sentence once, until another has been told."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._last = tell, ""

    def __call__(self, sentence: str) -> None:
        if sentence != self._last:
            self._last = sentence
            self._tell(sentence)


def join(folder: Path, address: str, authority: Path, threads: int, tell: Callable[[str], None]) -> None:
    """Open a site and take part until Ctrl-C or SIGTERM.

    The first one lets the site finish what it is at; the second one ends it at once, which loses nothing either.
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
        tell("Leaving when the work at hand is done; once more ends it at once.")

    site = Site.open(folder)
    site.context.tell = lambda text: tell(f"{time.strftime('%H:%M:%S')} {text}")
    for sentence in site.notices:
        tell(sentence)
    if site.context.policy.roster is None:
        tell(
            "No roster is pinned in site.toml: nobody else's noise is counted on, so that the budget lasts less long, "
            "and no other site can confirm this one's ledger."
        )
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        take_part(site.answer, ServerAddress(address, authority), folder, tell, leaving.is_set)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        site.close()
    tell(f"The site {site.name} has left.")
