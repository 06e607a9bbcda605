"""Recalibration of class probabilities: a slope on their logarithms and an offset for each class, fitted to records.

Probabilities p of a model become

    q_k = exp(a log p_k + b_k) / sum over classes j of exp(a log p_j + b_j)

where slope a and offsets b minimise, over the records of one client,

    sum over records of -log q_y  +  (SLOPE (a - 1)^2 + OFFSETS sum over classes of b_k^2) / 2

1/a is a temperature (Guo et al. 2017). For two classes it is Platt scaling (1999) of the logit s = log p_1 - log p_0,
a s + b with b = b_1 - b_0 and the penalty (SLOPE (a - 1)^2 + OFFSETS b^2 / 2) / 2: at the minimum b_1 = -b_0. The
penalty makes the problem strictly convex, and without records nothing is changed: a = 1, b = 0.

SLOPE and OFFSETS / 2 are the penalties of slope and intercept that were measured on fifteen tables of two classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.tasks.task import Task

SLOPE = 3.0
"""Strength of the penalty that keeps the slope at one."""
OFFSETS = 0.6
"""Strength of the penalty that keeps the offset of each class at zero."""
CAUTION = 4.0
"""Strength of the penalty that keeps a member's probabilities unchanged (power one)."""
POWERS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
"""Powers to which a member's probabilities may be raised."""
STEPS = 100
"""Most Newton steps; a handful suffices for any records of a model that did not overflow."""
HALVINGS = 40
"""Most halvings of a Newton step that does not lower the objective enough."""
CLOSE = 1e-20
"""Squared Newton decrement, relative to the objective, below which the minimum is reached."""


def fit_recalibration(log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """Return the slope and the offsets (classes,) that minimise the penalised log loss, by Newton's method with
    backtracking in double precision.

    Args:
        log_probabilities: (records, classes). Where one is not finite no step is a number, and nothing is changed.
        targets: (records,) numbers of the classes.
    """
    logs = log_probabilities.double()
    found = torch.zeros(1 + logs.shape[1], dtype=torch.float64)
    found[0] = 1
    value = _objective(found, logs, targets)
    for _ in range(STEPS):
        gradient, hessian = _derivatives(found, logs, targets)
        step, _ = torch.linalg.solve_ex(hessian, gradient)  # never raises, whatever the records are
        decrement = gradient @ step
        if not decrement > CLOSE * (1 + value):  # reached, or not a number
            break
        for halving in range(HALVINGS):
            nearer = found - step / 2**halving
            lower = _objective(nearer, logs, targets)
            if lower < value - 1e-4 * decrement / 2**halving:
                found, value = nearer, lower
                break
        else:
            break  # rounding leaves nothing to gain
    return float(found[0]), found[1:].float()


def power(task: Task, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> float:
    """The best power for a member's probabilities (records, width) of held-out records with these `targets`."""

    def worth(power: float) -> float:
        found = task.likelihoods(task.sharpen(log_probabilities.double(), power, offsets), targets)
        return float(found.sum()) - CAUTION * math.log(power) ** 2

    return max(POWERS, key=worth)


def _penalties(classes: int) -> Tensor:
    """Strengths of the penalties on the slope and on each offset."""
    found = torch.full((1 + classes,), OFFSETS, dtype=torch.float64)
    found[0] = SLOPE
    return found


def _away(found: Tensor) -> Tensor:
    """Distance of slope and offsets from those that change nothing."""
    return torch.cat([found[:1] - 1, found[1:]])


def _objective(found: Tensor, logs: Tensor, targets: Tensor) -> Tensor:
    """Penalised log loss of slope and offsets `found`."""
    scores = found[0] * logs + found[1:]
    losses = torch.logsumexp(scores, dim=1) - scores.gather(1, targets.unsqueeze(1)).squeeze(1)
    return losses.sum() + (_penalties(logs.shape[1]) * _away(found) ** 2).sum() / 2


def _derivatives(found: Tensor, logs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian of the objective in slope and offsets."""
    penalties = _penalties(logs.shape[1])
    shares = torch.softmax(found[0] * logs + found[1:], dim=1)
    errors = shares.scatter_add(1, targets.unsqueeze(1), shares.new_full((), -1.0).expand(len(targets), 1))
    gradient = torch.cat([(errors * logs).sum().reshape(1), errors.sum(dim=0)]) + penalties * _away(found)
    centred = logs - (shares * logs).sum(dim=1, keepdim=True)
    hessian = torch.diag(penalties)
    hessian[0, 0] += (shares * centred**2).sum()
    hessian[0, 1:] = hessian[1:, 0] = (shares * centred).sum(dim=0)
    hessian[1:, 1:] += torch.diag(shares.sum(dim=0)) - shares.T @ shares
    return gradient, hessian
