"""What the installed methods are, told from their own declarations."""

from __future__ import annotations

from typing import Any, get_args

from sordino.method import Variant
from sordino.methods import find, names
from sordino.privacy.views import VIEWS


def describe_methods() -> list[dict[str, Any]]:
    """For each method: name, paper, unit, what leaves a client, and for whom each variant's epsilon holds."""
    described = []
    for name in names():
        kind = find(name)
        variants = {}
        for variant in get_args(Variant):
            releases = [r for step in kind(variant=variant).steps().values() for r in step.values()]
            covered = all(release.private for release in releases)
            variants[variant] = {
                "views": list(VIEWS) if covered else [],
                "caveat": kind.caveats.get(variant, ""),
            }
        sent = {key: release.describe() for step in kind().steps().values() for key, release in step.items()}
        described.append(
            {
                "name": name,
                "title": kind.title,
                "paper": kind.paper,
                "unit": kind.unit,
                "releases": sent,
                "variants": variants,
            }
        )
    return described
