"""Trips to sites: requests go out, answers are waited for, and who is missing is looked for again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.deploy.answers import Work
from sordino.deploy.carrier import Carrier, Failure
from sordino.deploy.journal import Journal
from sordino.deploy.masking import MaskingError
from sordino.deploy.presence import PAUSE, Presence, replies, said
from sordino.deploy.put import Put
from sordino.transport import OutOfBudgetError

Reader = Callable[[bytes, Mapping[str, Any]], Any]
"""Reads a site's answer; one that is none raises."""


@dataclass(frozen=True)
class Deadlines:
    """How long sites are waited for, in seconds, and how often a question is put."""

    hello: float = 60.0
    work: float = 600.0
    open: float = 120.0
    attempts: int = 3


class Trips:
    """The trips of a run."""

    def __init__(
        self,
        presence: Presence,
        carrier: Carrier,
        journal: Journal,
        deadlines: Deadlines,
        least: int,
        tell: Callable[[str], None],
    ) -> None:
        """`least` is with how many sites that can pay the run goes on."""
        self.presence, self.deadlines, self.tell = presence, deadlines, tell
        self._carrier, self._journal, self._least = carrier, journal, least
        self._broke: set[bytes] = set()
        """Sites whose budget is used up."""

    def work(self, put: Put, asked: Sequence[bytes], read: Reader, patient: bool) -> dict[bytes, Work]:
        """What sites answer to a question, its content by `read`; `patient`: nobody of them can be done without."""

        def request(one: bytes) -> bytes:
            return put.request(self.presence.number[one], self.presence.echo(one))

        def answered(one: bytes, reply: Mapping[str, Any]) -> Work:
            return Work.read(reply, read(one, reply))

        got: dict[bytes, Work] = self.answers(asked, request, answered, self.deadlines.work, len(asked), patient)
        for one, found in got.items():
            self._journal.saw(one, found.head)
        if self._broke and len(self.presence.roster) - len(self._broke) < self._least:
            raise OutOfBudgetError
        return got

    def answers(
        self,
        sites: Sequence[bytes],
        request: Callable[[bytes], bytes],
        read: Reader,
        seconds: float,
        needed: int,
        patient: bool = True,
    ) -> dict[bytes, Any]:
        """What sites answer, until as many as are `needed` have, nobody is left, or the time is over.

        Who cannot be reached is looked for again while there is time, or once, where others can do without.
        """
        until = time.monotonic() + seconds
        got: dict[bytes, Any] = {}
        refused: set[bytes] = set()
        looked = 0
        while len(got) < needed:
            waiting = [one for one in sites if one not in got and one not in refused]
            left = until - time.monotonic()
            if not waiting or left <= 0 or (looked > 1 and not patient):
                break
            if looked:
                time.sleep(min(PAUSE * (looked > 1), left))
                self.presence.find()
            looked += 1
            back = {self.presence.nodes[one]: one for one in waiting if one in self.presence.nodes}
            for node, reply in replies(self._carrier, {n: request(one) for n, one in back.items()}, left):
                if isinstance(reply, Failure):
                    continue
                answer = self._read(back[node], reply, read)
                if answer is None:
                    refused.add(back[node])
                else:
                    got[back[node]] = answer
                if len(got) >= needed:
                    break
        return got

    def _read(self, one: bytes, reply: Mapping[str, Any], read: Reader) -> Any:
        """What a site answered; None, and a sentence, where it is a refusal or no answer."""
        name = self.presence.name(one)
        if reply.get("ok") is not True:
            if reply.get("code") == "budget":
                self._broke.add(one)
            self.tell(f"{name}: {said(reply)}")
            return None
        try:
            return read(one, reply)
        except (ValueError, KeyError, TypeError, MaskingError):
            self.tell(f"{name} sent something that is no answer: it is left out.")
            return None
