"""Trained models of a run: loading, prediction, export."""

__all__ = ["export", "models", "predict"]
