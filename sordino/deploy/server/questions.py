"""Questions to sites, and the transport of a deployment: one trip each or, summed under masks, two."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.deploy.protocol import integer_rows, secure_sum, wire
from sordino.deploy.protocol.carrier import Carrier
from sordino.deploy.protocol.roster import Member
from sordino.deploy.protocol.secure_sum import Cohort, MaskingError, Opening, Party
from sordino.deploy.server.journal import Attempt, DeploymentJournal, EnrolledSite, Heads
from sordino.deploy.server.presence import Presence, exchange_accepted
from sordino.deploy.server.trips import Deadlines, OutgoingQuestion, Trips, read_masked, read_opening, read_values
from sordino.deploy.site.ledger import QuestionId
from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError
from sordino.federation.client import Question
from sordino.federation.transport import Answer
from sordino.privacy.gate import Gate
from sordino.privacy.release import Releases, due


class Plain:
    """Questions whose answers are read one by one."""

    summed = False
    least = 1
    """Number of sites that must be there for a question to be asked."""

    def __init__(self, terms: DeployedTerms, trips: Trips, journal: DeploymentJournal, gate: Gate) -> None:
        self._terms, self._trips, self._journal, self._gate = terms, trips, journal, gate

    def attempt(self, question: OutgoingQuestion, before: Attempt) -> Answer | None:
        """Answer to a question; None where too few sites answered. Sites that had answered a killed server answer
        again."""
        asked = before.survivors or question.identities
        everybody = bool(before.survivors) or any(release.once for release in question.releases.values())
        layout, number = self._terms.learner.layout, self._trips.presence.number
        public = question.public(layout.layers)

        def read(one: bytes, reply: Mapping[str, Any]) -> dict[str, Tensor]:
            found = read_values(reply, question.releases, public, layout.size)
            whole = {name: release for name, release in question.releases.items() if release.summed}
            alone = replace(public, clients=[number[one]])
            integer_rows.check_total({name: found[name] for name in whole}, whole, self._gate, alone)
            return found

        got = self._trips.ask_work(question, asked, read, len(asked) if everybody else 0)
        if len(got) < (len(asked) if everybody else self._needed(len(question.question.clients))):
            return None
        who = sorted(got, key=number.__getitem__)
        if not before.survivors:
            self._journal.fix_survivors(question.id, who)
        values = {name: torch.cat([got[one].content[name] for one in who]) for name in question.releases}
        size = sum(one.size for one in got.values())
        unknown = np.full((len(who), 3), np.nan)
        return Answer(values, unknown, 0, size, who=[number[one] for one in who])

    def _needed(self, asked: int) -> int:
        """Number of the `asked` sites that must answer: the same share of them as of a whole cohort."""
        return max(1, -(-asked * self._terms.minimum // self._terms.schedule.cohort))


class Summed:
    """Questions whose answers are seen in a sum only."""

    summed = True

    def __init__(self, terms: DeployedTerms, trips: Trips, journal: DeploymentJournal, gate: Gate) -> None:
        self._terms, self._trips, self._journal, self._gate = terms, trips, journal, gate

    @property
    def least(self) -> int:
        """Number of sites that must be there for a question to be asked."""
        return self._terms.minimum

    def attempt(self, question: OutgoingQuestion, before: Attempt) -> Answer | None:
        """Answer to a question; None where too few sites answered, or their messages make no sum.

        A sum that a killed server had written down is read from the journal; one that it was opening is opened for the
        same survivors.
        """
        if before.state == "done":
            content = wire.unpack(bytes(before.result or b""))
            return self._answer(content["sums"], before.survivors, content["bytes"])
        cohort = Cohort(
            question.hash(), tuple(Party(one.identity, one.key) for one in question.cohort), self._terms.minimum
        )
        public = question.public(self._terms.learner.layout.layers)
        width = sum(integer_rows.widths(question.releases, public).values())
        kind = secure_sum.UNSIGNED[integer_rows.bits(question.releases, self._gate, public, len(question.cohort))]

        def read(_: bytes, reply: Mapping[str, Any]) -> tuple[np.ndarray, dict[bytes, bytes]]:
            return read_masked(reply, cohort, width, kind)

        # What sites give once is not asked for in another attempt: it is waited for.
        once = any(release.once for release in question.releases.values())
        enough = len(before.survivors) or (self._terms.minimum if once else 0)
        got = self._trips.ask_work(question, before.survivors or question.identities, read, enough)
        if len(got) < (len(before.survivors) or self._terms.minimum):
            return None
        survivors = before.survivors or [one for one in question.identities if one in got]
        if not before.survivors:
            self._journal.fix_survivors(question.id, survivors)
        openings = self._openings(question, cohort, survivors, {one: got[one].content[1] for one in survivors})
        try:
            vectors = {one: got[one].content[0] for one in survivors}
            total = secure_sum.open_sum(cohort, vectors, survivors, openings)
            sums = integer_rows.from_row(total, question.releases, public)
            there = replace(public, clients=[self._trips.presence.number[one] for one in survivors])
            integer_rows.check_total(sums, question.releases, self._gate, there)
        except MaskingError as error:
            self._trips.tell(str(error))
            return None
        size = sum(got[one].size for one in survivors)
        self._journal.keep_sum(question.id, wire.pack({"sums": sums, "bytes": size}))
        return self._answer(sums, survivors, size)

    def _openings(
        self,
        question: OutgoingQuestion,
        cohort: Cohort,
        survivors: list[bytes],
        shares: Mapping[bytes, Mapping[bytes, bytes]],
    ) -> dict[bytes, Opening]:
        """Openings of the survivors' sum, from as many sites as are needed."""
        about = {
            "run": question.id.run,
            "round": question.id.round,
            "place": question.id.place,
            "attempt": question.id.attempt,
        }
        dropped = cohort.dropped(survivors)

        def request(one: bytes) -> bytes:
            mine = {other: shares[other][one] for other in survivors}
            common = {"hash": cohort.question, "survivors": survivors, "shares": mine}
            return wire.request("open", echo=self._trips.presence.echo(one), **about, **common)

        def read(_: bytes, reply: Mapping[str, Any]) -> Opening:
            return read_opening(reply, survivors, dropped)

        needed = len(survivors) if dropped else cohort.minimum
        return self._trips.collect(survivors, request, read, self._trips.deadlines.open, needed)

    def _answer(self, sums: dict[str, Tensor], survivors: list[bytes], size: int) -> Answer:
        numbers = [self._trips.presence.number[one] for one in survivors]
        return Answer(sums, np.full((len(numbers), 3), np.nan), 0, size, who=numbers, summed=True)


