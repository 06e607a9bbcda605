"""Plausibility checks of a column over several sites' tables, as questions to the user: columns without values, codes
of missing values, differing scales and units, other spellings of a value.

They follow from counts of raw cells: they are for whoever holds the tables, and no epsilon covers them.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from sordino.data.encoding import WITH_UNIT
from sordino.data.schema import list_values, unit_key

BySite = Mapping[str, Sequence[str]]
"""Cells of a column that have a value, of each site."""
Numbers = Mapping[str, Sequence[float]]
"""Numbers of a column, of each site."""
ENOUGH_TO_ASK = 10
"""Fewest values of a site about whose values as a whole a question is asked."""
FEW_CODES = 10
"""Most different whole numbers that may be codes of categories."""
CODES = (0.0, -1.0, -9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)
"""Numbers that often stand for a missing value."""
ISOLATED = 3.0
"""Number of usual steps between values from which on a code lies apart from them."""
OTHER_UNIT = 3.0
"""Ratio of medians from which on a site may use another unit."""
MOST_UNITS = 5
MOST_WAYS = 10
"""Ways of writing a column that a question names."""
MOST_COMPARED = 100
"""Most different values of which each is compared with each other."""
GAP = re.compile(r"(?<=[^\W\d_])[\s_-]+(?=\w)")
SYNONYMS = (
    frozenset({"m", "male", "man", "männlich"}),
    frozenset({"f", "female", "woman", "w", "weiblich"}),
    frozenset({"y", "yes", "true", "1", "j", "ja", "oui"}),
    frozenset({"n", "no", "false", "0", "nein", "non"}),
)
"""Words that mean the same."""


@dataclass(frozen=True)
class ColumnQuestion:
    """A question about one column."""

    text: str
    """As it stands beside the column."""
    shared: str = ""
    """As it is asked once for all columns that have it, with {} for their names; empty where it is this column's."""


RANGES = ColumnQuestion(
    "which range is public knowledge? The one here was read from the records.",
    "Which ranges are public knowledge? These were read from the records: {}.",
)
VALUES = ColumnQuestion(
    "which values may occur? Those here were read from the records.",
    "Which values may occur? These were read from the records: {}.",
)
INTEGER_CODES = ColumnQuestion(
    "a few whole numbers: are they an amount, or codes without order? Codes are categories: kind = "
    '"category" with values (`sordino data schema` with --categorical writes them).',
    "Amounts, or codes without order? A few whole numbers each: {}. Take codes as categories (--categorical).",
)


def merge(asked: Mapping[str, Sequence[ColumnQuestion]]) -> list[str]:
    """Sentences with all questions of all columns: those of a single column by its name, then shared ones."""
    own = [f"{name}: {one.text}" for name, questions in asked.items() for one in questions if not one.shared]
    shared: dict[str, list[str]] = {}
    for name, questions in asked.items():
        for one in questions:
            if one.shared:
                shared.setdefault(one.shared, []).append(name)
    return own + [text.format(", ".join(names)) for text, names in shared.items()]


def ask_of_sites(cells: BySite) -> list[ColumnQuestion]:
    """Ask about sites that have no value at all, or one value in all records, while others' values vary."""
    filled = {site: set(texts) for site, texts in cells.items()}
    empty = [site for site, values in filled.items() if not values]
    found = []
    if empty and len(empty) < len(filled):
        found.append(ColumnQuestion(f"no record of {list_values(empty)} has a value: is it measured there?"))
    if len(set().union(*filled.values())) < 2:
        return found
    constant: dict[str, list[str]] = {}
    for site, values in filled.items():
        if len(values) == 1 and len(cells[site]) >= ENOUGH_TO_ASK:
            constant.setdefault(min(values), []).append(site)
    return found + [
        ColumnQuestion(
            f"all values of {list_values(sites)} are {value!r}: is it measured there, or is that a code? A column that "
            "is constant at a site tells its records from the others'."
        )
        for value, sites in constant.items()
    ]


