"""Blocks of a privacy statement, such as tables, lists and pictures, before they are written in a format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

BLANK = "________________"
"""Place for what only the controller of the data knows."""


@dataclass(frozen=True)
class Table:
    """A table of texts; below the width of a telephone each row becomes a list of its cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


class Drawn(Protocol):
    """An observer, as pictures show it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def attack(self) -> float:
        """Share of correct guesses of its best attack."""

    @property
    def tradeoff(self) -> list[list[float]]:
        """Points of wrong suspicions and hits."""


@dataclass(frozen=True)
class Attacks:
    """Picture of the best attacks: bars between a coin and certainty."""

    observers: Sequence[Drawn]
    who: str
    """Who the observers are, in few words."""


@dataclass(frozen=True)
class Tradeoff:
    """Picture of what is found over what is suspected wrongly."""

    observers: Sequence[Drawn]


Block = str | Table | Bullets | Tradeoff
"""Part of a section. In a text, what stands in backquotes is code."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class StatementPage:
    """Content of a statement in reading order."""

    title: str
    about: str
    """One line below the title."""
    glance: Sequence[tuple[str, str]]
    """Summary that is read in half a minute: what each paragraph is about, and the paragraph."""
    attacks: Attacks | None
    """Picture below it, and a line to sign; None on pages that claim no protection."""
    sections: Sequence[Section]
    annex: Sequence[Section] = field(default=())
