"""Trained models of a run: loading, prediction, export."""
