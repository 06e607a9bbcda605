"""Tables and pictures: what people read must not be nicer than the truth."""

from __future__ import annotations

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from helpers import row_of, summary_of
from rich.console import Console
from rich.progress import Progress

from sordino.privacy.views import VIEWS
from sordino.report.figures import curves
from sordino.report.terminal.progress import Bars, Known, ProgressLine, fitting, line, watching
from sordino.report.terminal.results import comparison_table, epsilon_text, run_report
from sordino.report.wording import attack_words, percent, sentences_of
from sordino.study.compare import OverSeeds
from sordino.util.formatting import delta_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (8.0, "8.00"),
        (8.000000000000002, "8.00"),
        (7.999999999999998, "8.00"),
        (8.001, "8.01"),
        (48.8886, "48.89"),
        (0.01, "0.01"),
        (0.0099, "0.0099"),
        (0.00991, "0.01"),
        (0.001, "0.001"),  # a budget of 0.001 is not one of 0.01
        (0.0010000000000002, "0.001"),
        (0.000123, "0.00013"),
        (999.991, "1000.00"),
        (1000.0000000001, "1,000"),
        (2655.332, "2,656"),
        (None, "∞"),
        (math.inf, "∞"),
    ],
)
def test_epsilon_is_rounded_up(value: float | None, text: str) -> None:
    assert epsilon_text(value) == text


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        (1e-5, "1e-05"),
        (10_000**-1.1 / 10, "3.99e-06"),  # 3.981e-06: at 3.98e-06 the epsilon beside it does not hold
        (0.013525, "0.0136"),
        (0.1, "0.1"),
        (9.999e-6, "1e-05"),
        (1e-300, "1e-300"),
        (5e-324, "4.94e-324"),
    ],
)
def test_delta_is_rounded_up(delta: float, text: str) -> None:
    assert delta_text(delta) == text


def test_so_much_noise_that_epsilon_is_zero_does_not_mean_that_nothing_left() -> None:
    from sordino.report.html.sentences import protection

    summary = summary_of(epsilon=dict.fromkeys(VIEWS, 0.0))
    assert "One whole client is protected" in protection(SimpleNamespace(ledger=["a row"], summary=summary))
    assert protection(SimpleNamespace(ledger=[], summary=summary)) == "Nothing left the clients."


def test_attacks_are_rounded_up() -> None:
    assert [attack_words(value) for value in (0.5, 0.9401, 0.94, 0.99999, 1.0)] == [
        *("50.0%", "94.1%", "94.0%", "100.0%", "100.0%"),
    ]


def test_accuracies() -> None:
    assert [percent(value) for value in (0.1234, 1.0, None)] == ["12.3%", "100.0%", "–"]


