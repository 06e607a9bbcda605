"""Several numbers, or several labels, of one record: sums and rows of their parts, and laws that hold for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sordino.errors import UserError
from sordino.tasks import Classification, Regression, SeveralLabels, SeveralNumbers, Task, read_task

SBP, DBP = Regression(80.0, 200.0, "mmHg"), Regression(40.0, 120.0, "mmHg", loss="huber")
PRESSURES = SeveralNumbers(("sbp", "dbp"), (SBP, DBP))
COUGH, FEVER = Classification.of(("no", "yes")), Classification.of(("yes", "no"), "yes")
SIGNS = SeveralLabels(("cough", "fever"), (COUGH, FEVER))
TASKS: dict[str, Any] = {"numbers": PRESSURES, "labels": SIGNS}


def drawn(task: Any, records: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets."""
    outputs = torch.randn(records, task.width, generator=torch.Generator().manual_seed(seed))
    return outputs, task.draw(records, np.random.default_rng(seed))


def parts(task: Any, outputs: torch.Tensor, targets: torch.Tensor) -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
    widths = [part.width for part in task.parts]
    return list(zip(task.parts, outputs.split(widths, dim=-1), targets.unbind(-1), strict=True))


@pytest.mark.parametrize("name", TASKS)
def test_a_loss_is_the_sum_of_the_parts_losses_and_slopes_are_its_gradient(name: str) -> None:
    task = TASKS[name]
    outputs, targets = drawn(task)
    losses = task.losses(outputs, targets)
    assert torch.allclose(losses, sum(part.losses(said, known) for part, said, known in parts(task, outputs, targets)))
    assert torch.allclose(task.stacked_losses(outputs[None], targets[None])[0], losses, atol=1e-6)
    assert float(task.summed_loss(outputs, targets)) == pytest.approx(float(losses.sum()), rel=1e-5)
    free = outputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(task.losses(free, targets).sum(), free)
    assert torch.allclose(task.slopes(outputs[None].clone(), targets[None])[0], gradient, atol=1e-6)
    by_vmap = torch.func.vmap(lambda one, y: task.losses(one[None], y[None])[0])(outputs, targets)
    assert torch.allclose(by_vmap, losses, atol=1e-6)


