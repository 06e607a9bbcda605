"""Flower's handlers of messages as the SuperLink's process wraps them, with handlers that keep messages in a list."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse, PushAppMessagesRequest

from sordino.flower import handlers
from sordino.flower.handlers import MessageHandlers

RUN = 7


@dataclass
class Link:
    """A SuperLink's state: messages by receiver, and what is kept of each."""

    messages: list[Message] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    sessions: int = 0
    looks: int = 0

    @property
    def object_store(self) -> Link:
        return self

    def delete(self, name: str) -> None:
        self.names.remove(name)

    def delete_sessions_in_run(self, run: int) -> None:
        assert run == RUN
        self.sessions = 0

    def push(self, request: Any, state: Any = None, task: Any = None) -> str:
        self.sessions += 1
        self.messages += request.messages_list
        self.names |= {tree.object_id for tree in request.message_object_trees}
        return "stored"

    def pull(self, request: Any, state: Any, store: Any) -> PullMessagesResponse:
        return self._give(PullMessagesResponse(), lambda one: one.metadata.dst_node_id == request.node.node_id)

    def pull_app(self, request: Any, state: Any, task: Any) -> PullAppMessagesResponse:
        wanted = set(request.message_ids)
        return self._give(PullAppMessagesResponse(), lambda one: one.metadata.reply_to_message_id in wanted)

    def _give(self, answer: Any, wanted: Any) -> Any:
        self.looks += 1
        given = [one for one in self.messages if wanted(one)]
        self.messages = [one for one in self.messages if not wanted(one)]
        answer.messages_list.extend(given)
        answer.message_object_trees.extend(ObjectTree(object_id=one.metadata.message_id) for one in given)
        return answer


class Ends:
    """The wrapped handlers of one link, as its two ends call them."""

    def __init__(self) -> None:
        self.link, wrapped = Link(), MessageHandlers()
        self._reply, self._ask = wrapped.take_reply(self.link.push), wrapped.take_requests(self.link.push)
        self._to_site, self._to_server = (
            wrapped.give_to_site(self.link.pull),
            wrapped.give_to_server(self.link.pull_app),
        )

    def ask(self, node: int, name: str) -> None:
        self._ask(PushAppMessagesRequest(**message(name, SUPERLINK_NODE_ID, node)), self.link, None)

    def reply(self, node: int, name: str, to: str, speaker: int | None = None, **more: Any) -> None:
        given = message(name, speaker or node, SUPERLINK_NODE_ID, to) | more
        self._reply(request=PushMessagesRequest(node=Node(node_id=node), **given), state=self.link)

    def for_site(self, node: int) -> list[str]:
        request = PullMessagesRequest(node=Node(node_id=node))
        return named(self._to_site(request=request, state=self.link, store=self.link))

    def for_server(self, *names: str) -> list[str]:
        return named(self._to_server(PullAppMessagesRequest(message_ids=names), self.link, None))


def message(name: str, sender: int, receiver: int, to: str = "") -> dict[str, Any]:
    about = {"message_id": name, "src_node_id": sender, "dst_node_id": receiver, "reply_to_message_id": to}
    return {
        "messages_list": [Message(metadata=Metadata(run_id=RUN, **about))],
        "message_object_trees": [ObjectTree(object_id=name)],
    }


def named(answer: Any) -> list[str]:
    return [one.metadata.message_id for one in answer.messages_list]


@pytest.fixture
def ends(monkeypatch) -> Ends:
    monkeypatch.setattr(handlers, "HOLD_SECONDS", 30.0)
    monkeypatch.setattr(handlers, "CHECK_SECONDS", 30.0)
    return Ends()


def held(call: Any, *given: Any) -> tuple[threading.Thread, list[Any]]:
    """A request in a thread of its own, and a list that gets its answer."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(call(*given)))
    thread.start()
    return thread, got


def test_a_held_request_gets_the_message_that_comes_for_its_node_alone(ends):
    first, to_first = held(ends.for_site, 11)
    second, to_second = held(ends.for_site, 12)
    server, to_server = held(ends.for_server, "asked")
    time.sleep(0.05)
    assert to_first == to_second == to_server == []
    ends.ask(12, "asked")
    second.join(10)
    assert to_second == [["asked"]]
    ends.reply(12, "answer", "asked")
    server.join(10)
    assert to_server == [["answer"]]
    assert first.is_alive()
    ends.ask(11, "later")
    first.join(10)
    assert to_first == [["later"]]
    assert ends.link.looks <= 6  # nobody has looked for a message without news of one


def test_a_request_without_a_message_ends(ends, monkeypatch):
    monkeypatch.setattr(handlers, "HOLD_SECONDS", 0.01)
    assert ends.for_site(11) == ends.for_server("asked") == []


def test_a_site_takes_no_thread_from_another(ends, monkeypatch):
    monkeypatch.setattr(handlers, "MOST_HELD", 2)
    first, to_first = held(ends.for_site, 11)
    while ends.link.looks < 1:
        time.sleep(0.01)
    assert ends.for_site(11) == []  # its second request is not held
    second, to_second = held(ends.for_site, 12)
    while ends.link.looks < 3:
        time.sleep(0.01)
    assert ends.for_site(13) == []  # nor is one too many
    for node in (11, 12):
        ends.ask(node, f"to {node}")
    first.join(10)
    second.join(10)
    assert (to_first, to_second) == ([["to 11"]], [["to 12"]])
    ends.ask(11, "again")
    assert ends.for_site(11) == ["again"]


def test_nothing_is_kept_of_messages_that_were_given_away(ends):
    ends.ask(11, "asked")
    assert ends.for_site(11) == ["asked"]
    ends.reply(11, "answer", "asked")
    assert ends.for_server("asked") == ["answer"]
    assert (ends.link.names, ends.link.sessions) == (set(), 0)


def test_replies_in_another_name_or_in_pieces_are_refused(ends):
    with pytest.raises(ValueError, match="another node's name"):
        ends.reply(11, "answer", "asked", speaker=12)
    pieces = ObjectTree(object_id="answer", children=[ObjectTree(object_id="piece")])
    for trees in ([pieces], [], [ObjectTree(object_id="other")]):
        with pytest.raises(ValueError, match="does not hold its content"):
            ends.reply(11, "answer", "asked", message_object_trees=trees)
    assert not ends.link.messages


def test_a_response_takes_up_no_more_answers_than_it_has_room_for(ends, monkeypatch):
    monkeypatch.setattr(handlers, "LARGEST_RESPONSE", 1)
    for node in (11, 12, 13):
        ends.reply(node, f"answer {node}", f"asked {node}")
    asked = [f"asked {node}" for node in (11, 12, 13)]
    assert [ends.for_server(*asked) for _ in range(3)] == [["answer 11"], ["answer 12"], ["answer 13"]]
