"""Declaring what leaves a client beside the code that computes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sordino.privacy.budget.record_level_plan import RecordNeeds
from sordino.privacy.release.base import Release, ReleaseError, Releases
from sordino.privacy.unit import Unit

Step = TypeVar("Step", bound=Callable[..., Any])
OURS = "sordino.privacy."
"""Package in which all kinds of releases are defined."""


def sends(declare: Callable[[Any], Releases]) -> Callable[[Step], Step]:
    """Declare what leaves a client beside the code that computes it.

    `declare` maps the method (its hyper-parameters) to the releases of the decorated step. A key that the
    step returns and `declare` does not name raises at the gate.
    """
    if not callable(declare) or len(inspect.signature(declare).parameters) != 1:
        given = getattr(declare, "__qualname__", None) or repr(declare)
        raise ReleaseError(
            f"@sends takes a function from the method to its releases, not {given}: write "
            '@sends(lambda self: {"update": Update(clip=1.0)}).'
        )

    def decorate(step: Step) -> Step:
        step.releases = declare  # type: ignore[attr-defined]
        return step

    return decorate


def due(releases: Releases, round: int) -> Releases:
    """Releases that leave in a `round`. Where one does not, the others share its part of the round's budget."""
    left = {name: release for name, release in releases.items() if round % release.every == 0}
    if len(left) == len(releases):
        return releases
    total = sum(release.share for release in left.values())
    return {n: replace(r, share=r.share / total) if r.share else r for n, r in left.items()}  # type: ignore[type-var]


def all_releases(steps: Mapping[str, Releases]) -> list[Release]:
    """Everything that a method's steps declare."""
    return [release for releases in steps.values() for release in releases.values()]


def record_needs(steps: Mapping[str, Releases]) -> RecordNeeds:
    """Add up the demands of all releases on a client's records besides noisy gradients."""
    return sum((release.needs() for release in all_releases(steps)), RecordNeeds())


def same_turns(steps: Mapping[str, Releases], step: str, name: str) -> set[str]:
    """Names of the releases that leave in the same turns of a client's records as one of a step's: noise was planned
    for gradients once in a turn, whatever they are called in other steps."""
    if not steps[step][name].made_of_gradients:
        return {name}
    declared = [item for releases in steps.values() for item in releases.items()]
    return {one for one, kind in declared if kind.made_of_gradients}


def takes_gradients_alone(releases: Releases) -> bool:
    """Whether a step sees nothing of its client's records but noisy gradients, with one noise for all parts: clients
    that take such a step can be stacked."""
    kinds = releases.values()
    return any(release.made_of_gradients for release in kinds) and all(release.stackable for release in kinds)


def check_steps(steps: Mapping[str, Releases], unit: Unit, states: Collection[str]) -> None:
    """Refuse declarations whose epsilon could not be true.

    Args:
        steps: releases of each step of a method.
        unit: what the method protects.
        states: names of the clients' public states.
    """
    for step, releases in steps.items():
        gradients = [name for name, release in releases.items() if release.made_of_gradients]
        if len(gradients) > 1:
            raise ReleaseError(
                f"{step} declares several releases of noisy gradients ({', '.join(gradients)}), but takes them once: "
                "declare one, and the others as Follows."
            )
        for name, release in releases.items():
            if not type(release).__module__.startswith(OURS):
                raise ReleaseError(
                    f"{step} declares {name} as {type(release).__name__}, a kind of release that is not Sordino's: "
                    f"what bounds, noises and charges a release must agree, and is looked after in {OURS[:-1]}; make "
                    "it of those kinds."
                )
            release.check()
            if release.unit not in (None, unit):
                raise ReleaseError(
                    f"{step} declares {name}, whose noise protects a {release.unit}, but the method protects a {unit}."
                )
            missing = [one for one in release.sources() if one not in gradients or releases[one].drawn]
            if missing:
                raise ReleaseError(
                    f"{step} declares that {name} follows {missing[0]}, which is no release of gradients that the step "
                    "sees: follow one of the kind Gradients."
                )
            if release.state is not None and release.state not in states:
                raise ReleaseError(f"{step} declares {name}, but clients have no public state {release.state!r}.")
            if release.drawn and not gradients:
                raise ReleaseError(
                    f"{step} declares {name} over a batch, but no GradientSum that draws one: declare it too."
                )
        idle = [name for name, release in releases.items() if release.summed and not release.share > 0]
        if idle:
            raise ReleaseError(f"{step} gives {idle[0]} no share of a round's budget: it must be above 0.")
        whole = sum(release.share for release in releases.values() if release.summed)
        if whole > 1 + 1e-9:
            raise ReleaseError(f"{step} gives its releases {whole:g} of a round's budget: shares must add up to one.")
    _check_sums(steps, states)


def _check_sums(steps: Mapping[str, Releases], states: Collection[str]) -> None:
    """Refuse sums over records that clients could learn from, or of which no single plan could be made."""
    sums = [release for release in all_releases(steps) if release.sums_records]
    if sums and states:
        raise ReleaseError(
            f"Clients keep public states of what they sent ({', '.join(sorted(states))}), but a message in a sum over "
            "records carries a share of the noise only: nothing may be learned from it."
        )
    rates = {release.needs().rate for release in sums} - {None}
    if len(rates) > 1:
        raise ReleaseError("All sums of gradients of a method have one sampling rate: declare the same `rate`.")
    others = [release for release in all_releases(steps) if release.record_level and not release.summed]
    if sums and others:
        raise ReleaseError(
            "A method sends either sums over records, whose noise is shared out, or what is covered by a client's own "
            f"noise; it cannot have both: no noise is planned for {others[0].describe()}."
        )
    once = sum(release.needs().sum_share for release in sums)
    if once > 1 + 1e-9 or (rates and once >= 1):
        raise ReleaseError(f"Sums over all records have {once:g} of the budget: leave some of it for the rest.")