class Sites:
    """The transport of a deployment. Sites keep their own memory and test their own models."""

    memory: None = None

    def __init__(
        self,
        terms: DeployedTerms,
        roster: Sequence[Member],
        carrier: Carrier,
        journal: DeploymentJournal,
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
        """Names of the sites, in the order of their numbers."""
        return [member.name for member in self.presence.roster]

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        """Ask a question until enough sites have answered it; each attempt is charged, and one that a killed server had
        begun goes on where it was."""
        self._place = self._place + 1 if question.round == self._round else 0
        self._round = question.round
        releases, tried = due(self._steps[question.step], question.round), 0
        attempt = 0
        while tried < self._deadlines.attempts:
            id = QuestionId(self.presence.run, question.round, self._place, attempt)
            charge()
            before = self._journal.attempt(id)
            attempt += 1
            if before is not None and before.state == "failed":
                continue
            tried += 1
            answer = self._attempt(question, id, releases)
            if answer is not None:
                return answer
            if any(release.once for release in releases.values()):  # sites give it once, so no attempt can follow
                break
            self._journal.give_up(id)
            self._tell(f"Round {question.round + 1} could not be used: it is tried again, and paid for again.")
        raise UserError(
            f"Round {question.round + 1} cannot be used, too few sites answered (attempts: {tried}): the run can be "
            "resumed when they are there."
        )

    def _attempt(self, question: Question, id: QuestionId, releases: Releases) -> Answer | None:
        way = self._summed if self._terms.is_summed(releases) else self._plain
        before = self._journal.attempt(id)
        if before is None:
            enrolled = {one.identity: one for one in self._journal.enrolled_sites()}
            asked = [self.presence.roster[number].identity for number in question.clients]
            cohort = [enrolled[one] for one in asked if one in enrolled]
            if len(cohort) < way.least:
                return None
            before = self._journal.begin_attempt(id, [[one.identity, one.key, one.signature] for one in cohort])
        outgoing = OutgoingQuestion.of(
            question, id, releases, [EnrolledSite(*one) for one in before.cohort], way.summed
        )
        return way.attempt(outgoing, before)

    def end(self, models: Callable[[int], Mapping[str, Tensor]], patient: bool) -> bool:
        """Tell every site that the run is over, and give it its models; whether all sites have heard it.

        Args:
            models: Models for a client, by its number.
            patient: Whether to wait for sites that are not there yet, as after a restart of the server.
        """
        heard = {bytes.fromhex(one) for one in self._journal.fact("heard") or []}
        missing = [one.identity for one in self._journal.enrolled_sites() if one.identity not in heard]
        there = self.presence.wait_for(missing, self._deadlines.hello if patient else 0.0)
        back = {node: identity for identity, node in there.items()}
        requests = {
            node: wire.request("end", run=self.presence.run, **models(self.presence.number[identity]))
            for node, identity in back.items()
        }
        report = self.presence.refusal_reporter(back)
        for node, _ in exchange_accepted(self._carrier, requests, self._deadlines.work, report):
            heard.add(back[node])
        self._journal.set_fact("heard", sorted(one.hex() for one in heard))
        left = ", ".join(self.presence.name(one) for one in missing if one not in heard)
        if left:
            self._tell(f"Not told yet that the run is over: {left}. They get their models when the run is resumed.")
        return not left

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        """No states: they stay at the sites."""
        return {}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """No accuracies: they stay at the sites."""
        return np.full(len(clients), np.nan)
