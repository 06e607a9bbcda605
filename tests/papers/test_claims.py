"""Whether a claim holds in a column, on figures made by hand."""

from dataclasses import replace

import pytest

from sordino.papers.claims import TableRow, in_words, judge_claim, rivals


def row(name, values, ours=False, **more):
    about = {"row": name, "column": "here", "method": name, "ours": ours, "measure": "personal", "unit": "client"}
    figures = {"published": None, "nominal": None, "sound": None, "sound_interval": None, "paper": None}
    cost = {"epsilon": 8.0, "paper_epsilon": None, "paper_by_seed": [], "not_as_published": ""}
    return TableRow(**{**about, **figures, **cost, "sound_by_seed": values, **more})


OURS = row("ours", [70.0, 71.0, 72.0], ours=True)
# A rival 5 points above, with a deviation of 1: the interval by itself reaches 4.3027 / sqrt(3) = 2.48 to each side.
ABOVE = row("above", [76.0, 76.0, 76.0])


def test_an_answer_rests_on_the_intervals_that_are_told():
    alone = judge_claim("here", [OURS, ABOVE])
    assert alone.answer == "refuted"
    assert alone.differences[0].low == pytest.approx(-0.05 - 0.0248, abs=1e-4)
    # With seven more rivals all intervals hold together: Student's t of 1 - 0.05/16 with 2 degrees is 12.59.
    crowd = judge_claim("here", [OURS, ABOVE, *(row(f"rival {n}", [60.0, 61.0, 62.1]) for n in range(7))])
    assert crowd.answer == "not shown"
    assert crowd.nearest().verdict == "no difference shown"
    assert crowd.nearest().against == "above"
    assert crowd.nearest().high == pytest.approx(-0.05 + 0.01 * 12.59 / 3**0.5, abs=1e-3)
    # Half of that interval: a smaller difference could not have shown, a larger one would have.
    assert in_words(crowd.nearest(), "personal").endswith("; 7.3 or more would have shown")


def test_where_a_claim_holds_single_intervals_decide():
    # 3, 3 and 2 points above, 2.667 in the mean with a standard error of 1/3: t of 97.5 % gives 1.434 to each side;
    # that of all eight together, 12.59, gives 4.20, which would reach below zero.
    below = [row(f"rival {n}", [67.0, 68.0, 70.0]) for n in range(8)]
    found = judge_claim("here", [OURS, *below])
    assert found.answer == "holds"
    assert {one.verdict for one in found.differences} == {"better"}
    assert found.nearest().low == pytest.approx(0.02667 - 0.01434, abs=1e-4)


def test_of_several_proposed_rows_one_must_be_above_all_rivals_and_they_share_the_error():
    rival = row("rival", [60.0, 60.0, 60.0])
    proposed = [row("good", [63.0, 64.0, 65.0], ours=True), row("bad", [50.0, 51.0, 52.5], ours=True)]
    # 4 points above with a deviation of 1: t of 97.5 % gives 2.48, t of 98.75 % (6.2053) gives 3.58, both below 4.
    found = judge_claim("here", [rival, *proposed])
    assert found.answer == "holds"
    assert found.nearest().method == "good"
    assert found.nearest().low == pytest.approx(0.04 - 0.01 * 6.2053 / 3**0.5, abs=1e-5)
    third = row("worse", [50.0, 51.0, 52.0], ours=True)
    assert judge_claim("here", [rival, *proposed, third]).answer == "not shown"  # t of 1 - 0.025/3 is 7.6488: 4.42
    assert judge_claim("here", [rival, proposed[1], third]).answer == "refuted"


def test_who_is_no_rival():
    others = [
        row("alone", [90.0] * 3, method="local[rate=0.1]", epsilon=0),
        row("records", [90.0] * 3, unit="record"),
        row("no privacy", [90.0] * 3, epsilon=None),
    ]
    assert rivals([OURS, ABOVE, *others], OURS) == [ABOVE]
    found = judge_claim("here", [OURS, *others])
    assert found.answer == "not tested"
    assert [one.against for one in found.alone] == ["alone"]
    free = replace(OURS, epsilon=None)
    assert [one.row for one in rivals([free, *others], free)] == ["no privacy"]


def test_what_the_paper_does_not_have_is_told_and_is_no_rival():
    rival = row("rival", [60.0, 61.0, 62.1])
    found = judge_claim("here", [OURS, replace(ABOVE, added=True), rival])
    assert found.answer == "holds"
    assert [one.against for one in found.differences] == ["rival"]
    assert [(one.against, one.verdict) for one in found.added] == [("above", "worse")]


def test_rows_with_other_numbers_of_passes_are_named():
    found = judge_claim("here", [replace(OURS, passes=4), replace(ABOVE, passes=2), row("fair", [60.0] * 3, passes=4)])
    assert found.left_out == ["above (2 passes a round, ours 4)"]
    assert [one.against for one in found.differences] == ["fair"]
    assert judge_claim("here", [OURS, ABOVE]).left_out == []


def test_shares_of_personal_parameters_test_nothing():
    found = judge_claim("here", [replace(one, measure="personal-share") for one in (OURS, ABOVE)])
    assert (found.answer, found.differences) == ("not tested", [])
    assert "neither good nor bad" in found.why


def test_a_row_that_missed_its_target_once_is_not_compared():
    found = judge_claim("here", [replace(OURS, measure="rounds"), row("never", [3.0, None, 4.0], measure="rounds")])
    assert (found.answer, found.differences) == ("not tested", [])


def test_rounds_and_losses_are_told_in_their_own_direction():
    ours = row("ours", [4.0, 5.0, 6.0], ours=True, measure="rounds")
    found = judge_claim("here", [ours, row("slow", [10.0, 11.0, 12.5], measure="rounds")])
    assert found.answer == "holds"
    assert in_words(found.nearest(), "rounds").startswith(
        "-6.2 rounds, where less is better, against slow, interval -6.9"
    )
    assert in_words(judge_claim("here", [OURS, ABOVE]).nearest(), "personal") == (
        "-5.0 points against above, interval -7.5 to -2.5"
    )