def ask_of_codes(name: str, numbers: Numbers) -> list[ColumnQuestion]:
    """Ask about numbers of the column `name` that look like codes of missing values, naming the sites that have
    them."""
    everything = np.concatenate([np.asarray(one, dtype=float) for one in numbers.values()])
    found = []
    for code in CODES:
        rest = np.unique(everything[everything != code])
        if len(rest) == len(np.unique(everything)) or len(rest) <= FEW_CODES or not _apart(code, rest):
            continue
        counts = {site: sum(number == code for number in one) for site, one in numbers.items()}
        where = ", ".join(f"{count} of {len(numbers[site])} at {site}" for site, count in counts.items() if count)
        nearest = float(rest[0] if code < rest[0] else rest[-1])
        found.append(
            ColumnQuestion(
                f"{code:g} lies apart from all other values ({where}; the next is {nearest:g}): does it stand for a "
                f"missing value? Then draft again with --missing-code {shlex.quote(name)}={code:g}, or write "
                f"missing_codes = [{code:g}] and a rule for missing values."
            )
        )
    return found


def _apart(code: float, rest: np.ndarray) -> bool:
    """Whether a code lies outside the sorted numbers `rest`, by more than a few of their usual steps and, above them,
    by as much as they span."""
    step = float(np.median(np.diff(rest)))
    if code < rest[0]:
        return bool(rest[0] >= 0 and rest[0] - code >= ISOLATED * step and rest[0] >= 0.05 * np.median(rest))
    return bool(code - rest[-1] >= max(ISOLATED * step, float(rest[-1] - rest[0])))


def ask_of_scales(numbers: Numbers) -> list[ColumnQuestion]:
    """Ask about sites whose numbers are several times as large, or as small, as the other sites'."""
    medians = {site: float(np.median(one)) for site, one in numbers.items() if len(one) >= ENOUGH_TO_ASK}
    varied = {
        site: median
        for site, median in medians.items()
        if min(numbers[site]) > 0 and len(set(numbers[site])) > FEW_CODES
    }
    found = []
    for site, median in varied.items():
        others = [other for name, other in varied.items() if name != site]
        ratio = median / float(np.median(others)) if others else 1.0
        if abs(math.log(ratio)) > math.log(OTHER_UNIT) and len(others) > 1:
            found.append(
                ColumnQuestion(
                    f"the median at {site} is {ratio:.3g} times that of the other sites: is it another unit there?"
                )
            )
    return found


def find_units(cells: BySite) -> dict[str, list[str]] | None:
    """Units behind the numbers of a column, each with its sites ("" for numbers without one); None where some cells are
    neither a number nor a number with a unit, or none has a unit."""
    sites: dict[str, dict[str, None]] = {}
    spelled: dict[str, str] = {}
    for site, texts in cells.items():
        mine = set()
        for text in texts:
            unit = _unit_of(text)
            if unit is None:
                return None
            spelled.setdefault(unit_key(unit), unit)
            sites.setdefault(unit_key(unit), {})[site] = None
            mine.add(unit_key(unit))
        if len(mine) > 1 and any(len(unit) == 1 and unit.isalpha() for unit in mine):
            return None  # 3a and 3b are names of wards
    if not set(sites) - {""} or len(sites) > MOST_UNITS:
        return None
    return {spelled[unit]: list(where) for unit, where in sites.items()}


def _unit_of(text: str) -> str | None:
    """The unit behind a number, "" where there is none; None where the text is no number."""
    plain = text.replace(",", ".")
    try:
        float(plain)
    except ValueError:
        found = WITH_UNIT.match(plain)
        return None if found is None else found["unit"].strip()
    return ""


def number_of(text: str) -> float:
    """The number in a cell, with a point or a comma before its decimals, and without the unit behind it."""
    plain = text.replace(",", ".")
    found = WITH_UNIT.match(plain) if _unit_of(text) else None
    return float(plain if found is None else found["number"])


