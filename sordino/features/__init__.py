"""Frozen features: a public function of one record between data and network, which costs no privacy."""

from __future__ import annotations

from sordino.features.choice import FeatureChoice, read_choice

__all__ = ["FeatureChoice", "read_choice"]
