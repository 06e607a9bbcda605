"""Budgets: what a run may spend, planned before its first round."""

__all__ = ["allowance", "client_level_plan", "record_level_plan", "shared_noise"]
