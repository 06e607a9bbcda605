"""The sites of a roster that can be reached: the server greets them, checks who they are and enrols them in the run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Carrier, Failure, Waiting
from sordino.deploy.protocol.roster import Member
from sordino.deploy.protocol.versions import upgrade_advice
from sordino.deploy.server.journal import DeploymentJournal, EnrolledSite, Heads
from sordino.deploy.server.status import ServerStatus
from sordino.deploy.site.ledger import Head
from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError
from sordino.util.package import package_hash
from sordino.version import VERSION

PAUSE_SECONDS = 0.5
"""Seconds between two searches for missing sites."""
WAITING_SECONDS = 30.0
"""Seconds after which the operator is told again which sites are missing."""
MOST_STRANGERS = 10
"""Most sentences that are told of nodes which have not said who they are."""


class Presence:
    """The sites of a run, as the server knows them."""

    def __init__(
        self,
        terms: DeployedTerms,
        roster: Sequence[Member],
        carrier: Carrier,
        journal: DeploymentJournal,
        heads: Heads,
        tell: Callable[[str], None],
        patience: float,
    ) -> None:
        """Know the sites of a run.

        Args:
            terms: The run's terms.
            roster: Sites in the order of their client numbers.
            carrier: Way to the sites.
            journal: Journal of the run, which holds its name and the enrolled sites.
            heads: Newest known heads of the sites' ledgers.
            tell: Shows a sentence to the operator.
            patience: Seconds to wait for missing sites, and for each greeting's reply.
        """
        self.roster, self.run = roster, str(journal.fact("run"))
        self.number = {member.identity: number for number, member in enumerate(roster)}
        """Client number of each site."""
        self.nodes: dict[bytes, int] = {}
        """Nodes of the sites that take part and can be reached."""
        self.reached: dict[bytes, int] = {}
        """Nodes of all sites of the roster that can be reached, whether or not they take part."""
        self._heads = heads
        self._terms, self._carrier, self._journal, self._tell, self._patience = terms, carrier, journal, tell, patience
        self._greeted: set[int] = set()
        self._refusals: dict[bytes, str] = {}
        """Sentences with which sites refused to take part, by site."""
        self._strangers: set[str] = set()
        """Sentences of nodes that could not be greeted, as they were told."""
        self.status = ServerStatus(journal.path.parent, roster, terms.minimum)
        """State of the sites, for whoever watches."""

    def name(self, identity: bytes) -> str:
        """Name of a site."""
        return self.roster[self.number[identity]].name

    def echo(self, identity: bytes) -> list[Any] | None:
        """Newest known head of a site's ledger, over all runs, as it is sent to the site; None where none is known."""
        head = self._heads.head(identity)
        return None if head is None else head.to_list()

    def record_heads(self, heads: Mapping[bytes, Head]) -> None:
        """Store the heads of ledgers that sites report, by identity."""
        self._heads.update(heads)

    def gather(self) -> None:
        """Wait until all sites of the roster take part; after `patience` seconds, continue with enough of them."""
        begun = told = time.monotonic()
        while True:
            self.find()
            missing = [one for one in self.roster if one.identity not in self.nodes]
            if not missing:
                return
            now = time.monotonic()
            if now > begun + self._patience:
                break
            if now > told + WAITING_SECONDS:
                told = now
                self._tell(f"{self._count_there(missing)} after {now - begun:.0f} s; {self._name_missing(missing)}")
            time.sleep(PAUSE_SECONDS)
        if len(self.roster) - len(missing) < self._terms.minimum:
            raise UserError(
                f"{self._count_there(missing)}, but {self._terms.minimum} are needed; {self._name_missing(missing)}"
            )
        self._tell(f"{self._count_there(missing)}; {self._name_missing(missing)}")

    def _count_there(self, missing: Sequence[Member]) -> str:
        return f"{len(self.roster) - len(missing)} of {len(self.roster)} sites take part"

    def _name_missing(self, missing: Sequence[Member]) -> str:
        """Names of missing sites, each with the reason as far as it is known here."""

        def reason(one: Member) -> str:
            if one.identity in self._refusals:
                return f"refuses: {self._refusals[one.identity].rstrip('.')}"
            return "connected, but does not answer" if one.identity in self.reached else "not connected"

        return f"missing: {', '.join(f'{one.name} ({reason(one)})' for one in missing)}."

    def wait_for(self, wanted: Collection[bytes], seconds: float) -> dict[bytes, int]:
        """Nodes of the sites `wanted` that can be reached, whether or not they take part any longer; waits for them for
        at most `seconds`."""
        until = time.monotonic() + seconds
        while True:
            self.find(enrol=False)
            there = {one: node for one, node in self.reached.items() if one in wanted}
            if len(there) == len(wanted) or time.monotonic() >= until:
                return there
            time.sleep(PAUSE_SECONDS)

    def find(self, enrol: bool = True) -> None:
        """Greet new nodes, and enrol the sites of the roster among them unless `enrol` is false."""
        online = set(self._carrier.nodes())
        self.nodes = {identity: node for identity, node in self.nodes.items() if node in online}
        self.reached = {identity: node for identity, node in self.reached.items() if node in online}
        self._greeted &= online
        challenge = secrets.token_bytes(32)  # fresh, so that no recorded signature can stand for a site
        new = dict.fromkeys(online - self._greeted, wire.request("hello", challenge=challenge))
        found: dict[bytes, int] = {}
        for node, reply in exchange_accepted(self._carrier, new, self._patience, self._report_stranger):
            identity, signature = reply.get("identity"), reply.get("signature")
            self._greeted.add(node)
            if not isinstance(identity, bytes) or identity not in self.number or not isinstance(signature, bytes):
                continue
            if keys.is_signed(identity, signature, "hello", challenge):
                found[identity] = node
                if reply.get("package") != package_hash():
                    about = f"{self.name(identity)} runs another version of Sordino's code than this server."
                    self._tell(f"{about} {upgrade_advice(reply.get('version'), VERSION)}".rstrip())
        self.reached |= found
        if enrol:
            self._enrol(found)
        self.status.present(self.reached, self.nodes, self._refusals)

    def _report_stranger(self, node: int, sentence: str) -> None:
        """Tell the operator, once, why a node that has not said who it is cannot be greeted."""
        if sentence not in self._strangers and len(self._strangers) < MOST_STRANGERS:
            self._strangers.add(sentence)
            self._tell(f"A connected site cannot take part: {sentence}")

    def _enrol(self, found: Mapping[bytes, int]) -> None:
        """Enrol the sites `found`, given as identities with their nodes."""
        about = {"run": self.run, "identity": self._terms.identity, "experiment": self._terms.carried()}
        about["version"] = VERSION
        back = {node: identity for identity, node in found.items()}
        requests = {
            node: wire.request("enrol", number=self.number[identity], echo=self.echo(identity), **about)
            for identity, node in found.items()
        }
        known = {one.identity: one for one in self._journal.enrolled_sites()}
        report = self.refusal_reporter(back)

        def refused(node: int, sentence: str) -> None:
            self._refusals[back[node]] = sentence
            report(node, sentence)

        for node, reply in exchange_accepted(self._carrier, requests, self._patience, refused):
            identity = back[node]
            self._refusals.pop(identity, None)
            try:
                site, head = self._read_enrolment(identity, reply, known.get(identity))
            except ValueError:
                self._tell(f"{self.name(identity)} sent no key with a valid signature: it is left out.")
                continue
            before = self._heads.head(identity)
            if before is not None and head.position < before.position:
                self._tell(
                    f"{self.name(identity)} has a ledger that is older than the one it had before: it is left out."
                )
                continue
            self._heads.update({identity: head})
            if identity not in known:
                self._journal.enrol(site)
                self._tell(f"{self.name(identity)} takes part.")
            self.nodes[identity] = node

    def _read_enrolment(
        self, identity: bytes, reply: Mapping[str, Any], known: EnrolledSite | None
    ) -> tuple[EnrolledSite, Head]:
        """Site and head of its ledger from its reply; `ValueError` where the key is unsigned or has changed."""
        key, signature = reply.get("key"), reply.get("signature")
        if not isinstance(key, bytes) or not isinstance(signature, bytes):
            raise ValueError("a key is missing")
        about = (self.run.encode(), self._terms.identity.encode())
        if not keys.is_signed(identity, signature, "run key", *about, key):
            raise ValueError("a key is not signed")
        if known is not None and known.key != key:
            raise ValueError("a key has changed")
        return EnrolledSite(identity, key, signature), Head.from_list(reply.get("head"))

    def refusal_reporter(self, back: Mapping[int, bytes]) -> Callable[[int, str], None]:
        """Function that tells the operator why a node refused; `back` maps nodes to sites."""
        return lambda node, sentence: self._tell(f"{self.name(back[node])}: {sentence}")


