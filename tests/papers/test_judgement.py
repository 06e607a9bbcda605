"""What a repeated table says, on figures made by hand."""

import csv
import dataclasses

import pytest

from sordino.papers.claims import rows_of
from sordino.papers.description import find
from sordino.papers.judgement import ClaimJudgement
from sordino.papers.pages import markdown, write
from sordino.papers.table_runs import CellOutcome, ReproducedTable, ReproduceOptions, curve_of
from sordino.study.sweep import contender
from sordino.study.verdict import Difference


def outcome(values, epsilon=4.0, unit="client", method="feddpa", passes=4, planned_away=()):
    curve = [{"round": 0, "personal": 0.5, "global": 0.4, "start": 0.3, "seconds": 1.0}]
    curves = [curve] * len(values)
    return CellOutcome(list(values), epsilon, 1e-5, unit, ["run-1"], method, [], passes, planned_away, curves)


def done(sound, table="table-3", columns=("FEMNIST, epsilon 4", "FEMNIST, epsilon 8"), **more):
    paper, (found,) = find("feddpa", table)
    outcomes = {}
    for row, by_column in sound.items():
        for column, values in zip(columns, by_column, strict=True):
            alone = row == "training alone"
            about = {"epsilon": 0.0, "method": "local"} if alone else {"epsilon": 4.0}
            outcomes[row, column, "sound"] = outcome(values, **about)
            outcomes[row, column, "paper"] = outcome([value - 1 for value in values], 34.82)
    return ReproducedTable(paper, found, ReproduceOptions("quick", 3), outcomes | more, {})


OURS, BASE, PART, ALONE = "DFP and AC (FedDPA)", "neither (DP-FedAvg)", "DFP", "training alone"
CLEAR = {
    OURS: ([70.0, 71.0, 72.0], [60.0, 61.0, 62.0]),
    BASE: ([60.0, 61.1, 62.0], [69.9, 71.0, 72.0]),
    PART: ([65.0, 66.0, 67.1], [60.0, 61.2, 61.9]),
    ALONE: ([75.0, 76.1, 77.0], [50.0, 51.1, 52.0]),
}


def test_a_claim_holds_above_every_rival_and_is_refuted_below_one():
    judged = {one.column: one for one in ClaimJudgement(done(CLEAR)).by_column}
    assert judged["FEMNIST, epsilon 4"].answer == "holds"
    assert judged["FEMNIST, epsilon 8"].answer == "refuted"
    (alone,) = judged["FEMNIST, epsilon 4"].alone
    assert alone.verdict == "worse"
    assert alone.mean == pytest.approx(-0.05 - 0.1 / 300)


def test_an_interval_around_zero_shows_nothing():
    wide = CLEAR | {BASE: ([60.0, 80.0, 70.0], [60.0, 80.0, 50.0])}
    assert [one.answer for one in ClaimJudgement(done(wide)).by_column] == ["not shown", "not shown"]


def test_one_seed_is_no_test():
    single = {row: tuple([values[0]] for values in columns) for row, columns in CLEAR.items()}
    found = ClaimJudgement(done(single))
    assert {one.answer for one in found.by_column} == {"not tested"}
    assert "chance is not ruled out" in found.verdict()


def test_rivals_that_protect_something_else_are_not_compared():
    other = {(BASE, "FEMNIST, epsilon 4", "sound"): outcome([90.0, 91.0, 92.0], unit="record")}
    found = ClaimJudgement(done(CLEAR, **{})).by_column[0]
    assert BASE in [one.against for one in found.differences]
    mixed = done(CLEAR)
    mixed.outcomes.update(other)
    found = ClaimJudgement(mixed).by_column[0]
    assert BASE not in [one.against for one in found.differences]
    assert found.answer == "holds"


