"""Ranking of compared methods: paired t-tests over seeds with confidence intervals, and the sentences on them.

Methods with equal seeds meet equal records and the same initial model, so their accuracies are compared seed by seed.
The mean difference has Student's interval. "Which is the best?" compares one method with all its rivals: these
comparisons share the error (Bonferroni), so that all of their intervals hold together with the stated confidence. "Does
this method gain over training alone?" is a question of its own for each method, and its interval stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import stdtrit

from sordino.errors import unknown
from sordino.util.formatting import round_up

if TYPE_CHECKING:
    from sordino.privacy.views import View
    from sordino.study.compare import ComparisonRow

CONFIDENCE = 0.95
MORE_SEEDS = (5, 10, 20)
"""Numbers of seeds that are proposed where fewer show nothing."""
Answer = Literal["better", "worse", "no difference shown", "not tested"]


@dataclass(frozen=True)
class RankingMetric:
    """A figure by which methods are ranked; more is better."""

    name: str
    """Name as users write it."""
    words: str
    """Name in a sentence."""
    lacking: str
    """Beginning of the sentence on methods that do not have the figure."""
    remedy: str
    """The rest of that sentence: what to do."""
    share: bool = True
    """Whether it is a share of records, which is told in percent."""

    def tell(self, value: float) -> str:
        """Format a value of the figure."""
        return f"{value:.1%}" if self.share else f"{value:.3f}"

    def tell_difference(self, value: float) -> str:
        """Format a difference of two values, with its sign and without a unit."""
        return f"{100 * value:+.1f}" if self.share else f"{value:+.3f}"


_NO_RECORDS = "No client has records to test models on with"
_MORE_RECORDS = "Give clients more records, or have fewer clients."
PERSONAL = RankingMetric("personal", "personal accuracy", _NO_RECORDS, _MORE_RECORDS)
JUDGES = {
    one.name: one
    for one in (
        PERSONAL,
        RankingMetric(
            "global", "global accuracy", "There is no global model with", "Judge by --judge personal to rank all."
        ),
        RankingMetric("worst-tenth", "accuracy of the worst tenth of the clients", _NO_RECORDS, _MORE_RECORDS),
        RankingMetric(
            *("AUC", "area under the curve", "There are not two classes, or no test records of both, with"),
            *("Judge by --judge personal.", False),
        ),
    )
}
"""Figures by which methods can be ranked, by name."""


def judge_of(name: str) -> RankingMetric:
    """The figure called `name`, in whatever case."""
    for judge in JUDGES.values():
        if judge.name.lower() == name.lower():
            return judge
    raise unknown("figure to judge by", name, list(JUDGES))


@dataclass(frozen=True)
class Difference:
    """Difference between two methods in the figure that they are judged by, for accuracies in shares of one."""

    method: str
    against: str
    """Method that `method` is compared with."""
    at: dict[str, Any]
    """Values of the keys that a comparison goes through."""
    mean: float
    """Mean over seeds; positive where `method` is better."""
    low: float | None
    """Lower end of the confidence interval; None where the difference is not tested."""
    high: float | None
    """Upper end of the confidence interval; None where the difference is not tested."""
    seeds: int
    """Number of seeds that both methods have."""
    verdict: Answer
    judge: str = PERSONAL.name
    """Name of the figure."""

    def reversed(self) -> Difference:
        """Difference of the other method from this one."""
        answers: dict[Answer, Answer] = {"better": "worse", "worse": "better"}
        low, high = None if self.high is None else -self.high, None if self.low is None else -self.low
        verdict = answers.get(self.verdict, self.verdict)
        return Difference(self.against, self.method, self.at, -self.mean, low, high, self.seeds, verdict)

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the difference."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Difference:
        """Difference that a document of `to_dict` holds."""
        return cls(**document)


@dataclass(frozen=True)
class Sample:
    """A figure of one method, one value per seed; accuracies in shares of one."""

    method: str
    by_seed: dict[int, float]
    at: dict[str, Any] = field(default_factory=dict)
    """Values of the keys that a comparison goes through."""
    judge: str = PERSONAL.name
    """Name of the figure."""


def difference(one: Sample, other: Sample, comparisons: int = 1) -> Difference:
    """Test the paired difference of two samples; `comparisons` is how many such tests shall hold together.

    Seeds that only one of them has do not count; with fewer than two in common the difference is not tested.
    """
    ours, theirs = one.by_seed, other.by_seed
    values = np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs])
    count = len(values)
    mean = float(values.mean()) if count else float(np.mean(list(ours.values())) - np.mean(list(theirs.values())))
    low = high = None
    verdict: Answer = "not tested"
    if count > 1:
        half = float(values.std(ddof=1)) * _half_width(count, comparisons)
        low, high = mean - half, mean + half
        verdict = "better" if low > 0 else "worse" if high < 0 else "no difference shown"
    return Difference(one.method, other.method, one.at, mean, low, high, count, verdict, one.judge)


def _half_width(seeds: int, comparisons: int) -> float:
    """Half-width of an interval that holds together with others, in standard deviations of a difference."""
    tail = (1 - CONFIDENCE) / (2 * comparisons)
    return float(stdtrit(seeds - 1, 1 - tail)) / math.sqrt(seeds)


def sentence(found: Difference) -> str:
    """Sentence on a difference."""
    tell = JUDGES[found.judge].tell_difference
    lead = f"{found.method} against {found.against}: {tell(found.mean)}" + " points" * JUDGES[found.judge].share
    if found.low is None or found.high is None:
        seeds = "one seed" if found.seeds == 1 else "no seed in common"
        return f"{lead}, from {seeds}, so chance is not ruled out."
    interval = f"{CONFIDENCE:.0%} interval {tell(found.low)} to {tell(found.high)}"
    return f"{lead}, {interval} over {found.seeds} seeds: {found.verdict}."


def verdicts(
    rows: Sequence[ComparisonRow], protect_from: View, judge: RankingMetric = PERSONAL
) -> tuple[list[str], list[Difference]]:
    """Rank the methods that protect the same unit: sentences, and the tests behind them. Rows without the figure that
    they are judged by are not ranked."""
    without = [row.method for row in rows if row.judged(judge) is None]
    rows = [row for row in rows if row.judged(judge) is not None]
    sentences, differences = _rank(rows, protect_from, judge)
    if without:
        sentences.append(f"{judge.lacking} {', '.join(without)}: not ranked. {judge.remedy}")
    return sentences, differences


def _rank(
    rows: Sequence[ComparisonRow], protect_from: View, judge: RankingMetric
) -> tuple[list[str], list[Difference]]:
    private = [row for row in rows if row.epsilon[protect_from]]
    free = [row for row in rows if row.epsilon[protect_from] == 0]
    units = list(dict.fromkeys(row.unit for row in private))
    if len(units) < 2:
        return _verdict(private, free, protect_from, judge)
    sentences = ["Client-level and record-level methods are not ranked together: their epsilons protect other things."]
    differences: list[Difference] = []
    for unit in units:
        told, found = _verdict([row for row in private if row.unit == unit], free, protect_from, judge)
        sentences += [f"Protecting one {unit}: {one}" for one in told]
        differences += found
    return sentences, differences


def _verdict(
    private: list[ComparisonRow], free: list[ComparisonRow], protect_from: View, judge: RankingMetric
) -> tuple[list[str], list[Difference]]:
    """Compare private methods and training alone: sentences on unequal epsilons, the best method, and whether
    federating pays."""
    sentences = _inequalities(private, protect_from)
    contenders = sorted(private + free, key=lambda row: -_mean(row, judge))
    if len(contenders) < 2:
        return sentences, []
    best, *others = contenders
    rivals = sum(row in private for row in others) if best in private else 0
    against_best = [(best, other) for other in others]
    against_alone = [(row, alone) for row in private for alone in free if row is not best and alone is not best]
    found = [
        difference(row.sample(judge), other.sample(judge), rivals if row in private and other in private else 1)
        for row, other in against_best + against_alone
    ]
    sentences.append(f"{best.method} has the best {judge.words}, {judge.tell(_mean(best, judge))}.")
    sentences += [sentence(one) for one in found[: len(others)]]
    sentences += _too_few_seeds(found, rivals)
    for (row, alone), one in zip(against_best + against_alone, found, strict=True):
        if row in private and alone in free:
            sentences += _pays(one.verdict, row, alone, judge)
        if row in free and alone in private and one.verdict == "better":
            sentences += _pays("worse", alone, row, judge)
    return sentences, found


def _mean(row: ComparisonRow, judge: RankingMetric) -> float:
    """Mean over seeds of the figure of a row that has one."""
    figure = row.judged(judge)
    assert figure is not None
    return figure.mean


def _too_few_seeds(found: list[Difference], rivals: int) -> list[str]:
    """Sentence on what more seeds would do, where so many rivals cannot all be told apart with the present ones."""
    seeds = max(one.seeds for one in found)
    more = next((number for number in MORE_SEEDS if number > seeds), None)
    open_ones = [one for one in found if one.verdict == "no difference shown"]
    if rivals < 2 or seeds < 2 or more is None or not open_ones:
        return []
    ratio = _half_width(seeds, rivals) / _half_width(more, rivals)
    return [
        f"With {seeds} seeds and {rivals} rivals at once only large differences show: with {more} seeds the intervals "
        f"are about {ratio:.1f} times narrower."
    ]


def _pays(verdict: Answer, row: ComparisonRow, alone: ComparisonRow, judge: RankingMetric) -> list[str]:
    """Sentence on whether a private federation is worth its privacy, against training alone."""
    if verdict == "worse":
        figure = judge.tell(_mean(alone, judge))
        return [f"{row.method} does not pay here: {alone.method} training gives {figure} without spending any privacy."]
    if verdict == "no difference shown":
        return [f"That {row.method} gains anything over {alone.method} training is not shown here."]
    return []


def _inequalities(private: list[ComparisonRow], protect_from: View) -> list[str]:
    """Warnings where private methods have unequal deltas or epsilons."""
    if not private:
        return []
    sentences = []
    deltas = sorted({row.delta for row in private})
    if len(deltas) > 1:
        sentences.append(
            f"The private methods are NOT at equal delta ({deltas[0]:.3g} to {deltas[-1]:.3g}): give one with "
            "`delta` to compare them."
        )
    costs = [(row.method, cost) for row in private if (cost := row.epsilon[protect_from]) is not None]
    figures = [cost for _, cost in costs]
    if max(figures) > 1.01 * min(figures):
        sentences.append(
            "The private methods are NOT at equal epsilon: "
            + ", ".join(f"{method} {round_up(cost)}" for method, cost in costs)
            + "."
        )
    return sentences
