"""Two trips: masked vectors, then what opens their sum; the server sees no single message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from sordino.deploy import answers, masking, summing, wire
from sordino.deploy.journal import Asked, Journal
from sordino.deploy.masking import Cohort, MaskingError, Opening, Party
from sordino.deploy.put import Put
from sordino.deploy.terms import Terms
from sordino.deploy.trips import Trips
from sordino.privacy.gate import Gate
from sordino.transport import Answer


class Summed:
    """Questions of whose answers only the sum is seen."""

    summed = True

    def __init__(self, terms: Terms, trips: Trips, journal: Journal, gate: Gate) -> None:
        self._terms, self._trips, self._journal, self._gate = terms, trips, journal, gate

    @property
    def least(self) -> int:
        """How many sites must be there for a question to be put."""
        return self._terms.minimum

    def attempt(self, put: Put, before: Asked) -> Answer | None:
        """What came of a question; None where too few have answered, or what they sent makes no sum.

        A sum that a killed server had written down is taken from there; one that it was opening is opened for the same
        survivors.
        """
        if before.state == "done":
            content = wire.unpacked(bytes(before.result or b""))
            return self._answer(content["sums"], before.survivors, content["bytes"])
        cohort = Cohort(put.hash(), tuple(Party(one.identity, one.key) for one in put.cohort), self._terms.minimum)
        public = put.public(self._terms.learner.layout.layers)
        width = sum(summing.widths(put.releases, public).values())
        kind = masking.UNSIGNED[summing.bits(put.releases, self._gate, public, len(put.cohort))]

        def read(_: bytes, reply: Mapping[str, Any]) -> tuple[np.ndarray, dict[bytes, bytes]]:
            return answers.masked(reply, cohort, width, kind)

        got = self._trips.work(put, before.survivors or put.identities, read, bool(before.survivors))
        if len(got) < (len(before.survivors) or self._terms.minimum):
            return None
        survivors = before.survivors or [one for one in put.identities if one in got]
        if not before.survivors:
            self._journal.fix(put.ask, survivors)
        openings = self._openings(put, cohort, survivors, {one: got[one].content[1] for one in survivors})
        try:
            vectors = {one: got[one].content[0] for one in survivors}
            total = masking.opened_sum(cohort, vectors, survivors, openings)
            sums = summing.from_row(total, put.releases, public)
            summing.check_total(sums, put.releases, self._gate, public, len(survivors))
        except MaskingError as error:
            self._trips.tell(str(error))
            return None
        size = sum(got[one].size for one in survivors)
        self._journal.done(put.ask, wire.packed({"sums": sums, "bytes": size}))
        return self._answer(sums, survivors, size)

    def _openings(
        self, put: Put, cohort: Cohort, survivors: list[bytes], shares: Mapping[bytes, Mapping[bytes, bytes]]
    ) -> dict[bytes, Opening]:
        """What opens the survivors' sum: of as many as are needed."""
        about = {"run": put.ask.run, "round": put.ask.round, "place": put.ask.place, "attempt": put.ask.attempt}
        dropped = cohort.dropped(survivors)

        def request(one: bytes) -> bytes:
            mine = {other: shares[other][one] for other in survivors}
            common = {"hash": cohort.ask, "survivors": survivors, "shares": mine}
            return wire.request("open", echo=self._trips.presence.echo(one), **about, **common)

        def read(_: bytes, reply: Mapping[str, Any]) -> Opening:
            return answers.opening(reply, survivors, dropped)

        needed = len(survivors) if dropped else cohort.minimum
        return self._trips.answers(survivors, request, read, self._trips.deadlines.open, needed)

    def _answer(self, sums: dict[str, Tensor], survivors: list[bytes], size: int) -> Answer:
        numbers = [self._trips.presence.number[one] for one in survivors]
        return Answer(sums, np.full((len(numbers), 3), np.nan), 0, size, who=numbers, summed=True)
