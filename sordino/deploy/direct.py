"""Sites in this process: a carrier for tests, and for trying out what happens when messages or sites are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from sordino.deploy.carrier import Failure


class Answering(Protocol):
    """Whatever answers to messages, as a site does."""

    def answer(self, request: bytes) -> bytes:
        """What it answers."""


Fault = Callable[[int, bytes, Callable[[], bytes]], bytes | Failure]
"""What becomes of a request to a node: it may let the site answer, alter what it says, or lose it."""


class Direct:
    """A carrier to sites in this process; node numbers are places in the list."""

    def __init__(self, sites: Sequence[Answering], fault: Fault | None = None) -> None:
        self.sites, self.fault = sites, fault

    def nodes(self) -> Sequence[int]:
        return range(len(self.sites))

    def trip(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | Failure]]:
        for node, request in requests.items():
            if self.fault is None:
                yield node, self.sites[node].answer(request)
            else:
                yield node, self.fault(node, request, lambda n=node, r=request: self.sites[n].answer(r))  # type: ignore
