"""What docs/flower.md says of Flower's own differential privacy, asked of the installed version."""

from __future__ import annotations

import numpy as np
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from flwr.supercore.differential_privacy import adaptive_clip_inputs_inplace, add_gaussian_noise_inplace


def thresholds(norm: float) -> list[float]:
    """Thresholds of adaptive clipping that is to clip half of the updates, while all of them have one norm."""
    made = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), 1.0, 100, initial_clipping_norm=1.0, target_clipped_quantile=0.5
    )
    found = []
    for _ in range(50):
        clipped = adaptive_clip_inputs_inplace([np.array([norm])], made.clipping_norm)
        made._geometric_update(float(clipped))
        found.append(made.clipping_norm)
    return found


def test_adaptive_clipping_moves_away_from_the_norm_of_the_updates() -> None:
    """Updates longer than the threshold shorten it further, and shorter ones lengthen it: it never comes to rest."""
    assert thresholds(norm=2.0)[-1] < 0.01
    assert thresholds(norm=0.5)[-1] > 100


def test_noise_follows_from_a_global_seed() -> None:
    found = []
    for _ in range(2):
        np.random.seed(7)
        (array,) = [np.zeros(5)]
        add_gaussian_noise_inplace([array], 1.0)
        found.append(array)
    assert (found[0] == found[1]).all()