def shown(what: Any, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_comparison_table_shows_accuracies_and_epsilons_in_eighty_columns() -> None:
    """Fairness and cost need a wider terminal, and a sentence says so."""
    more = {"fairness": {"worst_tenth": OverSeeds(0.5, 0.01), "gini": OverSeeds(0.1, 0.0), "variance": None}}
    rows = [row_of("local"), row_of("feddpa", variant="paper", upload_bytes=2.5e6, **more)]
    wide = next(line for line in shown(comparison_table(rows)).splitlines() if "feddpa (paper)" in line)
    assert wide.split()[9:] == ["50.0±1.0", "0.100", "–", "2.5", "–", "1.3"]
    text = shown(comparison_table(rows), 80)
    assert "worst tenth, Gini, variance, MB up, MB down, seconds" in " ".join(text.split())
    assert "over 2 seeds" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    line = next(line for line in text.splitlines() if "feddpa (paper)" in line)
    assert line.split()[2:] == ["75.0±2.0", "75", "75.0±2.0", "–", "8.01", "8.50", "∞"]


@pytest.mark.parametrize(("largest", "told"), [(8.001, "at most 8.01"), (None, "at most ∞"), (3.996, "at most 4.00")])
def test_a_pictures_title_understates_no_epsilon(largest: float | None, told: str, tmp_path: Path) -> None:
    from sordino.cli.compare import _draw
    from sordino.experiment.config import Experiment
    from sordino.study.compare import Comparison

    epsilons = [0, 2.5, largest]
    rows = [row_of(f"method {k}", epsilon=dict.fromkeys(VIEWS, value)) for k, value in enumerate(epsilons)]
    with mock.patch("sordino.report.figures.curves") as drawn:
        _draw(Comparison(rows, [], []), tmp_path / "compare.png", Experiment())
    assert f"epsilon {told} for the outsider" in drawn.call_args.args[2]


def test_curves_are_drawn_into_a_new_folder(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "curves.png"
    curves([row_of("local"), row_of("feddpa")], picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_run_report_names_what_is_not_covered() -> None:
    reasons, notes = ["update: it is sent as it is"], ["mind the gap"]
    summary = summary_of(epsilon=dict.fromkeys(VIEWS), not_covered=reasons, notes=notes)
    text = shown(run_report(summary, "store"))
    for part in ("1,234 parameters", "25.0%", "∞", "Not covered: update: it is sent as it is.", "Note: mind the gap"):
        assert part in text


def test_sentences_of_a_comparison_say_whose_they_are() -> None:
    """Two methods at two budgets: a sentence of all, of a method, of a budget, of two rows, and of one."""
    about = {
        ("a", 1): ["all", "of a", "at 1", "across"],
        ("b", 1): ["all", "at 1", "alone"],
        ("a", 8): ["all", "of a"],
        ("b", 8): ["all", "across"],
    }
    rows = [
        row_of(method, variant="sound" if method == "a" else "paper", at={"epsilon": at}, notes=notes)
        for (method, at), notes in about.items()
    ]
    assert sentences_of(rows, "notes") == [
        "all",
        "a: of a",
        "epsilon 1: at 1",
        "a, epsilon 1; b (paper), epsilon 8: across",
        "b (paper), epsilon 1: alone",
    ]
    assert sentences_of(rows[:1], "notes") == about["a", 1], "one method needs no name"


def report(**more: Any) -> Any:
    values = {"round": 4, "rounds": 10, "personal": 0.5, "start": 0.25, "global_": math.nan, "clip": 0.5}
    values |= {"rejected": 0, "cohort": 8, "clients": 8, "observer": "server", "planned": 4.0}
    return SimpleNamespace(**(values | {"epsilon": {"outsider": 0.5, "server": 1.001}} | more))


def told(*reports: Any) -> str:
    known = Known()
    return ["  ".join(known.parts(one)) for one in reports][-1]


def test_what_a_round_brought() -> None:
    """The epsilon is that of the observer for whom the run was planned, against what was planned for."""
    assert told(report()) == "epsilon so far 1.01 of 4  personal 50.0%  start 25.0%  global –  clip 0.5"
    assert "start" not in told(report(start=math.nan)), "a method that has no such model"
    assert told(report(clip=None, rejected=2)).endswith("global –  2 rejected")
    infinite = report(epsilon={"server": math.inf}, planned=None)
    assert told(infinite).startswith("epsilon so far ∞  personal")
    assert told(report(round=9)).startswith("epsilon 1.01 of 4  personal"), "the last round has the run's figure"


def test_rounds_of_a_blended_run_say_what_their_personal_models_are(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the accuracy of blends: rounds do not call that of other models by the same name."""
    with watching(quiet=False) as display:
        display.total(0, 2)
        for name, personal in (("one", "blend"), ("two", "own"), ("three", "recalibrate")):
            tell = display.run(name, 10, {"personal": personal})
            tell(report(round=9))
            tell.end(0.942)
        display.run("four", 10, {"personal": "blend"}).end(0.5)  # the store had it already
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("%")[0].partition("4  ")[2] or line for line in lines] == [
        "personal before blending 50.0",
        "one: blended  personal 94.2%",
        "personal 50.0",
        "personal before recalibrating 50.0",
        "three: recalibrated  personal 94.2%",
    ]


def test_what_stays_of_a_run_is_what_clients_predict_with() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    display = Bars(Progress(ProgressLine(console), console=console))
    display.total(0, 2)
    tell = display.run("one", 10, {"personal": "blend"})
    tell(report(round=9))
    tell.end(0.942)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "personal 94.2%  epsilon 1.01 of 4  start 25.0%" in shown
    assert "50.0%" not in shown


def test_a_part_of_the_clients_is_named_beside_its_accuracy() -> None:
    assert "personal 50.0% (3 of 8 clients)" in told(report(cohort=3))


def test_a_figure_of_an_earlier_round_says_so() -> None:
    later = report(round=6, epsilon={"server": math.nan})
    assert told(report(), later).startswith("epsilon so far 1.01 of 4 at round 5  personal")
    assert told(later).startswith("personal")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_name_counter_and_time_are_never_cut(width: int) -> None:
    parts = Known().parts(report())
    shown = line("dp-fedavg-record-digits-12", 7, 30, "0:01:12", parts, width)
    assert shown.split("  ")[0] == "dp-fedavg-record-digits-12"
    assert {"7/30", "0:01:12"} <= set(shown.split("  "))
    assert len(shown) <= max(width, len("dp-fedavg-record-digits-12  7/30  0:01:12"))
    if width >= 80:
        assert "epsilon so far 1.01 of 4" in shown
    over = "  ".join(fitting(["dp-fedavg-record-digits-12", "6.8 s"], parts, width))
    assert over.startswith("dp-fedavg-record-digits-12  6.8 s")
    assert len(over) <= width, "what stays of a run is one line"


def test_progress_in_a_log_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten rounds: a line after each second one. Nothing when quiet."""
    with watching(quiet=False) as display:
        tell = display.run("feddpa", 10)
        for number in range(10):
            tell(report(round=number))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["2/10", "4/10", "6/10", "8/10", "10/10"]
    assert all(line.startswith("feddpa: round") for line in lines)
    with watching(quiet=True) as display:
        display.run(None, 10)(report())
    assert capsys.readouterr().err == ""


def test_several_runs_in_a_log_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(quiet=False) as display:
        display.total(0, 2)
        for name in ("one", "two"):
            tell = display.run(name, 10)
            for number in range(10):
                tell(report(round=number))
    lines = capsys.readouterr().err.splitlines()
    assert [" ".join(line.split()[:3]) for line in lines] == ["one: round 10/10", "two: round 10/10"]
