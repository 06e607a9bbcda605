"""Bytes over a real SuperLink on this machine, with TLS and node keys; sites that answer without learning anything."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_object_tree, no_object_id_recompute

from sordino.deploy.protocol.carrier import Failure
from sordino.errors import UserError
from sordino.flower import carrier as carriers
from sordino.flower import keys, serving
from sordino.flower.carrier import FlowerCarrier
from sordino.flower.link import HEADER, Link, free_port
from sordino.flower.messages import HeaderInterceptor, wrap
from sordino.flower.node import NOT_OURS, Connection, ConnectionLostError, NotAdmittedError, ServerAddress, take_part

FOREIGN = b"""[project]
name = "foreign"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign:app"
clientapp = "foreign:app"
"""


@dataclass
class Echo:
    """A site in a thread of this process."""

    folder: Path
    server: ServerAddress
    answer: Callable[[bytes], bytes] = bytes
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leaving = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            take_part(self.answer, self.server, self.folder, self.said.append, self.leaving.is_set, max_pause=0.1)
        except UserError as error:
            self.said.append(str(error))

    def leave(self) -> None:
        self.leaving.set()
        self.thread.join()


MAX_REQUEST_BYTES = 60_000_000
"""Bytes of a request that the SuperLink of these tests reads."""


@dataclass
class Post:
    """A SuperLink with a server, and folders of sites that it knows."""

    carrier: FlowerCarrier
    link: Link
    server: ServerAddress
    folders: list[Path]


@pytest.fixture(scope="module")
def post(tmp_path_factory) -> Iterator[Post]:
    place = tmp_path_factory.mktemp("post")
    folder = place / "server"
    serving.create_server(folder, ["localhost"])
    folders = [place / f"site{number}" for number in range(3)]
    for one in folders:
        one.mkdir()
    node_keys = [keys.make_node_key(one) for one in folders]
    link = Link(folder, "127.0.0.1", free_port(), folder, MAX_REQUEST_BYTES)
    try:
        link.start()
        link.wait()
        carrier = FlowerCarrier(link, node_keys)
        try:
            yield Post(carrier, link, ServerAddress(link.address, folder / keys.AUTHORITY), folders)
        finally:
            carrier.close()
    finally:
        link.stop()


@pytest.fixture
def sites(post) -> Iterator[list[Echo]]:
    found = [Echo(folder, post.server, named(folder.name)) for folder in post.folders]
    wait_for_all(post)
    yield found
    for one in found:
        one.leave()


def named(name: str) -> Callable[[bytes], bytes]:
    return lambda content: name.encode() + content


def wait_for_all(post: Post) -> None:
    until = time.monotonic() + 60
    while len(post.carrier.nodes()) < 3 and time.monotonic() < until:
        time.sleep(0.05)


def test_bytes_arrive_as_they_were(post, sites):
    nodes = post.carrier.nodes()
    contents = {node: os.urandom(size) for node, size in zip(nodes, (0, 1, 3_000_000), strict=True)}
    found = dict(post.carrier.trip(contents, 60))
    assert {found[node][5:] for node in nodes} == set(contents.values())
    assert all(found[node][5:] == contents[node] for node in nodes)
    assert {found[node][:5] for node in nodes} == {b"site0", b"site1", b"site2"}


def test_the_same_bytes_can_be_sent_again(post, sites):
    node = post.carrier.nodes()[0]
    assert len({dict(post.carrier.trip({node: b"again"}, 30))[node] for _ in range(3)}) == 1


def test_who_does_not_answer_in_time_has_failed(post, sites):
    enough = threading.Event()
    sites[0].leave()
    sites[0] = Echo(post.folders[0], post.server, lambda content: b"late" if enough.wait(30) else b"")
    wait_for_all(post)
    found = dict(post.carrier.trip(dict.fromkeys(post.carrier.nodes(), b"x"), 3))
    enough.set()
    assert len(found) == 3
    failures = [one for one in found.values() if isinstance(one, Failure)]
    assert Failure("it did not answer in time") in failures


def test_a_site_that_comes_back_is_asked_again(post, sites, monkeypatch):
    before = set(post.carrier.nodes())
    sites[1].leave()
    (gone,) = before - set(post.carrier.nodes())
    found: dict[int, bytes | Failure] = {}

    def asking() -> None:
        found.update(post.carrier.trip({gone: b"where"}, 40))

    thread = threading.Thread(target=asking)
    thread.start()
    time.sleep(1.5)
    sites[1] = Echo(post.folders[1], post.server, lambda content: b"back " + content)
    thread.join()
    assert found == {gone: b"back where"}


def test_a_site_that_died_over_its_message_and_was_back_unnoticed_is_asked_again(post, sites, monkeypatch):
    """It has left and come back between two looks of the server for answers: nobody tells that its message is lost."""
    taken, back = threading.Event(), threading.Event()
    looked = FlowerCarrier._answers

    def dies_at_first(content: bytes) -> bytes:
        if taken.is_set():
            back.set()
            return b"back " + content
        taken.set()
        raise ConnectionLostError

    def unnoticed(carrier: FlowerCarrier, trip: Any) -> Any:
        time.sleep(0 if back.wait(0) else 0.5 * taken.wait(30))
        return looked(carrier, trip)

    before = set(post.carrier.nodes())
    sites[1].leave()
    (one,) = before - set(post.carrier.nodes())
    sites[1] = Echo(post.folders[1], post.server, dies_at_first)
    wait_for_all(post)
    monkeypatch.setattr(FlowerCarrier, "_answers", unnoticed)
    assert dict(post.carrier.trip({one: b"again"}, 60)) == {one: b"back again"}


def hostile(post: Post, sites: list[Echo], act: Callable[[Connection], None]) -> tuple[threading.Thread, int]:
    """Another process for the first site, that does with each message what it likes; the number of its node."""
    before = set(post.carrier.nodes())
    sites[0].leave()
    (one,) = before - set(post.carrier.nodes())
    connection = Connection(post.server, post.folders[0])
    connection.activate()

    def live() -> None:
        with contextlib.suppress(httpx.HTTPError, UserError):
            act(connection)
        connection.close()

    thread = threading.Thread(target=live)
    thread.start()
    return thread, one


def next_message(connection: Connection) -> Message:
    message = None
    while message is None:
        message = connection.receive()
    return message


def test_a_site_that_takes_a_message_and_says_nothing_fails_alone(post, sites):
    over = threading.Event()

    def keep_silent(connection: Connection) -> None:
        next_message(connection)
        over.wait()

    thread, one = hostile(post, sites, keep_silent)
    found = dict(post.carrier.trip(dict.fromkeys(post.carrier.nodes(), os.urandom(3000)), 4))
    over.set()
    thread.join()
    assert {node for node, answer in found.items() if isinstance(answer, Failure)} == {one}


def test_a_site_that_announces_its_answer_in_pieces_is_refused_and_fails_alone(post, sites):
    statuses: list[int] = []

    def announce(connection: Connection) -> None:
        reply = Message(wrap(b"never"), reply_to=next_message(connection))
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            pushed = PushMessagesRequest(
                node=connection._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],
            )
        try:
            connection._client.PushMessages(pushed)
        except httpx.HTTPStatusError as error:
            statuses.append(error.response.status_code)
        over.wait()

    over = threading.Event()
    thread, one = hostile(post, sites, announce)
    found = dict(post.carrier.trip(dict.fromkeys(post.carrier.nodes(), b"asked"), 4))
    over.set()
    thread.join()
    assert {node for node, answer in found.items() if isinstance(answer, Failure)} == {one}
    assert statuses == [500]


def test_a_site_that_answers_with_something_else_fails_alone(post, sites, monkeypatch):
    monkeypatch.setattr(carriers, "GONE_SECONDS", 1.0)
    over = threading.Event()

    def answer_with_an_error(connection: Connection) -> None:
        while not over.is_set():
            message = connection.receive()
            if message is not None:
                connection.reply(Message(NOT_OURS, reply_to=message))

    thread, one = hostile(post, sites, answer_with_an_error)
    found = dict(post.carrier.trip(dict.fromkeys(post.carrier.nodes(), b"asked"), 30))
    over.set()
    thread.join()
    assert {node for node, answer in found.items() if isinstance(answer, Failure)} == {one}
    assert found[one] == Failure("it cannot be reached")


def test_a_site_that_stays_away_is_given_up(post, sites, monkeypatch):
    monkeypatch.setattr(carriers, "GONE_SECONDS", 1.0)
    before = set(post.carrier.nodes())
    sites[2].leave()
    (gone,) = before - set(post.carrier.nodes())
    begun = time.monotonic()
    found = dict(post.carrier.trip({gone: b"where"}, 60))
    assert isinstance(found[gone], Failure)
    assert time.monotonic() - begun < 20


def test_a_site_unknown_to_the_server_is_refused_with_a_sentence(post, tmp_path, monkeypatch):
    monkeypatch.setattr("sordino.flower.node.REFUSED_SECONDS", 1.0)
    keys.make_node_key(tmp_path)
    with pytest.raises(NotAdmittedError, match="serve add"):
        take_part(bytes, post.server, tmp_path, lambda sentence: None)


def test_another_authority_is_refused_with_a_sentence(post, tmp_path):
    serving.create_server(tmp_path / "other", ["localhost"])
    keys.make_node_key(tmp_path)
    with pytest.raises(NotAdmittedError, match=r"not certified by .*ca\.pem"):
        take_part(bytes, ServerAddress(post.server.address, tmp_path / "other" / keys.AUTHORITY), tmp_path, print)


def control(post: Post, *interceptors: HeaderInterceptor) -> ControlHttpClient:
    return ControlHttpClient(f"https://{post.link.address}", interceptors=interceptors, verify=post.link.trust)


def test_strangers_reach_nothing_but_the_fleet(post):
    app, _ = build_fab_from_files({"pyproject.toml": FOREIGN})
    for headers in ({}, {HEADER: "0" * 64}):
        client = control(post, HeaderInterceptor(headers))
        for call, request in (
            (client.StartRun, StartRunRequest(fab=Fab(content=app))),
            (client.StopRun, StopRunRequest(run_id=1)),
            (client.ListRuns, ListRunsRequest()),
            (client.RegisterNode, RegisterNodeRequest(public_key=b"x")),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="403"):
                call(request)
    with httpx.Client(verify=post.link.trust) as plain:
        for path in ("/docs", "/openapi.json", "/v1/runtime/acquire-task", "/v1/responses", "/v1/fleet", "//v1/fleet/"):
            assert plain.post(f"https://{post.link.address}{path}").status_code == 403
        assert plain.get(f"https://{post.link.address}/health").status_code == 200


def test_an_app_of_somebody_else_runs_nowhere(post, sites):
    """Even one that bears the operator's secret: no process takes it on, and sites do not look into it."""
    app, _ = build_fab_from_files({"pyproject.toml": FOREIGN})
    client = control(post, HeaderInterceptor({HEADER: post.link.secret}))
    run = client.StartRun(StartRunRequest(fab=Fab(content=app))).run_id
    assert run
    time.sleep(1.0)
    (found,) = client.ListRuns(ListRunsRequest(run_id=run)).run_dict.values()
    assert found.status.status == "pending"
    assert dict(post.carrier.trip({post.carrier.nodes()[0]: b"x"}, 30))


