"""The papers' tables and figures: what they print, in which setting, and what comes of it here."""

__all__ = ["claims", "description", "figures", "formulas", "index", "judgement", "pages", "runs"]
