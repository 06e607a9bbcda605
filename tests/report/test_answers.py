"""First sentences and pictures of pages: they must say what the verdict's tests say, and for whom."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers import row_of, summary_of

from sordino.privacy.views import VIEWS
from sordino.report.html import charts
from sordino.report.html.answers import answer, forest
from sordino.report.html.charts import Interval
from sordino.report.html.gather import PageContent
from sordino.store.run_summary import Metric
from sordino.study.compare import ComparisonRow, OverSeeds, SeedFigures
from sordino.study.verdict import Sample, difference, verdicts


def row(name: str, values: Sequence[float], epsilon: float | None = 8.0, **more: Any) -> ComparisonRow:
    """A row with an accuracy for each seed."""
    figure = OverSeeds(sum(values) / len(values), 0.01)
    accuracy = {"personal": figure, "personal_worst": figure, "start": None, "global": None}
    by_seed = [SeedFigures(seed, f"{name}-{seed}", {"personal": value}) for seed, value in enumerate(values)]
    found = {"accuracy": accuracy, "by_seed": by_seed, "seeds": len(values), "epsilon": dict.fromkeys(VIEWS, epsilon)}
    return row_of(name, **found | more)


def run(seed: int, **more: Any) -> Any:
    """A run of a group."""
    return SimpleNamespace(summary=summary_of(seed=seed, **more), row=SimpleNamespace(method="x"))


def told(*rows: ComparisonRow, alone: Sequence[float] = (), **more: Any) -> PageContent:
    """Content of a page on these rows, with the verdict's tests; `alone` are accuracies of stored runs of training
    alone."""
    kept = [run(seed, accuracy={"personal": value}) for seed, value in enumerate(alone)]
    groups = [
        SimpleNamespace(name=one.method, alone=kept, runs=[run(seed, **more) for seed in range(one.seeds)], first=None)
        for one in rows
    ]
    for group in groups:
        group.first = group.runs[0]
    _, differences = verdicts(rows, "outsider")
    return cast(
        PageContent,
        SimpleNamespace(
            groups=groups, comparison=SimpleNamespace(rows=list(rows), differences=differences), verdict=[]
        ),
    )


LOCAL = row("local", [0.70, 0.71, 0.69], 0.0)
BEST = row("good", [0.80, 0.82, 0.78])
NEAR = row("near", [0.79, 0.76, 0.81])
BAD = row("bad", [0.60, 0.61, 0.59])


def test_the_answer_names_the_best_what_it_costs_and_what_is_not_shown() -> None:
    """By hand: differences from training alone are 10, 11 and 9 points; Student's quantile for two degrees of freedom
    is 4.303, so that the interval is 10 points plus or minus 4.303 / sqrt(3)."""
    assert answer(told(LOCAL, BEST, NEAR, BAD)) == (
        "good has the best personal accuracy, 80.0%, at epsilon 8.00 for one client (outsider): 10.0 points more than "
        "by training alone (95% interval +7.5 to +12.5); whether it is better than near is not shown."
    )
    assert answer(told(LOCAL, BEST, BAD)).endswith("(95% interval +7.5 to +12.5); it is better than all others.")


def test_where_training_alone_is_ahead_the_answer_says_so() -> None:
    found = answer(told(row("local", [0.9, 0.91, 0.89], 0.0), BEST, BAD))
    assert found.startswith(
        "No private method is ahead of training alone, which gives 90.0% without spending any privacy"
    )
    assert (
        "good comes nearest at epsilon 8.00 for one client (outsider): 10.0 points less than by training alone" in found
    )


def test_units_are_answered_apart() -> None:
    found = answer(told(LOCAL, BEST, row("rows", [0.9, 0.9, 0.91], 2.0, unit="record")))
    assert "Protecting one client: good has the best personal accuracy, 80.0%, at epsilon 8.00 for one client" in found
    assert "Protecting one record: rows has the best personal accuracy, 90.3%, at epsilon 2.00 for one record" in found


def test_what_protects_nobody_is_never_the_best_private_method() -> None:
    bare = row("bare", [0.99, 0.99, 0.98], None)
    assert answer(told(LOCAL, BEST, bare)).startswith("good has the best personal accuracy")
    assert "bare has the best personal accuracy, 98.7%, without protection: epsilon is infinite." in answer(
        told(bare, row("b", [0.1] * 3, None))
    )
    pictures = " ".join(forest(told(LOCAL, BEST, bare)))
    assert pictures.count("ε ∞") == 2


def test_one_seed_rules_out_nothing() -> None:
    found = answer(told(row("local", [0.7], 0.0), row("good", [0.8]), row("near", [0.7])))
    assert "10.0 points more than by training alone (one seed, so chance is not ruled out)" in found
    assert "whether it is better than near is not shown" in found


def test_training_alone_is_found_in_the_store() -> None:
    without = told(BEST, BAD, alone=[0.70, 0.71, 0.69])
    assert "10.0 points more than by training alone (95% interval +7.5 to +12.5)" in answer(without)
    assert len(forest(without)) == 2
    assert "training alone" not in answer(told(BEST, BAD))
    assert len(forest(told(BEST, BAD))) == 1
    assert "training alone" not in answer(told(BEST, BAD, alone=[0.7])), "not of all seeds"


def test_the_class_that_is_looked_for_is_in_the_headline() -> None:
    metrics = {"recall": Metric(mean=0.711, worst_tenth=None, clients=3)}
    both = told(LOCAL, BEST, positive="ill", metrics=metrics)
    assert "80.0% and finds 71.1% of the class ill (recall), at epsilon" in answer(both)
    assert "of their own test records and find 71.1% of the class ill (recall)" in answer(
        told(BEST, positive="ill", metrics=metrics)
    )
    assert "recall" not in answer(told(BEST, positive=None, metrics=metrics))


def test_a_run_is_answered_by_itself() -> None:
    assert answer(told(BEST, alone=[0.9, 0.9, 0.9])) == (
        "The clients' models are right on 80.0% of their own test records, 10.0 points less than by training alone "
        "(95% interval -15.0 to -5.0), at epsilon 8.00 for one client (outsider)."
    )
    assert "without spending any privacy" in answer(told(LOCAL))
    unknown = row("x", [0.5], accuracy={"personal": None, "personal_worst": None, "start": None, "global": None})
    assert "their accuracies stay at the sites" in answer(told(unknown, deployed=True))
    assert "no client has test records" in answer(told(unknown))


def test_the_forest_has_every_contender_with_its_epsilon() -> None:
    alone, best = forest(told(LOCAL, BEST, NEAR, BAD))
    names = [re.findall(r'class="name"[^>]*><title>(.*?)</title>', one) for one in (alone, best)]
    assert names == [["good", "near", "bad"], ["good", "near", "local", "bad"]]
    words = html.unescape(re.sub("<[^>]+>", " ", alone + best))
    assert words.count("ε 8.00") == 6
    assert "+10.0 (+7.5 to +12.5)" in words
    assert "-10.0 (-12.5 to -7.5)" in words, "of local against the best"
    assert "the best" in words
    assert "no privacy spent" in words


def test_intervals_are_coloured_by_what_they_show() -> None:
    given = [
        Interval("up", "", 0.1, 0.05, 0.2),
        Interval("down", "", -0.1, -0.2, -0.05),
        Interval("both", "", 0.1, -0.05, 0.2),
        Interval("one", "", 0.1, None, None),
    ]
    drawn = charts.forest(given, "t")
    assert re.findall(r'<circle class="(\w+)"', drawn) == ["gain", "loss", "open", "open"]
    places = [float(x) for x in re.findall(r'<circle class="\w+" cx="([\d.]+)"', drawn)]
    assert places[1] < places[0] == places[2] == places[3]
    assert "+10.0 (-5.0 to +20.0)" in drawn
    assert charts.forest([], "t") == ""


def test_a_difference_is_turned_around() -> None:
    one, other = Sample("a", {0: 0.8, 1: 0.9}), Sample("b", {0: 0.7, 1: 0.75})
    assert difference(one, other).reversed() == difference(other, one)
    alone = difference(Sample("a", {0: 1.0}), Sample("b", {0: 0.5})).reversed()
    assert (alone.mean, alone.low, alone.verdict) == (-0.5, None, "not tested")


def test_few_clients_have_names_on_their_bars() -> None:
    few = charts.gains([("north", 0.1), ("south", -0.2)], "t", "x")
    assert [re.sub("<[^>]+>", "", one) for one in re.findall(r'<text class="name".*?</text>', few)] == [
        "north",
        "south",
    ]
    assert re.findall(r'<rect class="(\w+)"', few) == ["gain", "loss"]
    many = charts.gains([(f"c{number}", 0.1) for number in range(charts.MOST_BARS + 1)], "t", "x")
    assert 'class="name"' not in many


@pytest.mark.parametrize(
    ("spent", "limit", "kind", "share"),
    [(2.0, 8.0, "spent", 0.25), (7.0, 8.0, "near", 0.875), (9.0, 8.0, "loss", 1.0), (None, 8.0, "loss", 1.0)],
)
def test_a_budget_is_a_bar_up_to_its_limit(spent: float | None, limit: float, kind: str, share: float) -> None:
    drawn = charts.budget(spent, limit, "t")
    whole, part = (float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn))
    assert f'<rect class="{kind}"' in drawn
    assert part / whole == pytest.approx(share, abs=1e-3)
    assert "8 (limit)" in drawn


def test_without_a_limit_a_budget_ends_at_a_power_of_two() -> None:
    assert ">8<" in charts.budget(3.0, None, "t")
    assert ">64<" in charts.budget(49.9, None, "t")
    assert ">8<" in charts.budget(0.0, None, "t")
    assert 'class="spent"' in charts.budget(49.9, None, "t")


def test_the_figure_that_the_user_judges_by_comes_first() -> None:
    page = told(LOCAL, BEST, BAD)
    page.verdict[:] = ["near has the best area under the curve, 0.990.", "near against good: better."]
    assert answer(page).startswith("near has the best area under the curve, 0.990. good has the best personal accuracy")
