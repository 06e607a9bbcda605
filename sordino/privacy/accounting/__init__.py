"""Accounting: from noise, sampling and composition to epsilon, and back."""

__all__ = ["calibration", "composition", "gaussian", "loss_distribution", "published_rates", "sampled_gaussian"]
