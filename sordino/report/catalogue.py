"""What the installed methods are, told from their own declarations."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args

from sordino.method import Variant
from sordino.methods import find, names
from sordino.models.networks import NETWORKS
from sordino.privacy.release import all_releases
from sordino.privacy.views import VIEWS
from sordino.report.hyperparameters import hyperparameters


def describe_methods() -> list[dict[str, Any]]:
    """For each method: name, paper, unit, what leaves a client, and for whom each variant's epsilon holds."""
    return [_described(name) for name in names()]


def describe_method(name: str) -> dict[str, Any]:
    """The same of one method, with its hyper-parameters; a user's own is known by its dotted name."""
    return _described(name) | {"hyperparameters": hyperparameters(find(name))}


def _described(name: str) -> dict[str, Any]:
    kind = find(name)
    variants = {}
    for variant in get_args(Variant):
        covered = all(release.private for release in all_releases(kind(variant=variant).steps()))
        variants[variant] = {"views": list(VIEWS) if covered else [], "caveat": kind.caveats.get(variant, "")}
    sent = {key: release.describe() for step in kind().steps().values() for key, release in step.items()}
    about = {"name": name, "title": getattr(kind, "title", name), "paper": getattr(kind, "paper", "")}
    return {**about, "unit": kind.unit, "releases": sent, "variants": variants}


def describe_models() -> list[dict[str, Any]]:
    """For each network: what it is, its size for the inputs of its paper, and its options with their defaults."""
    return [
        {
            "name": name,
            "about": network.about,
            "shape": list(network.shape),
            "classes": network.classes,
            "parameters": network.parameters,
            "options": {
                option.name: option.default
                for option in inspect.signature(network.make).parameters.values()
                if option.kind is option.KEYWORD_ONLY
            },
        }
        for name, network in NETWORKS.items()
    ]


LEVELS = {
    "client": "One whole client is protected",
    "record": "One record of a client is protected",
    "none": "Nothing is protected, or nothing leaves",
}
"""By what a method's default variant protects, in the order of the table."""
TABLE = re.compile(r"(<!-- methods -->\n).*?(<!-- end of methods -->)", re.DOTALL)
"""Where a text has the table of methods."""


def methods_markdown() -> str:
    """A table of all methods, one part for each level."""
    parts = []
    for level, heading in LEVELS.items():
        rows = [_markdown_row(name) for name in names() if _level(name) == level]
        head = ["| name | what it does | published | what leaves a client |", "|---|---|---|---|"]
        parts += [f"{heading}:", "", *head, *rows, ""]
    return "\n".join(parts)


def methods_in_short() -> str:
    """The names of all methods, those of a level in one row."""
    rows = [
        f"| {heading} | {', '.join(f'`{name}`' for name in names() if _level(name) == level)} |"
        for level, heading in LEVELS.items()
    ]
    return "\n".join(["| | methods |", "|---|---|", *rows, ""])


def with_table(text: str) -> str:
    """A text with its short table of methods made anew."""
    return TABLE.sub(lambda found: f"{found[1]}{methods_in_short()}{found[2]}", text)


def _level(name: str) -> str:
    method = find(name)()
    return method.unit if method.is_private() else "none"


def _markdown_row(name: str) -> str:
    kind = find(name)
    sound, paper = (_leaving(name, variant) for variant in get_args(Variant))
    leaves = sound if paper == sound else f"{sound}<br>`paper`: {paper}"
    return f"| `{name}` | {kind.title} | {kind.paper} | {leaves} |"


def _leaving(name: str, variant: Variant) -> str:
    """The names of what leaves in a variant, what leaves bare apart."""
    sent = {key: r.private for step in find(name)(variant=variant).steps().values() for key, r in step.items()}
    noised, bare = (", ".join(key for key, private in sent.items() if private == kind) for kind in (True, False))
    return "; ".join(part for part in (noised, f"bare: {bare}" if bare else "") if part) or "nothing"
