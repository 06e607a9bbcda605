"""The server's end of the SuperLink: this process acts as the run's server, and carries bytes to the sites."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from sordino.deploy.protocol.carrier import Failure, Waiting
from sordino.deploy.protocol.versions import upgrade_advice, version_in
from sordino.flower import keys
from sordino.flower.link import HEADER, OUTDATED, Link, LinkError
from sordino.flower.messages import KIND, HeaderInterceptor, retry, to_send, unwrap, wrap
from sordino.version import VERSION

PROJECT = b"""[project]
name = "sordino"
version = "1.0.0"
description = "No code: the server and the sites bring their own."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "sordino"
[tool.flwr.app.components]
serverapp = "sordino:none"
clientapp = "sordino:none"
"""
"""App without code, which Flower demands for a run; nothing of it is ever loaded."""
HEARTBEAT_SECONDS = 10.0
POLL_SECONDS = 0.05
SLOWEST_POLL = 1.0
RETRY_SECONDS = 1.0
"""Seconds after a failure until a site is asked again; it may be back."""
CONNECTION_CHECK_SECONDS = 2.0
"""Seconds between two checks whether sites with a message under way have connected anew."""
WAITING_SECONDS = 5.0
"""Seconds for which a site may be unreachable before the operator is told."""
GONE_SECONDS = 60.0
"""Seconds for which a site may be unreachable before a trip gives it up."""
MARGIN_SECONDS = 10.0
"""Seconds by which a message outlives its trip: Flower fails when it is asked about an expired message."""
CALL_SECONDS = 60.0
LARGEST_PUSH = 2**26
"""Bytes of requests to sites that are sent to the SuperLink at a time, unless one alone is larger."""


class FlowerCarrier:
    """Carries bytes to sites and back, over a running SuperLink."""

    def __init__(self, link: Link, node_keys: Sequence[str], refused: Callable[[int, str], None] | None = None) -> None:
        """Start a run at a SuperLink.

        Args:
            link: The SuperLink.
            node_keys: Public keys with which sites may connect.
            refused: Called once with the place of a key in `node_keys`, and a sentence, where the site with this key
                has a version that cannot connect.
        """
        self._link, self._refused = link, refused
        shown = {base64.b64encode(keys.public_pem(text)).decode(): place for place, text in enumerate(node_keys)}
        self._unheard = shown
        """Places of keys, as sites show them, of sites that have not been refused for their version."""
        self._heads = HeaderInterceptor({HEADER: link.secret})
        self._control = ControlHttpClient(
            f"https://{link.address}",
            interceptors=[self._heads, RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            verify=link.trust,
        )
        self._plain = httpx.Client(verify=link.trust, headers={HEADER: link.secret}, timeout=CALL_SECONDS)
        self._connected: dict[int, str] = {}
        """Time at which each node last connected, as of the last check."""
        self._stopping = threading.Event()
        self._run = self._start_run(node_keys)
        self._client = self._runtime_client(RuntimeTokenHttpInterceptor(self._claim_task()))
        task = self._call(self._client.PullTaskInput, PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, self._run, SUPERLINK_NODE_ID
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def nodes(self) -> list[int]:
        """Nodes that are connected now."""
        self._tell_outdated()
        answer = self._call(self._client.GetNodes, GetNodesRequest())
        return [node.node_id for node in answer.nodes]

    def trip(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Failure | Waiting]]:
        """Carry a request to each node, and yield nodes with their answers or failures, for at most `seconds`."""
        trip = _Trip(requests, time.monotonic() + seconds, self._connected)
        pause = POLL_SECONDS
        while trip.waiting and time.monotonic() < trip.until:
            begun = time.monotonic()
            self._send(trip, seconds)
            answers = self._answers(trip)
            yield from answers
            if trip.sent and trip.is_check_due():
                trip.note_connections(self._connections())
            yield from trip.drop_lost()
            yield from trip.waited_for()
            pause = POLL_SECONDS if answers else min(1.1 * pause, SLOWEST_POLL)
            if trip.waiting and not answers:  # the SuperLink has held the request where there is something to wait for
                rest = min(begun + pause, trip.until) - time.monotonic()
                time.sleep(max(0.0, rest))
        for node in list(trip.waiting):
            yield node, Failure("it did not answer in time")

    def _tell_outdated(self) -> None:
        """Tell of sites whose versions cannot connect; whoever shows a site's key counts as that site."""
        if self._refused is None:
            return
        with contextlib.suppress(httpx.HTTPError, ValueError):
            told = self._plain.get(f"https://{self._link.address}{OUTDATED}").json()
            for key in self._unheard.keys() & told.keys():
                self._refused(self._unheard.pop(key), upgrade_advice(version_in(told[key]), VERSION))

    def is_alive(self) -> bool:
        """Whether the SuperLink's process is there."""
        try:
            self._link.check()
        except LinkError:
            return False
        return True

    def close(self) -> None:
        """Tell the SuperLink that the run is over, and close the connections to it."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._beating.join()
            with contextlib.suppress(httpx.HTTPError):
                self._client.PushTaskOutput(PushTaskOutputRequest(sub_status="completed", details=""))
            self._client.close()
            self._control.close()
            self._plain.close()

    # ---- starting

    def _start_run(self, node_keys: Sequence[str]) -> int:
        """Register the sites' keys and start a run; returns its number at the SuperLink."""
        for text in node_keys:
            self._call(self._control.RegisterNode, RegisterNodeRequest(public_key=keys.public_pem(text)))
        app, _ = build_fab_from_files({"pyproject.toml": PROJECT})
        answer = self._call(self._control.StartRun, StartRunRequest(fab=Fab(content=app)))
        if not answer.HasField("run_id"):
            raise LinkError(f"The SuperLink started no run; its log {self._link.log} says why.")
        run: int = answer.run_id
        return run

    def _claim_task(self) -> str:
        """Claim the task of the run's server; returns the token that authorizes it."""
        client = self._runtime_client()
        kinds = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        answer = self._call(client.AcquireTask, kinds)
        client.close()
        if not answer.token or answer.task.run_id != self._run:
            raise LinkError(
                f"The SuperLink did not hand over the task of its run; its log {self._link.log} may say why."
            )
        token: str = answer.token
        return token

    def _runtime_client(self, *more: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        return RuntimeHttpClient(
            f"https://{self._link.address}", interceptors=[self._heads, version, *more], verify=self._link.trust
        )

    def _beat(self) -> None:
        """Send heartbeats to the SuperLink until the carrier is closed."""
        while not self._stopping.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(httpx.HTTPError):
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    # ---- trips

    def _send(self, trip: _Trip, seconds: float) -> None:
        """Send the requests that are due, with a lifetime of `seconds` and a margin."""
        due = trip.due()
        if trip.needs_connections(due):
            trip.note_connections(self._connections())
        while due:
            request = PushAppMessagesRequest()
            nodes: list[int] = []
            while due and (not nodes or request.ByteSize() + len(trip.waiting[due[0]]) < LARGEST_PUSH):
                nodes.append(due.pop(0))
                message = Message(wrap(trip.waiting[nodes[-1]]), nodes[-1], KIND, ttl=seconds + MARGIN_SECONDS)
                head, tree = to_send(message)
                request.messages_list.append(head)
                request.message_object_trees.append(tree)
            answer = self._call(self._client.PushMessages, request)
            for node, name in zip(nodes, answer.message_ids, strict=True):
                if name:
                    trip.sent[name] = node
                else:
                    trip.note_failure(node, "it is not connected")

    def _answers(self, trip: _Trip) -> list[tuple[int, bytes | Failure]]:
        """Answers that have arrived since the last call; the SuperLink waits a while for the first of them."""
        found: list[tuple[int, bytes | Failure]] = []
        if not trip.sent:
            return found
        answer = self._call(self._client.PullMessages, PullAppMessagesRequest(message_ids=list(trip.sent)))
        for head in answer.messages_list:
            # Errors come from the SuperLink's own node: only the message they reply to shows whose they are.
            node = trip.sent.pop(head.metadata.reply_to_message_id, None)
            if node is None or node not in trip.waiting:
                continue
            content = unwrap(message_from_proto(head))
            if content is None:
                trip.note_failure(node, "it cannot be reached")
            else:
                del trip.waiting[node]
                found.append((node, content))
        return found

    def _connections(self) -> dict[int, str]:
        """Time at which each node last connected."""
        answer = self._call(self._control.ListNodes, ListNodesRequest())
        self._connected = {node.node_id: node.last_activated_at for node in answer.nodes_info}
        return self._connected

    def _call(self, call: Any, *arguments: Any) -> Any:
        """Make a request to the SuperLink, and retry it while the SuperLink fails transiently."""
        self._link.check()
        try:
            return retry(lambda: call(*arguments), CALL_SECONDS)
        except httpx.HTTPError as error:
            self._link.check()
            raise LinkError(f"The SuperLink refused a request: {error}; its log {self._link.log} says why.") from error


class _Trip:
    """State of a trip under way."""

    def __init__(self, requests: Mapping[int, bytes], until: float, connections: dict[int, str]) -> None:
        """Begin a trip.

        Args:
            requests: Request to each node.
            until: Monotonic time at which it ends.
            connections: Time at which each node last connected, as far as is known.
        """
        self.waiting = dict(requests)
        """Requests to the nodes that have not answered."""
        self.until = until
        self.sent: dict[str, int] = {}
        """Node of each message under way, by the message's name."""
        self._retry_at = dict.fromkeys(requests, 0.0)
        self._since: dict[int, float] = {}
        """Time since which each failing node has been failing."""
        self._why: dict[int, str] = {}
        self._told: set[int] = set()
        self._connections = connections
        """Time at which each node last connected, as of the last check, which may have been before this trip: a node
        that has connected anew since gets its message twice."""
        self._next_check = time.monotonic() + CONNECTION_CHECK_SECONDS

    def needs_connections(self, nodes: Sequence[int]) -> bool:
        """Whether the connections are to be checked before anything is sent to `nodes`: some are unknown, or failed."""
        return any(node not in self._connections or node in self._since for node in nodes)

    def is_check_due(self) -> bool:
        """Whether it is time to check the nodes' connections."""
        return time.monotonic() >= self._next_check

    def note_connections(self, connections: dict[int, str]) -> None:
        """Note when nodes last connected, and send messages again to nodes that have connected anew.

        The process of such a node was replaced, and the message with it: Flower delivers a message once, and reports a
        node as away only to those who ask meanwhile. A site answers the same request with the same bytes, so that a
        message that was not lost does no harm when it comes twice.
        """
        for name, node in list(self.sent.items()):
            if connections.get(node) != self._connections.get(node):
                del self.sent[name]
        self._connections, self._next_check = connections, time.monotonic() + CONNECTION_CHECK_SECONDS

    def due(self) -> list[int]:
        """Nodes to send to now."""
        now, under_way = time.monotonic(), set(self.sent.values())
        return [node for node in self.waiting if node not in under_way and self._retry_at[node] <= now]

    def note_failure(self, node: int, why: str) -> None:
        """Note that a node could not be reached, and why; it is tried again after `RETRY_SECONDS`."""
        now = time.monotonic()
        self._retry_at[node] = now + RETRY_SECONDS
        self._since.setdefault(node, now)
        self._why[node] = why

    def waited_for(self) -> list[tuple[int, Waiting]]:
        """Nodes that have been unreachable for `WAITING_SECONDS`; each is told once."""
        now = time.monotonic()
        late = [node for node, since in self._since.items() if node in self.waiting and now - since > WAITING_SECONDS]
        new = [node for node in late if node not in self._told]
        self._told.update(new)
        return [(node, Waiting(self._why[node])) for node in new]

    def drop_lost(self) -> list[tuple[int, Failure]]:
        """Give up nodes that have been unreachable for `GONE_SECONDS`, and return their failures."""
        now = time.monotonic()
        lost = [node for node, since in self._since.items() if node in self.waiting and now - since > GONE_SECONDS]
        for node in lost:
            del self.waiting[node]
        return [(node, Failure(self._why[node])) for node in lost]
