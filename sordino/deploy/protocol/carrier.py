"""What carries bytes between the coordinator and the sites; and a carrier to sites in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


class Responder(Protocol):
    """Whatever answers to messages, as a site does."""

    def answer(self, request: bytes) -> bytes:
        """What it answers."""


Fault = Callable[[int, bytes, Callable[[], bytes]], bytes | Failure]
"""What becomes of a request to a node: it may let the site answer, alter what it says, or lose it."""


class InProcessCarrier:
    """A carrier to sites in this process; node numbers are places in the list."""

    def __init__(self, sites: Sequence[Responder], fault: Fault | None = None) -> None:
        self.sites, self.fault = sites, fault

    def nodes(self) -> Sequence[int]:
        return range(len(self.sites))

    def trip(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Failure]]:
        for node, request in requests.items():
            if self.fault is None:
                yield node, self.sites[node].answer(request)
            else:
                yield node, self.fault(node, request, lambda n=node, r=request: self.sites[n].answer(r))  # type: ignore
