"""Who of a roster can be reached: sites are greeted, prove who they are and enrol in the run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Carrier, Failure
from sordino.deploy.protocol.roster import Member
from sordino.deploy.server.journal import Enrolled, Heads, Journal
from sordino.deploy.site.ledger import Head
from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError

PAUSE = 0.5
"""Seconds between two looks for sites that are missing."""


class Presence:
    """The sites of a run, as the server knows them."""

    def __init__(
        self,
        terms: DeployedTerms,
        roster: Sequence[Member],
        carrier: Carrier,
        journal: Journal,
        heads: Heads,
        tell: Callable[[str], None],
        patience: float,
    ) -> None:
        """`patience` is for how many seconds sites are waited for, and each greeting is."""
        self.roster, self.run = roster, str(journal.fact("run"))
        self.number = {member.identity: number for number, member in enumerate(roster)}
        """Of each site, as a client."""
        self.nodes: dict[bytes, int] = {}
        """Where those can be reached that take part."""
        self.reached: dict[bytes, int] = {}
        """Nodes of all sites of the roster that can be reached, whether they take part or not."""
        self._heads = heads
        self._terms, self._carrier, self._journal, self._tell, self._patience = terms, carrier, journal, tell, patience
        self._greeted: set[int] = set()

    def name(self, identity: bytes) -> str:
        """What a site is called."""
        return self.roster[self.number[identity]].name

    def echo(self, identity: bytes) -> list[Any] | None:
        """Last known head of a site's ledger, over all runs, as it is sent to the site."""
        head = self._heads.head(identity)
        return None if head is None else head.packed()

    def saw(self, identity: bytes, head: Head) -> None:
        """Store the head of a site's ledger, as the site reports it."""
        self._heads.saw(identity, head)

    def gather(self) -> None:
        """Wait until all sites of the roster take part, or, when the time is over, enough of them."""
        until = time.monotonic() + self._patience
        while True:
            self.find()
            missing = [one for one in self.roster if one.identity not in self.nodes]
            if not missing:
                return
            if time.monotonic() > until:
                break
            time.sleep(PAUSE)
        there = len(self.roster) - len(missing)
        if there < self._terms.minimum:
            raise UserError(
                f"{there} of {len(self.roster)} sites take part, but {self._terms.minimum} are needed; missing: "
                f"{', '.join(one.name for one in missing)}."
            )
        self._tell(f"Not there yet: {', '.join(one.name for one in missing)}.")

    def find(self) -> None:
        """Greet nodes that are new, and enrol the sites of the roster among them."""
        online = set(self._carrier.nodes())
        self.nodes = {identity: node for identity, node in self.nodes.items() if node in online}
        self.reached = {identity: node for identity, node in self.reached.items() if node in online}
        self._greeted &= online
        challenge = secrets.token_bytes(32)
        new = dict.fromkeys(online - self._greeted, wire.request("hello", challenge=challenge))
        found: dict[bytes, int] = {}
        for node, reply in accepted(self._carrier, new, self._patience, lambda node, sentence: None):
            identity, signature = reply.get("identity"), reply.get("signature")
            self._greeted.add(node)
            if not isinstance(identity, bytes) or identity not in self.number or not isinstance(signature, bytes):
                continue
            if keys.is_signed(identity, signature, "hello", challenge):
                found[identity] = node
                if reply.get("package") != keys.package_hash():
                    self._tell(f"{self.name(identity)} runs other code of Sordino than this server.")
        self.reached |= found
        self._enrol(found)

    def _enrol(self, found: Mapping[bytes, int]) -> None:
        about = {"run": self.run, "identity": self._terms.identity, "experiment": self._terms.carried()}
        back = {node: identity for identity, node in found.items()}
        requests = {
            node: wire.request("enrol", number=self.number[identity], echo=self.echo(identity), **about)
            for identity, node in found.items()
        }
        known = {one.identity: one for one in self._journal.enrolled()}
        for node, reply in accepted(self._carrier, requests, self._patience, self.telling(back)):
            identity = back[node]
            try:
                site, head = self._enrolled(identity, reply, known.get(identity))
            except ValueError:
                self._tell(f"{self.name(identity)} gave no key that it has signed: it is left out.")
                continue
            before = self._heads.head(identity)
            if before is not None and head.position < before.position:
                self._tell(f"{self.name(identity)} has a ledger that is older than one seen before: it is left out.")
                continue
            self._heads.saw(identity, head)
            if identity not in known:
                self._journal.enrol(site)
                self._tell(f"{self.name(identity)} takes part.")
            self.nodes[identity] = node

    def _enrolled(self, identity: bytes, reply: Mapping[str, Any], known: Enrolled | None) -> tuple[Enrolled, Head]:
        key, signature = reply.get("key"), reply.get("signature")
        if not isinstance(key, bytes) or not isinstance(signature, bytes):
            raise ValueError("a key is missing")
        about = (self.run.encode(), self._terms.identity.encode())
        if not keys.is_signed(identity, signature, "run key", *about, key):
            raise ValueError("a key is not signed")
        if known is not None and known.key != key:
            raise ValueError("a key has changed")
        return Enrolled(identity, key, signature), Head.read(reply.get("head"))

    def telling(self, back: Mapping[int, bytes]) -> Callable[[int, str], None]:
        """Tells people what a site refuses; `back` is which site is at which node."""
        return lambda node, sentence: self._tell(f"{self.name(back[node])}: {sentence}")


def replies(carrier: Carrier, requests: Mapping[int, bytes], seconds: float) -> Iterable[tuple[int, Any]]:
    """Answers as messages, or failures; bytes that are no message are a failure."""
    if not requests:
        return
    for node, content in carrier.trip(requests, seconds):
        if isinstance(content, Failure):
            yield node, content
            continue
        try:
            yield node, wire.unpacked(content)
        except wire.WireError as error:
            yield node, Failure(str(error))


def accepted(
    carrier: Carrier, requests: Mapping[int, bytes], seconds: float, refused: Callable[[int, str], None]
) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Answers that are no refusals; of those `refused` is told."""
    for node, reply in replies(carrier, requests, seconds):
        if isinstance(reply, Failure):
            continue
        if reply.get("ok") is True:
            yield node, reply
        else:
            refused(node, said(reply))


def said(reply: Mapping[str, Any]) -> str:
    """Why a site refuses, in its own words; what could do more at the operator's terminal than be read is left out."""
    return "".join(letter for letter in str(reply.get("sentence"))[:300] if letter.isprintable())
