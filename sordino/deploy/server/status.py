"""State of a run's sites as its server sees them: a file in the run's folder for whoever watches the deployment.

It holds what the operator is told anyway: who is connected, who refuses and why, who has answered. It decides nothing:
it is written without waiting for the disk, and a run goes on where it cannot be written.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sordino.deploy.protocol.roster import Member
from sordino.util.files import read_text

FILE = "sites.json"
Standing = Literal["absent", "connected", "takes part", "asked", "waits", "answered", "refuses"]
WORDS: dict[Standing, str] = {
    "absent": "not connected",
    "connected": "connected, does not take part",
    "takes part": "takes part",
    "asked": "works on its answer",
    "waits": "is waited for",
    "answered": "has answered",
    "refuses": "refuses",
}
"""Words for each standing of a site."""


class ServerStatus:
    """The sites of a run and the question that they are asked, kept up to date in a file."""

    def __init__(self, folder: Path, roster: Sequence[Member], least: int) -> None:
        """Watch over a run.

        Args:
            folder: The run's folder.
            roster: Sites in the order of their client numbers.
            least: Number of sites without whose answers a round cannot be used.
        """
        self._path = folder / FILE
        self._roster, self._least = roster, least
        self._present: dict[bytes, Standing] = {}
        self._answering: dict[bytes, Standing] = {}
        self._why: dict[bytes, str] = {}
        self._question: dict[str, Any] | None = None
        self._written: str | None = None

    def present(self, reached: Collection[bytes], enrolled: Collection[bytes], refusals: Mapping[bytes, str]) -> None:
        """Note who is there: the sites that can be reached, those that take part, and why others refuse to."""
        for one in (member.identity for member in self._roster):
            refuses = one in refusals and one not in enrolled
            there: Standing = "takes part" if one in enrolled else "connected" if one in reached else "absent"
            self._present[one] = "refuses" if refuses else there
            if refuses:
                self._why[one] = refusals[one]
        self._write()

    def asking(self, round: int, step: str, attempt: int, sites: Collection[bytes]) -> None:
        """Note that `sites` are asked a question of a round, counted from zero."""
        self._question = {"round": round + 1, "step": step, "attempt": attempt + 1}
        self._answering = dict.fromkeys(sites, "asked")
        self._why = {one: why for one, why in self._why.items() if self._present.get(one) == "refuses"}
        self._write()

    def heard(self, one: bytes, standing: Literal["answered", "refuses", "waits"], why: str = "") -> None:
        """Note what came from a site that was asked, and its reason unless it has answered."""
        if one not in self._answering:
            return
        self._answering[one] = standing
        self._why.pop(one, None)
        if why:
            self._why[one] = why
        self._write()

    def document(self) -> dict[str, Any]:
        """JSON document of the sites and the question."""
        sites = []
        for member in self._roster:
            there = self._present.get(member.identity, "absent")
            answering = self._answering.get(member.identity, there)
            standing = there if there in ("absent", "refuses") and answering == "asked" else answering
            why = self._why.get(member.identity, "") if standing in ("refuses", "waits") else ""
            sites.append({"name": member.name, "standing": standing, "why": why})
        return {"sites": sites, "question": self._question, "least": self._least}

    def _write(self) -> None:
        document = self.document()
        told = json.dumps(document)
        if told == self._written:
            return
        unfinished = self._path.with_name(f".{FILE}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            unfinished.write_text(json.dumps({**document, "written": time.time()}))
            unfinished.replace(self._path)
            self._written = told


def read_status(folder: Path) -> dict[str, Any] | None:
    """Read the status in a run's folder: names of sites with their standings, the question, and when it was written;
    None where there is none, or none that can be read."""
    try:
        found = json.loads(read_text(folder / FILE))
        sites = [
            {"name": str(one["name"]), "standing": str(one["standing"]), "why": str(one["why"])}
            for one in found["sites"]
        ]
        asked = found["question"]
        question = None
        if asked is not None:
            question = {"round": int(asked["round"]), "step": str(asked["step"]), "attempt": int(asked["attempt"])}
        return {"sites": sites, "question": question, "least": int(found["least"]), "written": float(found["written"])}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
