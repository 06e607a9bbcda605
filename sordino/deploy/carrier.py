"""What carries bytes between the coordinator and the sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Failure:
    """Why no answer came from a node."""

    why: str
    """A sentence for people who watch; nothing is decided by it."""


class Carrier(Protocol):
    """The way to nodes. A node's number is no identity: it may be another site's tomorrow."""

    def nodes(self) -> Sequence[int]:
        """The nodes that can be reached now."""

    def trip(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Failure]]:
        """Bring each node its request, and back what it answers, in the order in which answers come.

        It ends when every node has answered or failed, after `seconds` at the latest.
        """
