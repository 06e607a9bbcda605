"""Budgets: what a run may spend, planned before its first round."""

__all__ = ["allowance", "client_plan", "record_plan"]
