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
    """Fact that an attacker guesses, in plain words: "whether a certain client took part"."""
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
        absent="absent clients",
        present="present clients",
        plain="One client as a whole; the figures are not about single persons in its records.",
        registry="client (a participating organisation or device, with all of its records)",
    ),
    "record": UnitWords(
        one="one record of a client",
        noun="row",
        plural="rows",
        guessed="a record was among those trained on",
        secret="a certain row was used",
        absent="unused rows",
        present="used rows",
        plain="One row of a table, not one person: somebody with several rows is protected less.",
        registry="record (one row of a client's table)",
    ),
    "person": UnitWords(
        one="one person",
        noun="person",
        plural="persons",
        guessed="a person's rows were among those trained on",
        secret="a certain person's rows were used",
        absent="absent persons",
        present="present persons",
        plain="One person, with all rows that one participant has of this person",
        registry="person (all rows of one person)",
    ),
}
"""Words by unit; a unit that is new gets an entry."""


def plain_words(unit: str, sites: int) -> str:
    """Sentences for somebody who knows no statistics, on what a unit is; of persons, `sites` is the largest number of
    places that may know one."""
    plain = WORDS[str(unit)].plain
    if str(unit) != "person":
        return plain
    if sites > 1:
        return f"One person, with all rows that up to {sites} participants together have of this person."
    return f"{plain}. Somebody with rows at several participants is protected less than this page says."


def words_for(unit: str) -> UnitWords:
    """Words for a unit (`sordino.privacy.unit.Unit`, or its text)."""
    return WORDS[str(unit)]
