"""Tables and figures of the papers: what they print, in which setting, and what Sordino measures."""

__all__ = [
    "claims",
    "description",
    "figures",
    "formulas",
    "headlines",
    "index",
    "judgement",
    "pages",
    "personal_share",
    "sources",
    "table_runs",
]
