"""The server's way to the sites: it puts a question, in one trip or two, as often as it takes.

Where messages are summed, trip 1 brings masked vectors and trip 2 opens their sum; where each message is protected by
itself, there is one trip. What is asked is decided by `Server`, as in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from torch import Tensor

from sordino.client import Question
from sordino.deploy import wire
from sordino.deploy.carrier import Carrier
from sordino.deploy.entries import Ask
from sordino.deploy.journal import Enrolled, Heads, Journal
from sordino.deploy.plain import Plain
from sordino.deploy.presence import Presence, accepted
from sordino.deploy.put import Put
from sordino.deploy.roster import Member
from sordino.deploy.summed import Summed
from sordino.deploy.terms import Terms
from sordino.deploy.trips import Deadlines, Trips
from sordino.errors import UserError
from sordino.privacy.gate import Gate
from sordino.privacy.release import Releases, due
from sordino.transport import Answer


class Sites:
    """The transport of a deployment."""

    def __init__(
        self,
        terms: Terms,
        roster: Sequence[Member],
        carrier: Carrier,
        journal: Journal,
        heads: Heads,
        gate: Gate,
        tell: Callable[[str], None],
        deadlines: Deadlines,
    ) -> None:
        self._terms, self._carrier, self._journal = terms, carrier, journal
        self._tell, self._deadlines = tell, deadlines
        self.presence = Presence(terms, roster, carrier, journal, heads, tell, deadlines.hello)
        trips = Trips(self.presence, carrier, deadlines, terms.minimum, tell)
        self._plain, self._summed = Plain(terms, trips, journal, gate), Summed(terms, trips, journal, gate)
        self._steps = terms.steps()
        self._round, self._place = -1, -1

    def names(self) -> list[str]:
        """What the sites are called, in the order of their numbers."""
        return [member.name for member in self.presence.roster]

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        """Put a question, as often as it takes; each time is charged, and a time that a killed server had begun goes on
        where it was."""
        self._place = self._place + 1 if question.round == self._round else 0
        self._round = question.round
        releases, tried = due(self._steps[question.step], question.round), 0
        attempt = 0
        while tried < self._deadlines.attempts:
            ask = Ask(self.presence.run, question.round, self._place, attempt)
            charge()
            before = self._journal.asked(ask)
            attempt += 1
            if before is not None and before.state == "failed":
                continue
            tried += 1
            answer = self._attempt(question, ask, releases)
            if answer is not None:
                return answer
            if any(release.once for release in releases.values()):  # it is given once: this attempt stays the only one
                break
            self._journal.fail(ask)
            self._tell(f"Round {question.round + 1} could not be used: it is tried again, and paid for again.")
        raise UserError(
            f"Round {question.round + 1} cannot be used, too few sites answered (attempts: {tried}): the run can be "
            "resumed when they are there."
        )

    def _attempt(self, question: Question, ask: Ask, releases: Releases) -> Answer | None:
        way = self._summed if self._terms.is_summed(releases) else self._plain
        before = self._journal.asked(ask)
        if before is None:
            enrolled = {one.identity: one for one in self._journal.enrolled()}
            asked = [self.presence.roster[number].identity for number in question.clients]
            cohort = [enrolled[one] for one in asked if one in enrolled]
            if len(cohort) < way.least:
                return None
            before = self._journal.begin(ask, [[one.identity, one.key, one.signature] for one in cohort])
        put = Put.of(question, ask, releases, [Enrolled(*one) for one in before.cohort], way.summed)
        return way.attempt(put, before)

    def end(self, models: Callable[[int], Mapping[str, Tensor]]) -> bool:
        """Tell every site that the run is over, and give it the models that are its own; whether all have heard it."""
        self.presence.find()
        back = {node: identity for identity, node in self.presence.nodes.items()}
        requests = {
            node: wire.request("end", run=self.presence.run, **models(self.presence.number[identity]))
            for node, identity in back.items()
        }
        ended = dict(accepted(self._carrier, requests, self._deadlines.work, self.presence.telling(back)))
        return len(ended) == len(self._journal.enrolled())

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        """What clients remember stays at the sites."""
        return {}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Accuracies stay at the sites."""
        return np.full(len(clients), np.nan)
