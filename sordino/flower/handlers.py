"""Flower's handlers of messages, as the SuperLink's process wraps them, so that a round needs few requests.

Flower carries a message in pieces, each in a request of its own, and its ends ask again and again whether there is one:
a round of three sites took more than a hundred requests, each of which costs the SuperLink some milliseconds. Here a
message has its content in its head, so that it travels in one request, and a request for messages is held at the
SuperLink until there is one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

HOLD_SECONDS = 1.0
"""Seconds for which a request for messages is held where there are none."""
CHECK_SECONDS = 0.25
"""Seconds between two checks of a held request without news: Flower tells of a site that is gone only when it is
asked."""
MOST_HELD = 200
"""Requests that are held at the same time; each takes one of the SuperLink's threads."""
THREADS = MOST_HELD + 40
"""Threads of the SuperLink that answer requests."""
LARGEST_RESPONSE = 2**26
"""Bytes of answers after which a response takes up no more of them; protobuf carries at most 2 GiB."""


class MessageHandlers:
    """Wrappers of Flower's handlers that share the news of arrived messages."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._arrived: Counter[int] = Counter()
        """Number of pushes so far to each node."""
        self._holders: set[int] = set()
        """Nodes of which a request is held: one each, so that a site takes no thread from another."""
        self._pushing = threading.Lock()

    def install(self) -> None:
        """Replace Flower's handlers in this process by the wrapped ones."""
        fleet_handlers.push_messages = self.take_reply(fleet_handlers.push_messages)
        fleet_handlers.pull_messages = self.give_to_site(fleet_handlers.pull_messages)
        runtime_handlers.push_messages = self.take_requests(runtime_handlers.push_messages)
        runtime_handlers.pull_messages = self.give_to_server(runtime_handlers.pull_messages)

    # ---- messages that arrive

    def take_reply(self, push: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the handler of a site's reply: a reply in another node's name, or in pieces, is refused."""

        def pushed(request: Any, state: Any) -> Any:
            if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
                raise ValueError("A node replies in another node's name.")
            _check_whole(request)
            answer = self._store(lambda: push(request=request, state=state), request, state)
            self._tell(SUPERLINK_NODE_ID)
            return answer

        return pushed

    def take_requests(self, push: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the handler of the server's requests to sites."""

        def pushed(request: Any, state: Any, task: Any) -> Any:
            _check_whole(request)
            answer = self._store(lambda: push(request, state, task), request, state)
            self._tell(*(message.metadata.dst_node_id for message in request.messages_list))
            return answer

        return pushed

    def _store(self, push: Callable[[], Any], request: Any, state: Any) -> Any:
        """Store messages. Flower then waits for the pieces of their contents, which do not come: it need not."""
        with self._pushing:  # or another push would lose the session that it has just begun
            answer = push()
            for run in {message.metadata.run_id for message in request.messages_list}:
                state.delete_sessions_in_run(run)
        return answer

    def _tell(self, *nodes: int) -> None:
        with self._news:
            self._arrived.update(nodes)
            self._news.notify_all()

    # ---- messages that are asked for

    def give_to_site(self, pull: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the handler of a site's request for messages.

        A site that dies while its request is held loses a message that comes meanwhile, as it would on the way; it is
        sent again when the site connects anew.
        """

        def pulled(request: Any, state: Any, store: Any) -> Any:
            node = request.node.node_id
            answer = self._wait_for_messages(node, lambda: pull(request=request, state=state, store=store))
            _forget(answer, store)
            return answer

        return pulled

    def give_to_server(self, pull: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the handler of the server's request for answers: as many as `LARGEST_RESPONSE` has room for."""

        def pulled(request: Any, state: Any, task: Any) -> Any:
            def look() -> PullAppMessagesResponse:
                answer, size = PullAppMessagesResponse(), 0
                for name in request.message_ids:
                    found = pull(PullAppMessagesRequest(message_ids=[name]), state, task)
                    answer.MergeFrom(found)
                    size += found.ByteSize()
                    if size > LARGEST_RESPONSE:
                        break
                return answer

            answer = self._wait_for_messages(SUPERLINK_NODE_ID, look)
            _forget(answer, state.object_store)
            return answer

        return pulled

    def _wait_for_messages(self, node: int, look: Callable[[], Any]) -> Any:
        """Answer of `look` as soon as it has messages; that without any after `HOLD_SECONDS`."""
        with self._hold(node) as held:
            until = time.monotonic() + (HOLD_SECONDS if held else 0.0)
            while True:
                seen = self._arrived[node]
                answer, left = look(), until - time.monotonic()
                if answer.messages_list or left <= 0:
                    return answer
                self._wait_for_news(node, seen, min(CHECK_SECONDS, left))

    def _wait_for_news(self, node: int, seen: int, seconds: float) -> None:
        """Wait until more than `seen` pushes to a node have come, for at most `seconds`."""
        with self._news:
            self._news.wait_for(lambda: self._arrived[node] != seen, seconds)

    @contextlib.contextmanager
    def _hold(self, node: int) -> Iterator[bool]:
        """Note for the block that a request of `node` is held; yields whether it may be."""
        with self._news:
            held = node not in self._holders and len(self._holders) < MOST_HELD
            if held:
                self._holders.add(node)
        try:
            yield held
        finally:
            if held:
                with self._news:
                    self._holders.discard(node)


def _check_whole(request: Any) -> None:
    """Refuse messages whose contents are announced in pieces instead of coming with their heads."""
    trees, names = request.message_object_trees, [message.metadata.message_id for message in request.messages_list]
    if [tree.object_id for tree in trees] != names or any(tree.children for tree in trees):
        raise ValueError("A message does not hold its content.")


def _forget(answer: Any, store: Any) -> None:
    """Delete the names of messages that are given away; each is given once."""
    for tree in answer.message_object_trees:
        store.delete(tree.object_id)
