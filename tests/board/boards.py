"""Boards in this process, and questions to them."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sordino.board.server import Board, BoardSource


@dataclass(frozen=True)
class Answer:
    """What a board answers."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def words(self) -> str:
        """Its text without marks."""
        plain = re.sub(r"<(style|script)>.*?</\1>", " ", self.text, flags=re.DOTALL)
        return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", plain)))

    @property
    def links(self) -> list[str]:
        """Addresses of the pages that it leads to."""
        return [html.unescape(one) for one in re.findall(r'href="(/[^"]*)"', self.text)]

    @property
    def parts(self) -> dict[str, str]:
        """Parts that have changed."""
        return dict(json.loads(self.text)["parts"])


@dataclass(frozen=True)
class Asker:
    """Asks a board."""

    board: Board

    def __call__(self, address: str = "", method: str = "GET", **headers: str) -> Answer:
        """Answer to an address, by default that of the first page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.board.server_port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, address or self.board.link(""), headers=headers)
            found = connection.getresponse()
            return Answer(found.status, dict(found.getheaders()), found.read().decode())

    def changes(self, seen: str = "", **asked: Any) -> Answer:
        """What has changed."""
        return self(self.board.link("changes", seen=seen, **asked))


@contextlib.contextmanager
def serving(source: BoardSource, token: str | None = "T") -> Iterator[Asker]:
    """A board at any free port."""
    with Board(source, 0, token) as board:
        thread = threading.Thread(target=board.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield Asker(board)
        finally:
            board.shutdown()
            thread.join()
