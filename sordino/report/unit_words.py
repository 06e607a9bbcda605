"""Words of statements for what an epsilon protects: the only place where they differ from unit to unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class UnitWords:
    """Words for one unit."""

    one: str
    """The unit in a sentence: "The figures protect one client as a whole"."""
    noun: str
    plural: str
    guessed: str
    """Fact about a unit that an attacker guesses: "whether a client took part"."""
    secret: str
    """The same in plain words: "whether a certain client took part"."""
    absent: str
    """Units about which a suspicion would be wrong."""
    present: str
    """Units about which it would be right."""
    plain: str
    """Sentences for somebody who knows no statistics."""
    registry: str
    """Value of `privacy_unit` in the Deployments Registry."""


WORDS: Mapping[str, UnitWords] = {
    "client": UnitWords(
        one="one client as a whole",
        noun="client",
        plural="clients",
        guessed="a client took part",
        secret="a certain client took part",
        absent="clients that took no part",
        present="clients that took part",
        plain="One client as a whole: everything that it contributed, whatever its records are. The figures are about "
        "clients, not about single persons in their records.",
        registry="client (a participating organisation or device, with all of its records)",
    ),
    "record": UnitWords(
        one="one record of a client",
        noun="row",
        plural="rows",
        guessed="a record was among those trained on",
        secret="a certain row was used",
        absent="rows that were not used",
        present="rows that were used",
        plain="One row of a client's table, not one person. Somebody with several rows is protected less than the "
        "figures say.",
        registry="record (one row of a client's table)",
    ),
    "person": UnitWords(
        one="one person",
        noun="person",
        plural="persons",
        guessed="a person's rows were among those trained on",
        secret="a certain person's rows were used",
        absent="persons whose rows were not used",
        present="persons whose rows were used",
        plain="One person: all of the person's rows, at all sites that hold some, as far as the experiment declares in "
        "how many places a person may be.",
        registry="person (all rows of one person)",
    ),
}
"""Words by unit; a unit that is new gets an entry."""


def words_for(unit: str) -> UnitWords:
    """Words for a unit (`sordino.privacy.unit.Unit`, or its text)."""
    return WORDS[str(unit)]
