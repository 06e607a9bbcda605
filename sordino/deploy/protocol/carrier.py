"""Carriers of requests and answers, as bytes, between server and sites: the interface, and one within this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Failure:
    """A node that gave no answer."""

    why: str
    """Reason, for people who watch; nothing is decided by it."""


@dataclass(frozen=True)
class Waiting:
    """A node that cannot be reached and is waited for; its answer or its failure follows."""

    why: str
    """Reason, for people who watch."""


class Carrier(Protocol):
    """Connection to nodes, one for each connected site. A node's number identifies no site: it may be reused later."""

    def nodes(self) -> Sequence[int]:
        """Nodes that can be reached now."""

    def trip(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Failure | Waiting]]:
        """Bring each node its request, and yield nodes with their answers or failures, in the order in which they come.

        A node that is waited for may be yielded before. It ends when every node has answered or failed, and after
        `seconds` at the latest.
        """


class Responder(Protocol):
    """Answers messages, as a site does."""

    def answer(self, request: bytes) -> bytes:
        """Answer a message."""


Fault = Callable[[int, bytes, Callable[[], bytes]], bytes | Failure]
"""Simulated fault: called with a node, its request and a function that gets the site's answer; returns what arrives."""


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
