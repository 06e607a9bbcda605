"""Agents that learn which threshold to choose."""