def test_a_port_that_is_taken_is_told_in_a_sentence(post):
    again = Link(post.link.folder, "127.0.0.1", post.link.port, post.link.folder, MAX_REQUEST_BYTES)
    with pytest.raises(UserError, match="cannot listen at"):
        again.start()


def test_a_superlink_that_died_is_told_in_a_sentence(tmp_path):
    serving.create_server(tmp_path, ["localhost"])
    link = Link(tmp_path, "127.0.0.1", free_port(), tmp_path, MAX_REQUEST_BYTES)
    link.start()
    assert link._process is not None
    link._process.kill()
    with pytest.raises(UserError, match=r"The SuperLink has ended; its log .*link\.log says why"):
        link.wait()
    link.stop()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory as Linux tells it")
def test_a_body_that_does_not_end_is_refused_and_takes_no_memory(post):
    """A stranger sends a gigabyte in chunks, without a length."""

    def most_memory() -> int:
        status = Path(f"/proc/{post.link._process.pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    headers, before = {"content-type": "application/protobuf"}, most_memory()
    with httpx.Client(verify=post.link.trust, timeout=60.0) as client:
        where = f"https://{post.link.address}/v1/fleet/push-object"
        with contextlib.suppress(httpx.TransportError):  # the connection may be closed while we still send
            endless = (bytes(2**20) for _ in range(1024))
            assert client.post(where, content=endless, headers=headers).status_code == 413
        assert client.get(f"https://{post.link.address}/health").status_code == 200
    assert most_memory() - before < 4 * MAX_REQUEST_BYTES
