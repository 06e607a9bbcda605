"""Bytes as Flower's messages, and requests that are repeated where the network fails.

Flower stores the content of a message in pieces ("objects") that are named by their hashes, and carries each in a
request of its own. Our messages have their content in their heads, and the SuperLink of a run takes no others
(`sordino.flower.handlers`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

RECORD, ENTRY = "sordino", "bytes"
KIND = "query"
"""Flower's type for our messages."""
TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
"""HTTP statuses after which the same request may succeed."""


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


def to_send(message: Message) -> tuple[ProtoMessage, ObjectTree]:
    """Head of a message, with its content, and the tree of a message without pieces; it gets a random name."""
    name = secrets.token_hex(32)
    message.metadata.__dict__["_message_id"] = name
    return message_to_proto(message), ObjectTree(object_id=name)


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
