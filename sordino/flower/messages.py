"""Bytes as Flower's messages: wrapped, pushed to the SuperLink and pulled from it, by either end.

Flower stores a message in pieces ("objects") that are named by their hashes, and carries each separately. Bytes in a
record are three pieces; an array would be five.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient

from sordino.errors import UserError

Client: TypeAlias = "RuntimeHttpClient | FleetHttpClient"
"""HTTP client of the server's process, or of a site's."""
RECORD, ENTRY = "sordino", "bytes"
KIND = "query"
"""Flower's type for our messages."""
TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
"""HTTP statuses after which the same request may succeed."""
OBJECT_SECONDS = 120.0
"""Seconds to wait for the pieces of a message; their sender may still be sending."""


class MissingObjectError(UserError):
    """A piece of a message is missing: its sender died while sending, or the message has expired."""


class UnfinishedObjectError(MissingObjectError):
    """A piece of a message has not arrived yet: its sender is still sending."""


class HeaderInterceptor:
    """Adds headers to each request of a client."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the headers to a request and send it."""
        context.request.headers.update(self.headers)
        return call_next(context)


def wrap(content: bytes) -> RecordDict:
    """Wrap bytes as the content of a message."""
    return RecordDict({RECORD: ConfigRecord({ENTRY: content})})


def unwrap(message: Message) -> bytes | None:
    """Bytes in a message; None where it carries something else."""
    if not message.has_content():
        return None
    record = message.content.config_records.get(RECORD)
    content = None if record is None else record.get(ENTRY)
    return content if isinstance(content, bytes) else None


def retry(call: Callable[[], Any], seconds: float) -> Any:
    """Call a request, again and again for up to `seconds` while the network or the server fails transiently."""
    until, pause = time.monotonic() + seconds, 0.1
    while True:
        try:
            return call()
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in TRANSIENT_STATUS or time.monotonic() > until:
                raise
        except httpx.TransportError as error:
            if is_untrusted(error) or time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 5.0)


def is_untrusted(error: httpx.TransportError) -> bool:
    """Whether a connection failed because of certificates, which no retry cures."""
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def push_message(client: Client, node: Node, message: Message, request: Callable[[Any, ObjectTree], Any]) -> str:
    """Push a message to the SuperLink; returns its name there, or "" where it was not accepted.

    Args:
        client: HTTP client that speaks for `node`.
        node: The sender.
        message: The message.
        request: Makes the request from a message without its content and the tree of its pieces.
    """
    message.metadata.__dict__["_message_id"] = message.object_id
    name: str = message.metadata.message_id
    with no_object_id_recompute():
        tree, pieces = get_object_tree(message), get_all_nested_objects(message)
        answer = client.PushMessages(request(message_to_proto(remove_content_from_message(message)), tree))
        for identity in answer.objects_to_push:
            stored = client.PushObject(
                PushObjectRequest(
                    node=node,
                    run_id=message.metadata.run_id,
                    object_id=identity,
                    object_content=pieces[identity].deflate(),
                    session_id=answer.session_id,
                )
            ).stored
            if not stored:
                raise MissingObjectError("The server did not store a piece of a message.")
    accepted = getattr(answer, "message_ids", [name])  # the Fleet API does not return names
    return name if name in accepted else ""


def pull_message(client: Client, node: Node, run: int, tree: ObjectTree, seconds: float = OBJECT_SECONDS) -> Message:
    """Pull a message with all of its pieces from the SuperLink, which then deletes it.

    Args:
        client: HTTP client that speaks for `node`.
        node: The receiver.
        run: Number of the run at the SuperLink.
        tree: Tree of the message's pieces.
        seconds: Seconds to wait for each piece that has not arrived yet.
    """
    pieces = {}
    for identity in dict.fromkeys(branch.object_id for branch in iterate_object_tree(tree)):
        pieces[identity] = _pull_piece(client, PullObjectRequest(node=node, run_id=run, object_id=identity), seconds)
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
    )
    message = inflate_object_from_contents(tree.object_id, pieces)
    if not isinstance(message, Message):
        raise MissingObjectError("The server sent an object that is no message.")
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _pull_piece(client: Client, request: PullObjectRequest, seconds: float) -> bytes:
    until, pause = time.monotonic() + seconds, 0.05
    while True:
        answer = client.PullObject(request)
        if answer.object_available:
            content: bytes = answer.object_content
            return content
        if not answer.object_found:
            raise MissingObjectError("The server does not have a piece of a message.")
        if time.monotonic() >= until:
            raise UnfinishedObjectError("A piece of a message has not arrived at the server yet.")
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