def ask_of_units(units: Mapping[str, Sequence[str]]) -> ColumnQuestion:
    """Ask about units that stand in cells, naming the sites."""
    where = "; ".join(f"{unit or 'none'} at {list_values(list(sites))}" for unit, sites in units.items())
    named = [unit for unit in units if unit]
    if len(named) == 1:
        return ColumnQuestion(
            f"cells have a unit ({where}), which is left out: do sites without one measure in it, too?"
        )
    return ColumnQuestion(
        f"cells have different units ({where}), which are left out: write the factor behind each of them in `units` by "
        "which its numbers are multiplied."
    )


def find_spellings(cells: BySite, written: BySite) -> tuple[dict[str, str], list[ColumnQuestion]]:
    """Other spellings of values, each with that of the site with most records, and a question that names the sites.

    Args:
        cells: values of each site as they are compared.
        written: values of each site as they are written there.
    """
    by_site = {site: set(texts) for site, texts in cells.items() if texts}
    largest = sorted(by_site, key=lambda site: -len(cells[site]))
    values = list(dict.fromkeys(value for site in largest for value in sorted(by_site[site])))
    if len(values) > MOST_COMPARED:
        return {}, []
    same = _Groups(values)
    for place, one in enumerate(values):
        for other in values[place + 1 :]:
            apart = not any(one in mine and other in mine for mine in by_site.values())
            if _plain(one) == _plain(other) or (apart and _synonyms(one, other)):
                same.join(one, other)
    for one_way, other_way in itertools.permutations({frozenset(mine) for mine in by_site.values()}, 2):
        for short, long in _abbreviations(one_way, other_way):
            same.join(short, long)
    aliases = same.aliases()
    found = []
    if aliases:
        ways: dict[str, list[str]] = {}
        for site in by_site:
            ways.setdefault(list_values(sorted(set(written[site]))), []).append(site)
        where = "; ".join(f"{way} at {list_values(sites)}" for way, sites in list(ways.items())[:MOST_WAYS])
        found.append(
            ColumnQuestion(
                f"values are written differently at sites ({where}) and taken as one (aliases): is that right?"
            )
        )
    meant = {site: {aliases.get(value, value) for value in mine} for site, mine in by_site.items()}
    for site, mine in meant.items():
        others = set().union(*(theirs for name, theirs in meant.items() if name != site))
        if others and not mine & others and len(cells[site]) >= ENOUGH_TO_ASK:
            found.append(
                ColumnQuestion(
                    f"{site} writes {list_values(sorted(set(written[site])))}, which no other site does: if these are "
                    "other spellings of the same values, name them under `aliases`."
                )
            )
    return aliases, found


class _Groups:
    """Values that mean the same, joined step by step."""

    def __init__(self, values: Sequence[str]) -> None:
        """`values` are in the order in which they are preferred as the spelling of a group."""
        self._head = {value: value for value in values}

    def join(self, one: str, other: str) -> None:
        kept, gone = self._head[one], self._head[other]
        self._head = {value: kept if head == gone else head for value, head in self._head.items()}

    def aliases(self) -> dict[str, str]:
        """Each value that is not the preferred one of its group, with the one that is."""
        best: dict[str, str] = {}
        for value, head in self._head.items():
            best.setdefault(head, value)
        return {value: best[head] for value, head in self._head.items() if best[head] != value}


def _plain(text: str) -> str:
    """A value in small letters, without gaps and hyphens behind letters and without a full stop: signs may matter."""
    return GAP.sub("", text.casefold()).rstrip(".") or text


def _synonyms(one: str, other: str) -> bool:
    return any({_plain(one), _plain(other)} <= group for group in SYNONYMS)


def _abbreviations(short: Set[str], long: Set[str]) -> list[tuple[str, str]]:
    """Pairs of values of two sites where all values of one abbreviate one value each of the other; else none."""
    if len(short) < 2 or len(short) != len(long) or {_plain(one) for one in short} & {_plain(one) for one in long}:
        return []
    pairs = [(one, [other for other in long if _plain(other).startswith(_plain(one))]) for one in short]
    if any(len(found) != 1 for _, found in pairs) or len({found[0] for _, found in pairs}) < len(long):
        return []
    return [(one, found[0]) for one, found in pairs]
