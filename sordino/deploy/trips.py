"""Trips to sites: requests go out, answers are waited for, and who is missing is looked for again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.deploy import wire
from sordino.deploy.answers import Work
from sordino.deploy.carrier import Carrier, Failure
from sordino.deploy.freshness import UNCONFIRMED, LedgerStatement
from sordino.deploy.masking import MaskingError
from sordino.deploy.presence import PAUSE, Presence, accepted, replies, said
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
        deadlines: Deadlines,
        least: int,
        tell: Callable[[str], None],
    ) -> None:
        """`least` is with how many sites that can pay the run goes on."""
        self.presence, self.deadlines, self.tell = presence, deadlines, tell
        self._carrier, self._least = carrier, least
        self._broke: set[bytes] = set()
        """Sites whose budget is used up."""
        self._notes: dict[bytes, dict[bytes, Any]] = {}
        """Notes of other sites, by site that waits until its ledger is confirmed."""
        self._waited = ""
        """Last sentence on who waits for whom."""

    def work(self, put: Put, asked: Sequence[bytes], read: Reader, patient: bool) -> dict[bytes, Work]:
        """What sites answer to a question, its content by `read`; `patient`: nobody of them can be done without."""

        def request(one: bytes) -> bytes:
            return put.request(self.presence.number[one], self.presence.echo(one), self._notes.pop(one, {}))

        def answered(one: bytes, reply: Mapping[str, Any]) -> Work:
            return Work.read(reply, read(one, reply))

        got: dict[bytes, Work] = self.answers(asked, request, answered, self.deadlines.work, len(asked), patient)
        for one, found in got.items():
            self.presence.saw(one, found.head)
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

        Who cannot be reached is looked for again while there is time, or once, where others can do without. Who waits
        until others confirm its ledger is brought their notes.
        """
        until = time.monotonic() + seconds
        got: dict[bytes, Any] = {}
        refused: set[bytes] = set()
        looked = 0
        unsure: dict[bytes, Any] = {}
        while len(got) < needed:
            waiting = [one for one in sites if one not in got and one not in refused]
            left = until - time.monotonic()
            enough = not patient and (not unsure or len(got) >= self._least)
            if not waiting or left <= 0 or (looked > 1 and enough):
                break
            if looked:
                time.sleep(min(PAUSE * (looked > 1), left))
                self.presence.find()
            looked += 1
            unsure = {}
            back = {self.presence.nodes[one]: one for one in waiting if one in self.presence.nodes}
            for node, reply in replies(self._carrier, {n: request(one) for n, one in back.items()}, left):
                if isinstance(reply, Failure):
                    continue
                if reply.get("code") == UNCONFIRMED:
                    unsure[back[node]] = reply.get("statement")
                    continue
                answer = self._read(back[node], reply, read)
                if answer is None:
                    refused.add(back[node])
                else:
                    got[back[node]] = answer
                if len(got) >= needed:
                    break
            self._collect(unsure, min(until - time.monotonic(), self.deadlines.open))
        return got

    def _collect(self, unsure: Mapping[bytes, Any], seconds: float) -> None:
        """Bring the statements of sites to all others, keep the notes that these return, and tell whom a site waits
        for."""
        known = {one: statement for one, statement in unsure.items() if _is_statement(statement)}
        if not known:
            return
        back = {node: one for one, node in self.presence.reached.items()}
        requests = {
            node: wire.request("note", statements={owner: said for owner, said in known.items() if owner != one})
            for node, one in back.items()
        }
        silent = {member.identity for member in self.presence.roster}
        for node, reply in accepted(self._carrier, requests, seconds, self.presence.telling(back)):
            found = reply.get("notes")
            notes = found if isinstance(found, dict) else {}
            silent.discard(back[node])
            for owner in known:
                if owner in notes:
                    self._notes.setdefault(owner, {})[back[node]] = notes[owner]
        if silent:
            owners = ", ".join(self.presence.name(one) for one in known)
            missing = ", ".join(self.presence.name(one) for one in silent)
            self._tell_once(f"Waiting until other sites confirm the ledger of {owners}; no answer yet from {missing}.")

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._waited:
            self._waited = sentence
            self.tell(sentence)

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


def _is_statement(value: Any) -> bool:
    """Whether a reply of a waiting site holds its statement, for which others can be asked."""
    try:
        LedgerStatement.read(value)
    except ValueError:
        return False
    return True
