"""Findings and reports of an audit, for people, machines and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from sordino.auditing.bounds import Guesses
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View

SAID = 0.95
"""Confidence of the bounds that are printed."""
SURE = 0.999
"""Confidence with which a claim is called refuted, all attacks of an audit together."""
RISK = (1 - SURE) / 1000
"""Risk of a false alarm of one test of tier 0: an audit makes a few dozen, and audits are made by the thousand."""
FLOAT32_SLACK = 2e-5
"""Largest relative change of a variance by rounding to float32."""


@dataclass(frozen=True)
class Finding:
    """Something that an audit has to say."""

    tier: int
    name: str
    sentence: str
    refuted: bool = False
    views: tuple[View, ...] = VIEWS
    """Observers whose claim it refutes, where it does."""

    def asdict(self) -> dict[str, Any]:
        """Finding as a JSON document."""
        return {"tier": self.tier, "name": self.name, "sentence": self.sentence, "refuted": self.refuted}


@dataclass(frozen=True)
class Scores:
    """Scores of trials with the canary and without: larger where the attack takes it to be there."""

    inside: np.ndarray
    outside: np.ndarray
    threshold: float
    """Fixed before any of these was looked at."""

    @classmethod
    def of(cls, inside: np.ndarray, outside: np.ndarray, pilot: float = 0.02) -> Scores:
        """Scores of which a first share decides where the threshold lies, and is not counted: half way between the two
        means, each in units of its own deviation."""
        first = tuple(max(min(50, len(one) // 2), int(pilot * len(one))) for one in (inside, outside))
        known, others = inside[: first[0]], outside[: first[1]]
        spread = known.std() + others.std()
        weight = others.std() / spread if spread > 0 else 0.5
        threshold = float(others.mean() + weight * (known.mean() - others.mean()))
        return cls(inside[first[0] :], outside[first[1] :], threshold)

    def guesses(self, part: float = 1.0) -> Guesses:
        """Guesses of the test on a share `part` of the trials."""
        a, b = max(1, int(part * len(self.inside))), max(1, int(part * len(self.outside)))
        return Guesses.of(self.inside[:a], self.outside[:b], self.threshold)


@dataclass(frozen=True)
class Attack:
    """One attack on one view's claim."""

    name: str
    view: View
    bound: float
    """Epsilon is at least this, at 95 %."""
    surely: float
    """Epsilon is at least this, at the confidence with which claims are refuted."""
    model_free: float = 0.0
    """The bound at 95 % that presumes no curve."""
    scores: Scores | None = None
    single: float | None = None
    """The mu that is charged for what the scores are of, where that is one release of many."""
    paid: float = 0.0
    """The epsilon that the ledger tells of the run that was attacked, where that is another than the recorded one."""


@dataclass
class ViewReport:
    """Claim against one observer, and the attacks on it."""

    claimed: float
    true: float | None = None
    """Epsilon by the ledger, where the claim is a paper's."""
    attacks: list[Attack] = field(default_factory=list)

    @property
    def best(self) -> Attack | None:
        """The attack that reached most; where some refute the claim, of those."""
        return max(self.attacks, key=lambda one: (self._refutes(one), one.bound), default=None)

    @property
    def bound(self) -> float:
        """Lower bound of epsilon by the best attack, at 95 %."""
        return 0.0 if self.best is None else self.best.bound

    @property
    def surely(self) -> float:
        """Lower bound by the same attack, at the confidence with which claims are refuted."""
        return 0.0 if self.best is None else self.best.surely

    @property
    def refuted(self) -> bool:
        """Whether an attack surely reached more than is claimed."""
        return any(self._refutes(one) for one in self.attacks)

    def add(self, attack: Attack) -> None:
        """Take in an attack. How long a script goes on may follow from noise: the ledger's claim is that of the run
        that cost most, of those that were attacked. A paper's claim is the same for all of them."""
        self.attacks.append(attack)
        if self.true is None:
            self.claimed = max(self.claimed, attack.paid)

    def _refutes(self, attack: Attack) -> bool:
        return attack.surely > self.claimed * (1 + 1e-9)


