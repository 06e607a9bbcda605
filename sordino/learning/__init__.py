"""A model is one flat vector; descent for one client, for many stacked ones, and for each record."""

__all__ = [
    "descent",
    "metrics",
    "network",
    "pages",
    "parameters",
    "per_record",
    "recordwise",
    "singles",
    "stacked",
    "vmapped",
]