def test_what_the_plan_switched_off_is_not_tested():
    agent = {(OURS, "FEMNIST, epsilon 8", "sound"): outcome(CLEAR[OURS][1], planned_away=("the agent",))}
    judgement = ClaimJudgement(done(CLEAR, **{}))
    assert [one.answer for one in judgement.by_column] == ["holds", "refuted"]
    mixed = done(CLEAR)
    mixed.outcomes.update(agent)
    judgement = ClaimJudgement(mixed)
    assert [one.answer for one in judgement.by_column] == ["holds", "not tested"]
    assert "FEMNIST, epsilon 8 is not tested: the budget cannot pay for the agent" in judgement.verdict()
    assert "above every rival in 1 of 1 column" in judgement.verdict()


def test_rivals_that_pass_over_the_records_less_often_are_not_compared():
    mixed = done(CLEAR)
    for row in (BASE, PART):
        mixed.outcomes[row, "FEMNIST, epsilon 8", "sound"] = outcome(CLEAR[row][1], passes=2)
    assert [one.answer for one in ClaimJudgement(mixed).by_column] == ["holds", "not tested"]
    said = f"Not compared, because of other numbers of passes over the records: {BASE} (2 passes a round, {OURS} 4)"
    assert f"{said}, {PART} (2 passes a round, {OURS} 4)." in ClaimJudgement(mixed).verdict()
    mixed.outcomes[PART, "FEMNIST, epsilon 8", "sound"] = outcome(CLEAR[PART][1], passes=4)
    second = ClaimJudgement(mixed).by_column[1]
    assert [one.against for one in second.differences] == [PART]
    assert f"{said}." in ClaimJudgement(mixed).verdict()


def test_where_training_alone_is_as_good_as_every_row_nothing_is_tested():
    # The intervals of all rows reach 2.5 points to each side of their means.
    level = {OURS: [70.0, 71.0, 72.0], BASE: [69.0, 70.0, 71.0], PART: [68.5, 69.5, 70.6], ALONE: [70.0, 70.1, 70.0]}
    found = ClaimJudgement(done({row: (values, values) for row, values in level.items()})).by_column[0]
    assert found.answer == "not tested"
    assert "training alone lies within the interval of every row" in found.why
    apart = level | {PART: [50.0, 51.0, 52.0]}
    assert (
        ClaimJudgement(done({row: (values, values) for row, values in apart.items()})).by_column[0].answer
        != "not tested"
    )


def test_documents_name_the_code_that_they_were_measured_with():
    document = ClaimJudgement(done(CLEAR)).document()
    assert set(document["sources"]) == {"feddpa", "local"}
    assert document["tuning_seeds"] == 0


def test_document_has_what_scripts_rely_on():
    document = ClaimJudgement(done(CLEAR)).document()
    assert (document["paper"], document["table"]) == ("feddpa", "table-3")
    ours = next(row for row in document["rows"] if row["row"] == OURS and row["column"] == "FEMNIST, epsilon 4")
    assert ours["published"] == 77.27
    assert ours["sound"] == pytest.approx(71.0)
    assert ours["paper"] == pytest.approx(70.0)
    assert (ours["epsilon"], ours["paper_epsilon"]) == (4.0, 34.82)
    # Student's t of 97.5 % with 2 degrees of freedom is 4.3027; the standard error is 1/sqrt(3).
    assert ours["sound_interval"] == pytest.approx([71 - 4.3027 / 3**0.5, 71 + 4.3027 / 3**0.5], abs=1e-3)
    assert "above every rival in 1 of 2 columns" in document["verdict"]
    assert "better in 1 of 2 comparisons and worse in 1" in document["verdict"]


def test_rows_and_tests_of_a_document_keep_their_keys():
    document = ClaimJudgement(done(CLEAR)).document()
    assert list(document["rows"][0]) == [
        *("row", "column", "method", "ours", "added", "measure", "published", "nominal", "sound", "sound_by_seed"),
        *("sound_interval", "paper", "paper_by_seed", "paper_interval", "epsilon", "delta", "unit", "paper_epsilon"),
        *("not_as_published", "passes", "planned_away", "runs"),
    ]
    assert [row.to_dict() for row in rows_of(document)] == document["rows"]
    (first, *_) = document["differences"]
    assert list(first) == ["method", "against", "at", "mean", "low", "high", "seeds", "verdict", "judge"]
    assert Difference.from_dict(first).to_dict() == first