def test_two_labels_cost_what_their_binary_cross_entropies_cost() -> None:
    outputs, targets = drawn(SIGNS)
    logits = torch.stack([outputs[:, 1] - outputs[:, 0], outputs[:, 3] - outputs[:, 2]], dim=1)
    entropies = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none")
    assert torch.allclose(SIGNS.losses(outputs, targets), entropies.sum(dim=1), atol=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_a_row_of_counts_is_never_longer_than_one_and_tells_each_start(name: str) -> None:
    task = TASKS[name]
    _, targets = drawn(task, 500)
    counts = task.counts(targets)
    assert counts.shape == (500, task.counted)
    assert float(counts.double().norm(dim=1).max()) <= 1 + 1e-6
    expected = torch.cat(
        [
            part.start(part.counts(known).mean(dim=0), 500)
            for part, known in zip(task.parts, targets.unbind(1), strict=True)
        ]
    )
    assert torch.allclose(task.start(counts.mean(dim=0), 500), expected, atol=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_metrics_are_those_of_each_part_and_their_mean(name: str) -> None:
    task = TASKS[name]
    outputs, targets = drawn(task)
    sizes, trained = np.array([25, 15]), [targets.numpy()[:7], targets.numpy()[7:9]]
    figures = dict(zip(task.metrics, task.figures(task.sums(outputs, targets, sizes, trained)).T, strict=True))
    for place, (part, said, known) in enumerate(parts(task, outputs, targets)):
        own = part.figures(part.sums(said, known, sizes, [mine[:, place] for mine in trained]))
        for metric in task.of_parts:
            found = figures[f"{metric}[{task.names[place]}]"]
            np.testing.assert_allclose(found, own[:, part.metrics.index(metric)])
    for metric in task.shared:
        mean = np.mean([figures[f"{metric}[{one}]"] for one in task.names], axis=0)
        np.testing.assert_allclose(figures[metric], mean)
    assert task.score in task.shared
    scores = task.scores(outputs[:25], targets[:25])
    assert float(scores) == pytest.approx(figures[task.score][0])
    assert set(task.lower_is_better) <= {*task.metrics, *task.parts[0].lower_is_better}


def test_figures_in_units_have_a_mean_where_all_parts_have_the_same_unit() -> None:
    assert "rmse" in PRESSURES.shared
    days = SeveralNumbers(("sbp", "days"), (SBP, Regression(0, 60, "days")))
    assert days.shared == ("r2", "coverage")
    assert "rmse" not in SeveralNumbers(("a", "b"), (Regression(0, 1), Regression(0, 1))).shared, "units are unknown"


@pytest.mark.parametrize("name", TASKS)
def test_a_part_is_predicted_as_it_is_alone(name: str) -> None:
    """Predictions, mixtures with offsets, likelihoods and words."""
    task = TASKS[name]
    outputs, targets = drawn(task)
    logs = task.log_probabilities(outputs)
    assert torch.allclose(task.log_probabilities(logs), logs, atol=1e-6)
    members = torch.stack([logs, task.log_probabilities(drawn(task, seed=1)[0])])
    offsets, weights = 0.1 * torch.ones(2, 1, task.told), torch.tensor([0.3, 0.7]).log().reshape(-1, 1, 1)
    mixed = task.mix(task.sharpen(members, torch.tensor([1.0, 0.5]).reshape(-1, 1, 1), offsets), weights)
    begin = there = 0
    total = torch.zeros(len(targets))
    for part, said, known in parts(task, outputs, targets):
        own = slice(begin, begin + part.told)
        assert torch.allclose(logs[:, own], part.log_probabilities(said), atol=1e-6)
        alone = part.sharpen(members[..., own], torch.tensor([1.0, 0.5]).reshape(-1, 1, 1), offsets[..., own])
        assert torch.allclose(mixed[:, own], part.mix(alone, weights), atol=1e-6)
        assert torch.allclose(
            task.predict(mixed)[:, there : there + part.predicted], part.predict(mixed[:, own]), atol=1e-4
        )
        total, begin, there = total + part.likelihoods(logs[:, own], known), begin + part.told, there + part.predicted
    assert torch.allclose(task.likelihoods(logs, targets), total, atol=1e-5)
    predicted = task.predict(mixed).double().numpy()
    told = task.tell_each(predicted)
    assert len(told) == len(targets)
    assert all(len(row) == 2 for row in told)
    assert task.shown(predicted).shape == (len(targets), len(task.columns))
    assert sum(task.count(task.tell(predicted)).values()) == 2 * len(targets)


def test_the_positive_class_of_each_label_is_shown() -> None:
    predicted = np.array([[0.9, 0.1, 0.2, 0.8]])
    assert SIGNS.shown(predicted).tolist() == [[0.1, 0.2]], "of fever the first class is looked for"
    assert SIGNS.tell_each(predicted) == [("no", "no")]


@pytest.mark.parametrize("name", TASKS)
def test_recalibration_helps_and_of_one_part_it_is_what_that_part_does(name: str) -> None:
    task = TASKS[name]
    targets = drawn(task, 300)[1]
    wrong = torch.randn(300, task.width, generator=torch.Generator().manual_seed(4)) + 0.8
    logs = task.log_probabilities(wrong)
    power, offsets = task.recalibrate(logs, targets)
    before = float(task.likelihoods(logs, targets).sum())
    assert float(task.likelihoods(task.sharpen(logs, power, offsets), targets).sum()) > before + 10
    part = task.parts[0]
    one = type(task)(task.names[:1], task.parts[:1])
    own = one.recalibrate(logs[:, : part.told], targets[:, :1])
    alone = part.recalibrate(logs[:, : part.told], targets[:, 0])
    assert own[0] == pytest.approx(alone[0], abs=1e-5)
    assert torch.allclose(own[1], alone[1], atol=1e-4)
    assert task.temper(logs, targets, torch.zeros(task.told))[1].shape == (task.told,)
    overflowed = torch.full_like(logs, torch.nan)
    assert task.recalibrate(overflowed, targets)[0] == 1.0


@pytest.mark.parametrize("name", TASKS)
def test_paid_rows_share_a_norm_of_one_and_figures_are_those_of_the_parts(name: str) -> None:
    from sordino.tasks.intervals import Released

    task = TASKS[name]
    outputs, targets = drawn(task, 800)
    said = task.predict(outputs.double()).numpy()
    rows = task.evaluation_rows(said, targets.numpy())
    assert rows.shape == (800, task.evaluated)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert 0.7 < lengths.max() <= 1 + 1e-6
    sums = rows.astype(np.float64).sum(axis=0)
    figures = task.evaluation_figures(Released(sums, 0.3, True))
    assert task.evaluated_records(sums) == pytest.approx(800)
    part, width = task.parts[0], task.parts[0].predicted
    own = part.evaluation_rows(said[:, :width], targets.numpy()[:, 0]).astype(np.float64).sum(axis=0)
    expected = part.evaluation_figures(Released(own, 0.3 * 2**0.5, True))
    for figure, one in expected.items():
        found = figures[f"{figure}[{task.names[0]}]"]
        assert (found is None) == (one is None), figure
        if one is not None and found is not None:
            ends = [(found.value, one.value), (found.low, one.low), (found.high, one.high)]
            assert all(two == pytest.approx(three, abs=1e-3) for two, three in ends), figure
    assert task.true_figures(said, targets.numpy(), np.ones(800)).keys() == figures.keys()


@pytest.mark.parametrize("name", TASKS)
def test_texts_and_documents_are_read_as_they_were_written(name: str) -> None:
    task = TASKS[name]
    _, targets = drawn(task)
    np.testing.assert_allclose(task.parse(list(task.text(targets.numpy()))), targets.numpy(), atol=1e-5)
    assert read_task(task.document()) == task
    assert read_task(task.dealt_by(task.names[1]).document()).by == 1  # type: ignore[attr-defined]
    strange = task.parse(["1.0", "a\x1fb", ""])
    assert np.isnan(strange).all() if strange.dtype.kind == "f" else (strange < 0).all(), "one text for two targets"
    assert task.admits(task)
    assert not task.admits(TASKS["labels" if name == "numbers" else "numbers"])
    assert not task.admits(type(task)(("x", "y"), task.parts))


@pytest.mark.parametrize("name", TASKS)
def test_records_are_dealt_by_the_first_part_or_the_one_that_is_told(name: str) -> None:
    task = TASKS[name]
    _, targets = drawn(task, 200)
    for by, one in enumerate(task.names):
        dealt = task.dealt_by(one)
        part = task.parts[by]
        np.testing.assert_array_equal(dealt.group(targets.numpy()), part.group(targets.numpy()[:, by]))
        np.testing.assert_array_equal(dealt.partition(targets.numpy())[0], part.partition(targets.numpy()[:, by])[0])
        assert dealt.groups[0].startswith(f"{one}: ")
    moved = task.shift(targets, 1)
    assert moved.shape == targets.shape
    assert bool((moved != targets).all())


def test_what_needs_one_label_refuses() -> None:
    for task in TASKS.values():
        assert isinstance(task, Task)
        assert task.weighed("none") is task
        with pytest.raises(UserError, match="several outcomes"):
            task.weighed("balanced")
        with pytest.raises(UserError, match="needs classes"):
            task.class_names("The clustering of PACFL")