@dataclass
class Report:
    """Report of the audit of one method."""

    method: str
    variant: str
    unit: Unit
    delta: float
    views: dict[View, ViewReport]
    findings: list[Finding] = field(default_factory=list)
    trials: int = 0
    seconds: float = 0.0
    called: str = ""
    """The method with the hyper-parameters that are not its defaults."""

    @property
    def refuted(self) -> bool:
        """Whether anything that is claimed is false."""
        return any(view.refuted for view in self.views.values()) or any(one.refuted for one in self.findings)

    def refutes(self, view: View) -> bool:
        """Whether what is claimed against one observer is false."""
        return self.views[view].refuted or bool(self.against(view))

    def against(self, view: View) -> list[Finding]:
        """The findings that refute what is claimed against one observer."""
        return [one for one in self.findings if one.refuted and view in one.views]

    def asdict(self, pictures: bool = False) -> dict[str, Any]:
        """Report as a JSON document; infinite figures are None."""
        views: dict[str, Any] = {}
        for name, view in self.views.items():
            one: dict[str, Any] = {
                "claimed": finite(view.claimed),
                "bound": finite(view.bound),
                "confidence": SAID,
                "surely": {"bound": finite(view.surely), "confidence": SURE},
                "refuted": self.refutes(name),
                "model_free": finite(0.0 if view.best is None else view.best.model_free),
                "attack": None if view.best is None else view.best.name,
            }
            if view.true is not None:
                one["true"] = finite(view.true)
            shown = [attack for attack in view.attacks if attack.scores is not None]
            if pictures and shown:
                one["pictures"] = pictures_of(max(shown, key=lambda attack: attack.bound), view.claimed, self.delta)
            views[name] = one
        return {
            "method": self.method,
            "called": self.called or self.method,
            "variant": self.variant,
            "unit": self.unit,
            "neighbours": self.unit.neighbours,
            "delta": self.delta,
            "views": views,
            "findings": [one.asdict() for one in self.findings],
            "refuted": self.refuted,
            "trials": self.trials,
            "seconds": round(self.seconds, 3),
        }


def finite(figure: float) -> float | None:
    """A figure for machines: None where it is infinite."""
    return figure if math.isfinite(figure) else None


def pictures_of(attack: Attack, claimed: float, delta: float) -> dict[str, Any]:
    """Data for the pictures of a page: the scores with and without the canary, the trade-off curve claimed and
    attacked, and how the bound grows with the number of trials, where one trial is of everything that is claimed.

    Args:
        attack: attack whose scores are drawn.
        claimed: claimed epsilon.
        delta: delta of the claim.
    """
    from sordino.privacy.accounting.gaussian import mu_of

    scores, single = attack.scores, attack.single
    assert scores is not None
    both = np.concatenate([scores.inside, scores.outside])
    edges = np.linspace(float(both.min()), float(both.max()) + 1e-9, 41)
    rates = np.linspace(0.005, 0.995, 60)
    thresholds = np.quantile(scores.outside, 1 - rates)
    attacked = [[float(r), float((scores.inside <= t).mean())] for r, t in zip(rates, thresholds, strict=True)]
    mu = single if single is not None else mu_of(claimed, delta) if math.isfinite(claimed) else math.inf
    shares = [share for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if share * len(scores.inside) >= 50]
    found: dict[str, Any] = {
        "scores": {
            "edges": edges.tolist(),
            "in": np.histogram(scores.inside, edges)[0].tolist(),
            "out": np.histogram(scores.outside, edges)[0].tolist(),
            "threshold": scores.threshold,
        },
        "tradeoff": {
            "false_positives": rates.tolist(),
            "claimed": ndtr(ndtri(1 - rates) - mu).tolist(),
            "attacked": attacked,
        },
    }
    if single is None:
        found["trials"] = {
            "trials": [int(share * len(both)) for share in shares],
            "bound": [finite(scores.guesses(share).gdp(delta, SAID)) for share in shares],
        }
    return found
