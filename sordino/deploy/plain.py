"""One trip: each message is protected by itself, and the server reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.deploy import answers, summing
from sordino.deploy.journal import Asked, Journal
from sordino.deploy.put import Put
from sordino.deploy.terms import Terms
from sordino.deploy.trips import Trips
from sordino.privacy.gate import Gate
from sordino.transport import Answer


class Plain:
    """Questions whose answers are read one by one."""

    summed = False
    least = 1
    """How many sites must be there for a question to be put."""

    def __init__(self, terms: Terms, trips: Trips, journal: Journal, gate: Gate) -> None:
        self._terms, self._trips, self._journal, self._gate = terms, trips, journal, gate

    def attempt(self, put: Put, before: Asked) -> Answer | None:
        """What came of a question; None where too few answered. Who had answered to a killed server answers again."""
        asked = before.survivors or put.identities
        everybody = bool(before.survivors) or any(release.once for release in put.releases.values())
        layout, number = self._terms.learner.layout, self._trips.presence.number
        public = put.public(layout.layers)

        def read(one: bytes, reply: Mapping[str, Any]) -> dict[str, Tensor]:
            found = answers.values(reply, put.releases, public, layout.size)
            whole = {name: release for name, release in put.releases.items() if release.unit == "client"}
            alone = replace(public, clients=[number[one]])
            summing.check_total({name: found[name] for name in whole}, whole, self._gate, alone, sites=1)
            return found

        got = self._trips.work(put, asked, read, everybody)
        if len(got) < (len(asked) if everybody else self._needed(len(put.question.clients))):
            return None
        who = sorted(got, key=number.__getitem__)
        if not before.survivors:
            self._journal.fix(put.ask, who)
        values = {name: torch.cat([got[one].content[name] for one in who]) for name in put.releases}
        size = sum(one.size for one in got.values())
        unknown = np.full((len(who), 3), np.nan)
        return Answer(values, unknown, 0, size, who=[number[one] for one in who])

    def _needed(self, asked: int) -> int:
        """How many of those asked must answer: as many of a hundred as of a whole cohort."""
        return max(1, -(-asked * self._terms.minimum // self._terms.schedule.cohort))
