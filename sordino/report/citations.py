"""Citations of methods, read from the headers of their files: one place for people and for BibTeX."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sordino.methods import find

_NAME = r"[^\W\d_][\w'-]*"
_CITATION = re.compile(
    rf'(?:(?P<authors>{_NAME}(?:, {_NAME})*(?P<more> et al\.)?)[:,] |\()"(?P<title>[A-Z][^" ]* [^"]{{10,}})"'
    r"(?:, (?P<venue>(?:[^();.\"]|\(\d+\))*?)(?:, | )?(?P<year>(?:19|20)\d\d)\b(?: \(arXiv (?P<arxiv>[\d.]+)\))?)?"
)
"""A work in a header: authors with a colon or comma behind them, the title in quotation marks, venue and year."""


@dataclass(frozen=True)
class Citation:
    """One published work."""

    authors: tuple[str, ...]
    """Surnames; `others` for "et al."."""
    title: str
    venue: str
    """Conference or journal; empty where the header names none."""
    year: str
    """Year of publication; empty where the header names none."""
    arxiv: str
    """Number at arXiv; empty where the header names none."""

    @property
    def key(self) -> str:
        """Key in a bibliography: first author, year and the first long word of the title; without authors the word
        leads."""
        word = next((word for word in re.findall(r"[A-Za-z]+", self.title) if len(word) > 3), "work")
        key = f"{self.authors[0]}{self.year}{word}" if self.authors else f"{word}{self.year}"
        return re.sub(r"\W", "", key.lower())

    def bibtex(self, key: str) -> str:
        """Entry for BibTeX under a key; whatever the header does not say is left out."""
        fields = {
            "author": " and ".join(self.authors),
            "title": f"{{{self.title}}}",
            "howpublished": self.venue.replace("&", r"\&"),
            "year": self.year,
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else "",
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join([f"@misc{{{key},", *lines, "}"])


def citations_in(header: str) -> list[Citation]:
    """Works that the header of a method's file cites, in their order."""
    found = []
    for match in _CITATION.finditer(" ".join(header.split())):
        parts = {name: value or "" for name, value in match.groupdict().items()}
        names = parts["authors"].removesuffix(" et al.")
        authors = [*(names.split(", ") if names else []), *(["others"] if parts["more"] else [])]
        venue = parts["venue"].strip(", ")
        found.append(Citation(tuple(authors), parts["title"], venue, parts["year"], parts["arxiv"]))
    return found


def header_of(method: str) -> str:
    """Header of the file of a method, named as in an experiment; empty where there is none."""
    module = inspect.getmodule(find(method))
    return (None if module is None else inspect.getdoc(module)) or ""


def bibliography(methods: Sequence[str]) -> str:
    """Text of a BibTeX file with every work that the methods' headers cite; a comment names the methods of each."""
    users: dict[tuple[str, str], list[str]] = {}
    works: dict[tuple[str, str], Citation] = {}
    without = []
    for name in dict.fromkeys(methods):
        cited = citations_in(header_of(name))
        for one in cited:  # some headers say more of a work than others
            works.setdefault((one.title, one.year), one)
            users.setdefault((one.title, one.year), []).append(name)
        if not cited:
            without.append(name)
    keys = [one.key for one in works.values()]
    entries = []
    for place, (which, one) in enumerate(works.items()):
        twins = keys[:place].count(keys[place])
        key = keys[place] + ("abcdefghijklmnopqrstuvwxyz"[twins] if twins else "")
        entries.append(f"% {', '.join(users[which])}\n{one.bibtex(key)}")
    return "\n\n".join(entries + [f"% {name}: the header of its file cites no work." for name in without]) + "\n"
