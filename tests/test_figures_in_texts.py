"""Figures that stand in texts, beside the tables and documents that they were taken from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sordino.papers.description import papers
from sordino.papers.table_runs import ReproduceOptions, Study

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
FIGURE = re.compile(r"\d+\.\d+")
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.toml"))
PAGES = [ROOT / "experiments" / f"{name}.md" for name in ("heads", "outcomes", "tables")]
"""Pages of figures that name a command and no documents with versions of their own."""


def paragraph(text: str, begin: str) -> str:
    """The paragraph with these words, its lines joined."""
    (found,) = [one for one in text.split("\n\n") if begin in " ".join(one.split())]
    return " ".join(found.split())


def head(path: Path) -> str:
    """The comments of an experiment file."""
    return "\n".join(line for line in path.read_text("utf-8").splitlines() if line.startswith("#"))


def line_with(path: str, begin: str, epsilon: str = "") -> str:
    """The only line of a file of experiments with these words and, in its second column, this epsilon."""
    lines = (ROOT / "experiments" / path).read_text("utf-8").splitlines()
    (found,) = [line for line in lines if begin in line and (not epsilon or f"| {epsilon} |" in line)]
    return found


def test_the_readmes_sentences_on_the_demonstration_are_those_of_its_table() -> None:
    table = README.partition("`make demo` ends like this")[2].partition("```")[2].partition("```")[0]
    told = paragraph(README, "A hundred clients hold 1,797 handwritten digits")
    before, _, after = told.partition("For the 296 real writers of FEMNIST")
    for figure in FIGURE.findall(before.partition("(`tau")[0]):
        assert f" {figure}±" in table, figure
    found = line_with("heads.md", "| femnist, 296 writers | head | 8 | 3 |")
    for figure in FIGURE.findall(after):
        assert figure in found, figure


def test_the_readmes_sentence_on_hospitals_is_that_of_their_table() -> None:
    told = paragraph(README, "the four hospitals of Heart Disease reach an AUC")
    pooled, _, alone, *_, shared = FIGURE.findall(line_with("tables.md", "| heart-4 |", "1"))[::2]
    assert FIGURE.findall(told) == [alone, shared, pooled]


def test_the_readmes_speeds_are_those_of_their_page() -> None:
    known = [float(figure) for figure in FIGURE.findall((ROOT / "docs" / "speed.md").read_text("utf-8"))]
    table = README.partition("## Speed")[2].partition("## Documentation")[0]
    figures = [figure for figure in FIGURE.findall(table.partition("| | measured")[2]) if figure != "1.2"]
    assert len(figures) > 8
    for figure in figures:
        digits = len(figure.partition(".")[2])
        assert any(f"{one:.{digits}f}" == figure for one in known), figure


@pytest.mark.parametrize("path", [*EXPERIMENTS, *PAGES], ids=lambda path: path.name)
def test_figures_that_were_measured_name_their_version(path: Path) -> None:
    """Accuracies stand in a head with ± or with an interval; where there are some, there is a version."""
    text = head(path) if path.suffix == ".toml" else path.read_text("utf-8")
    if re.search(r"\d ?± ?\d|\d \[\d", text):
        assert re.search(r"[Vv]ersion\s+(# )?0\.\d", text), path.name


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_heads_give_no_verdicts_on_papers(path: Path) -> None:
    """These follow from the rules of `sordino reproduce` alone; a head tells differences."""
    told = " ".join(head(path).replace("#", " ").split())
    assert not re.search(r"claims?\b[^.]*\b(holds?|shown|refuted)|published accuracy (does not )?hold", told)


def test_the_plans_of_decisive_experiments_are_what_the_program_says(tmp_path: Path) -> None:
    page = (ROOT / "experiments" / "README.md").read_text("utf-8")
    for name, paper in papers().items():
        study = Study(paper, paper.tables[paper.main], ReproduceOptions("medium", store=tmp_path / "none", jobs=2))
        plan = study.estimate()
        assert plan.hours is not None
        line = f"| `{name} {paper.main}` | {plan.runs} | {plan.tuning} or more | {plan.hours:.1f} |"
        assert line in page, line