def exchange(carrier: Carrier, requests: Mapping[int, bytes], seconds: float) -> Iterable[tuple[int, Any]]:
    """Send requests to nodes, and yield nodes with their replies or failures, or that they are waited for; bytes that
    are no message are a failure."""
    if not requests:
        return
    for node, content in carrier.trip(requests, seconds):
        if isinstance(content, Failure | Waiting):
            yield node, content
            continue
        try:
            yield node, wire.unpack(content)
        except wire.WireError as error:
            yield node, Failure(str(error))


def exchange_accepted(
    carrier: Carrier, requests: Mapping[int, bytes], seconds: float, refused: Callable[[int, str], None]
) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Send requests to nodes, and yield nodes with the replies that are no refusals.

    Args:
        carrier: Way to the nodes.
        requests: Request to each node.
        seconds: Seconds to wait for replies.
        refused: Called with the node and its sentence where a node refuses.
    """
    for node, reply in exchange(carrier, requests, seconds):
        if isinstance(reply, Failure | Waiting):
            continue
        if reply.get("ok") is True:
            yield node, reply
        else:
            refused(node, refusal_text(reply))


def refusal_text(reply: Mapping[str, Any]) -> str:
    """Sentence with which a site refuses, without characters that could control the operator's terminal; with advice
    where versions do not fit together."""
    sentence = "".join(letter for letter in str(reply.get("sentence"))[:300] if letter.isprintable())
    if reply.get("code") not in ("protocol", "code"):
        return sentence
    return f"{sentence} {upgrade_advice(reply.get('version'), VERSION)}".rstrip()
