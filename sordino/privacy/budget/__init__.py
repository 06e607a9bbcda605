"""Budgets: what a run may spend, planned before its first round."""