def test_less_is_better_where_a_loss_is_measured():
    table = done(CLEAR).table.model_copy(update={"measure": "loss"})
    found = ClaimJudgement(dataclasses.replace(done(CLEAR), table=table))
    assert [one.answer for one in found.by_column] == ["refuted", "not shown"]


def test_pages_show_the_same_figures(tmp_path):
    document = ClaimJudgement(done(CLEAR)).document()
    page = write(document, tmp_path)
    text = page.read_text()
    assert f"| **{OURS}** | 77.27 | 70.0 | 34.82 | 71.0 |" in text
    assert "Claim at equal true epsilon: holds." in text
    with page.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["row"]: row["sound"] for row in rows if row["column"].endswith("4")}[OURS] == "71.0"
    tex = page.with_suffix(".tex").read_text()
    assert r"77.27 / 70.0 (34.82) / 71.0 $\pm$ 2.5" in tex
    assert tex.count(r"\\") == 5


def test_infinite_epsilons_are_told(tmp_path):
    mixed = done(CLEAR)
    mixed.outcomes[OURS, "FEMNIST, epsilon 4", "paper"] = outcome([70.0] * 3, None)
    document = ClaimJudgement(mixed).document()
    assert "| 77.27 | 70.0 | infinite | 71.0 |" in markdown(document)
    assert "inf" in write(document, tmp_path).with_suffix(".csv").read_text()


def test_curves_that_rows_use_are_told_with_how_well_they_fit():
    """The printed one has the R^2 that the paper prints; one beside the tables says what it was fitted to."""
    paper, (table,) = find("pac-dp", "table-2")
    curves = ("quick", "medium")
    quick, medium = (
        ClaimJudgement(ReproducedTable(paper, table, ReproduceOptions(scale, 3), {}, {})).document() for scale in curves
    )
    (printed,) = quick["curves"]
    assert (printed["row"], printed["kind"], printed["determination"]) == ("PAC-DP", "quadratic", 0.9806)
    assert "| PAC-DP | quadratic | 0.01 to 2.29 | 0.9806 | not printed | not printed |" in markdown(quick)
    told = {one["row"]: one for one in medium["curves"]}
    fitted = told["PAC-DP, curve fitted on Fashion-MNIST"]
    assert fitted["simulated"]["data"] == "fashion-mnist"
    assert fitted["simulated"]["clients"] == 50
    assert len(fitted["points"]) >= 4
    assert 0 < fitted["determination"] <= 1
    assert medium["claim"] == table.medium.claim != table.claim
    assert table.medium.note in markdown(medium)


def test_the_fitted_curve_was_simulated_in_the_setting_of_its_experiment():
    """Same network, clients, rounds and local training as `medium`, on public records of another data set; its range
    holds all budgets, and no best threshold lay on the edge of the grid."""
    paper, (table,) = find("pac-dp", "table-2")
    (row,) = [row for row in table.rows if "fitted" in row.name]
    curve = curve_of(paper, contender(row.method)[1]["curve"])
    simulated = curve.provenance["simulated"]
    keys = {}
    for source in paper.sources("mnist", "medium"):
        keys |= {key: value for key, value in source.items() if key != "set"}
        for part, settings in source.get("set", {}).items():
            keys |= {key if part == "method" else f"{part}.{key}": value for key, value in settings.items()}
    for key in set(keys) - {"data", "evaluate_every", "rate"}:
        assert simulated[key] == keys[key], key
    assert simulated["data"] == "fashion-mnist"
    assert str(simulated["rate"]) in table.medium.grid
    assert (curve.low, curve.high) == (0.05, 1.0)
    clips = sorted({clip for _, clip, _ in curve.provenance["accuracies"]})
    assert len(clips) == 6
    assert len(curve.provenance["accuracies"]) == 30
    for _, clip in curve.provenance["points"]:
        assert clips[0] < clip < clips[-1]
