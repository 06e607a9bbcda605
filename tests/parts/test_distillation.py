"""Distillation losses: the identity that decouples them, and their gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from sordino.parts.distillation import classic_loss, decoupled_losses


@given(seed=st.integers(0, 1000), classes=st.integers(2, 12), temperature=st.floats(0.5, 8), scale=st.floats(0.1, 8))
def test_the_parts_make_the_whole(seed: int, classes: int, temperature: float, scale: float) -> None:
    """TCKD + (1 - p_target) NCKD, with the teacher's p_target, is the classic loss of each record (Eq. 5)."""
    generator = torch.Generator().manual_seed(seed)
    student = scale * torch.randn(7, classes, generator=generator, dtype=torch.float64)
    teacher = scale * torch.randn(7, classes, generator=generator, dtype=torch.float64)
    target = torch.randint(0, classes, (7,), generator=generator)
    of_target, of_others = decoupled_losses(student, teacher, target, temperature)
    p_target = functional.softmax(teacher / temperature, dim=1).gather(1, target.unsqueeze(1)).squeeze(1)
    whole = of_target + (1 - p_target) * of_others
    assert torch.allclose(whole, classic_loss(student, teacher, temperature), atol=1e-9)


def test_classic_is_torchs_divergence() -> None:
    student, teacher = torch.randn(5, 4), torch.randn(5, 4)
    expected = functional.kl_div(
        functional.log_softmax(student / 3, 1), functional.softmax(teacher / 3, 1), reduction="none"
    ).sum(dim=1)
    assert torch.allclose(classic_loss(student, teacher, 3.0), expected, atol=1e-6)


def test_a_student_that_agrees_pays_nothing_and_gradients_are_finite() -> None:
    logits = (torch.randn(6, 3) * 20).requires_grad_()
    target = torch.randint(0, 3, (6,))
    of_target, of_others = decoupled_losses(logits, logits.detach(), target, 2.0)
    assert torch.allclose(of_target + of_others, torch.zeros(6), atol=1e-5)
    of_target, of_others = decoupled_losses(logits, torch.randn(6, 3), target, 2.0)
    (of_target + of_others).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_gradients_are_finite_where_the_target_is_far_above_all_others() -> None:
    logits = torch.tensor([[500.0, 0.0, 1.0]], requires_grad=True)
    of_target, of_others = decoupled_losses(logits, torch.tensor([[400.0, 1.0, 0.0]]), torch.tensor([0]), 1.0)
    (of_target + of_others).sum().backward()
    assert torch.isfinite(logits.grad).all()
