"""Knowledge distillation, classic and decoupled (Zhao et al., CVPR 2022): one loss for each record.

The losses are divergences, not multiplied by the square of the temperature T. At a high T their gradients are about
1/T^2 of those at temperature one; a method that wants to compensate multiplies by T^2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def classic_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return KL(teacher || student) of the softened class probabilities (left side of Eq. 5), from logits."""
    log_student = functional.log_softmax(student / temperature, dim=-1)
    log_teacher = functional.log_softmax(teacher / temperature, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1)


def decoupled_losses(student: Tensor, teacher: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the target-class and the non-target-class part of the loss: TCKD and NCKD (Eq. 6, 7), from logits.

    TCKD is the KL of (target, all others), NCKD the KL among the others alone. TCKD + (1 - p_target) NCKD, with the
    teacher's p_target, is `classic`.
    """
    classes = torch.arange(student.shape[-1], device=student.device)
    is_target = target.unsqueeze(-1) == classes
    own, rest, among = _split(student / temperature, is_target)
    own_teacher, rest_teacher, among_teacher = _split(teacher / temperature, is_target)
    target_part = own_teacher.exp() * (own_teacher - own) + rest_teacher.exp() * (rest_teacher - rest)
    other_part = (among_teacher.exp() * (among_teacher - among)).sum(dim=-1)
    return target_part, other_part


def _split(logits: Tensor, is_target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of the target class, of all others together, and of each class among the others.

    The last are set to zero at the target itself, where the exponential may be infinite.
    """
    whole = logits.logsumexp(dim=-1)
    # A large finite number, not infinity: its gradient is zero and not NaN.
    others = logits.masked_fill(is_target, -1e9).logsumexp(dim=-1)
    own = (logits * is_target).sum(dim=-1)
    return own - whole, others - whole, (logits - others.unsqueeze(-1)).masked_fill(is_target, 0.0)
