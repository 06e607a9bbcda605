"""Accounting: from noise, sampling and composition to epsilon, and back."""
