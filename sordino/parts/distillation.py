"""Knowledge distillation, classic and decoupled (Zhao et al., CVPR 2022), one loss for each record."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def classic(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) of the softened class probabilities."""
    log_student = functional.log_softmax(student / temperature, dim=-1)
    log_teacher = functional.log_softmax(teacher / temperature, dim=-1)
    return temperature**2 * (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1)


def decoupled(student: Tensor, teacher: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The target-class and the non-target-class part: TCKD and NCKD (Eq. 6, 7).

    T^2 KL of (target, all others), and T^2 KL among the others alone. TCKD + (1 - p_target) NCKD, with the
    teacher's p_target, is `classic`.
    """
    classes = torch.arange(student.shape[-1], device=student.device)
    is_target = target.unsqueeze(-1) == classes
    own, rest, among = _split(student / temperature, is_target)
    own_teacher, rest_teacher, among_teacher = _split(teacher / temperature, is_target)
    target_part = own_teacher.exp() * (own_teacher - own) + rest_teacher.exp() * (rest_teacher - rest)
    weighted = among_teacher.exp() * (among_teacher - among)
    other_part = weighted.masked_fill(is_target, 0.0).sum(dim=-1)
    return temperature**2 * target_part, temperature**2 * other_part


def _split(logits: Tensor, is_target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the target class, of all others together, and of each other class among the others."""
    whole = logits.logsumexp(dim=-1)
    # A large finite number, not infinity: its gradient is zero and not NaN.
    others = logits.masked_fill(is_target, -1e9).logsumexp(dim=-1)
    own = (logits * is_target).sum(dim=-1)
    return own - whole, others - whole, logits - others.unsqueeze(-1)
