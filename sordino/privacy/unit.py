"""Unit: what an epsilon protects, and everything that differs between one unit and another.

Whoever has to know what is protected asks the unit, so that a new kind of it is written here and nowhere else. Free of
torch and numpy: lists of runs ask it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from sordino.util.formatting import round_up

NOT_PERSONS = "Protects one row, not one person"
"""Words beside every epsilon of records."""


class Unit(StrEnum):
    """One client as a whole, one record of a client, or one person with all of its records at a client. As a text, and
    in files, it is `client`, `record` or `person`."""

    CLIENT = "client"
    RECORD = "record"
    PERSON = "person"

    @property
    def record_level(self) -> bool:
        """Whether the unit is a part of one client's data: the question that decides the level of a run.

        At record level a step sees records through noisy gradients and sealed values alone, and noise is planned by a
        `RecordPlan`: of each client's own, so that each message is covered by itself, or shared out over the messages
        of a sum. Otherwise a step sees its client's records as they are, noise covers the whole message, and its shares
        add up over the cohort. Persons are handled as records are: each contributes once, with all of its rows.
        """
        return self is not Unit.CLIENT

    @property
    def neighbours(self) -> str:
        """The two worlds that epsilon compares.

        Records are counted as they were read. Which of them are trained on, tested with, set aside or drawn into a
        batch follows from their places, never from contents.
        """
        return NEIGHBOURS[self]

    def crowd_size(self, clients: int, records: int) -> int:
        """Number of units among which delta hides one.

        Args:
            clients: number of clients of the run.
            records: training records, or persons in training, of the client with most.
        """
        return records if self.record_level else clients

    def crowd(self, units: int) -> str:
        """The `units` among which delta hides one, in words."""
        return f"a client with {units} {self}s" if self.record_level else f"{units} clients"

    def vacuous_release(self) -> str:
        """Data that could be published bare under a delta of 1 / units, in words."""
        return VACUOUS[self]

    def caveats(self, figures: Mapping[str, float | None] | None = None, observer: str | None = None) -> list[str]:
        """Sentences that must stand beside every epsilon of this unit; arguments as for `rows_words`."""
        return [rows_words(figures or {}, observer)] if self is Unit.RECORD else []


VACUOUS: Mapping[Unit, str] = {
    Unit.CLIENT: "one random client's whole data",
    Unit.RECORD: "one random record",
    Unit.PERSON: "all rows of one random person",
}
NEIGHBOURS: Mapping[Unit, str] = {
    Unit.CLIENT: (
        "one client's contributions replaced by nothing, under the same schedule; who takes part is public and fixed"
    ),
    Unit.RECORD: (
        "one record's contents replaced by nothing (it contributes nothing), its place kept; how many records each "
        "client has, and which client holds which, is public and fixed"
    ),
    Unit.PERSON: (
        "all rows of one person replaced by nothing (they contribute nothing), its place kept; how many persons each "
        "client has, and which client knows whom, is public and fixed"
    ),
}


def rows_words(figures: Mapping[str, float | None], observer: str | None = None) -> str:
    """Say that records are rows and not persons.

    Args:
        figures: epsilon of a person by the number of its rows at one client, where it is known.
        observer: observer whom the figures are for; None where they hold for all.
    """
    known = {rows: epsilon for rows, epsilon in figures.items() if epsilon is not None and math.isfinite(epsilon)}
    if not known:
        return f"{NOT_PERSONS}: somebody with several rows pays for each of them."
    costs = ", ".join(f"with {rows} rows up to {round_up(epsilon)}" for rows, epsilon in known.items())
    whose = f" for the {observer}" if observer else ""
    return f"{NOT_PERSONS}: somebody who has several rows at a client has a larger epsilon{whose}, {costs}."


def protection(
    unit: Unit, figures: Mapping[str, float | None] | None = None, observer: str | None = None
) -> dict[str, str]:
    """Keys of a document that say what its epsilons protect: `unit`, `neighbours` and, of records, `rows_not_persons`.

    Args:
        unit: what is protected.
        figures: as for `rows_words`.
        observer: likewise.
    """
    found = {"unit": str(unit), "neighbours": unit.neighbours}
    return found | {"rows_not_persons": rows_words(figures or {}, observer)} if unit is Unit.RECORD else found


def person_words(sites: int) -> str:
    """Say which rows of a person are protected together; `sites` is the largest number of clients that know it."""
    if sites > 1:
        return f"Protects one person with all of its rows, at up to {sites} clients together."
    return (
        "Protects one person with all of its rows at one client. Somebody who is known to several clients pays at each "
        "of them: declare max_sites_per_person."
    )
