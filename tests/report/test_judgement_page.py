"""Page of a judgement, on figures made by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

pytest.importorskip("cryptography", reason="sites need `cryptography`: pip install 'sordino[deploy]'")

from sordino.deploy.site.judging import SiteJudgement
from sordino.report.judgement_page import JudgementReport
from sordino.report.statement_pages import FORMATS
from sordino.report.terminal.metrics import judgement_report
from sordino.tasks.intervals import Figure
from sordino.tasks.judgement import Judgement


def judged(figures: dict[str, Figure | None]) -> JudgementReport:
    """Report on a task without classes."""
    own = Judgement(40, {}, None, None, figures, [], [], None, ["Few records."])
    return JudgementReport(SiteJudgement("north", "run-1", own, None, None))


@pytest.mark.parametrize("form", [".html", ".md"])
def test_numbers_have_no_classes_to_be_taken_for(form: str) -> None:
    text = FORMATS[form](judged({"r2": Figure(0.412, 0.2, 0.6), "rmse": Figure(3.25, 2.5, 4.0)}))
    assert "on 40 records that were not trained on." in text
    assert "0.412; among many more records anything from 0.200 to 0.600" in text
    assert "2.5 to 4" in text
    assert "Who is taken for what" not in text
    assert "AUC" not in text


def test_each_of_several_outcomes_is_told_in_the_summary() -> None:
    figures: dict[str, Figure | None] = {
        "r2[sbp]": Figure(0.4, 0.2, 0.6),
        "rmse[sbp]": Figure(9, 8, 10),
        "r2[dbp]": None,
    }
    text = FORMATS[".md"](judged(figures))
    (told,) = [line for line in text.splitlines() if "How well it predicts." in line]
    assert "explained), sbp: 0.400; among many more records anything from 0.200 to 0.600 would be no surprise." in told
    assert told.endswith("explained), dbp: too few.")


def test_too_few_records_are_told() -> None:
    text = FORMATS[".md"](judged({"concordance": None}))
    assert "Concordance (Harrell): too few." in text


@pytest.mark.parametrize("part", ["", "[sbp]"])
def test_a_model_without_intervals_is_judged_beside_one_with_them(part: str) -> None:
    """The server's own model has none: nobody told it how far targets lie from its predictions."""
    r2 = {f"r2{part}": Figure(0.412, 0.2, 0.6)}
    own, shared = (
        Judgement(40, {}, None, None, figures, [], [], None, [])
        for figures in (r2 | {f"coverage{part}": Figure(0.9, 0.8, 0.95)}, r2)
    )
    found = SiteJudgement("north", "run-1", own, shared, None)
    named = ", sbp" if part else ""
    row = f"| share of records inside the 90 % interval{named} | 90.0% | 80.0% to 95.0% | – |  |"
    assert row in FORMATS[".md"](JudgementReport(found))
    console = Console(width=200, file=io.StringIO())
    console.print(judgement_report(found))
    (line,) = [line for line in console.file.getvalue().splitlines() if "inside the 90 %" in line]
    assert line.split()[-1] in "–?"
