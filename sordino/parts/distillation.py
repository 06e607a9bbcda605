"""Knowledge distillation, classic and decoupled (Zhao et al., CVPR 2022), one loss for each record.

Both are divergences as they stand. Where the temperature T is high, their gradients are about 1/T^2 of what they are at
temperature one; whoever wants that made up for multiplies by T^2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def classic(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of the softened class probabilities (Eq. 5's left side)."""
    log_student = functional.log_softmax(student / temperature, dim=-1)
    log_teacher = functional.log_softmax(teacher / temperature, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1)


def decoupled(student: Tensor, teacher: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The target-class and the non-target-class part: TCKD and NCKD (Eq. 6, 7).

    KL of (target, all others), and KL among the others alone. TCKD + (1 - p_target) NCKD, with the teacher's p_target,
    is `classic`.
    """
    classes = torch.arange(student.shape[-1], device=student.device)
    is_target = target.unsqueeze(-1) == classes
    own, rest, among = _split(student / temperature, is_target)
    own_teacher, rest_teacher, among_teacher = _split(teacher / temperature, is_target)
    target_part = own_teacher.exp() * (own_teacher - own) + rest_teacher.exp() * (rest_teacher - rest)
    other_part = (among_teacher.exp() * (among_teacher - among)).sum(dim=-1)
    return target_part, other_part


def _split(logits: Tensor, is_target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the target class, of all others together, and of each other class among the others.

    The last are zero at the target itself, before anything is made of them: its exponential may be infinite.
    """
    whole = logits.logsumexp(dim=-1)
    # A large finite number, not infinity: its gradient is zero and not NaN.
    others = logits.masked_fill(is_target, -1e9).logsumexp(dim=-1)
    own = (logits * is_target).sum(dim=-1)
    return own - whole, others - whole, (logits - others.unsqueeze(-1)).masked_fill(is_target, 0.0)
