"""What people look at: tables for the terminal and pictures."""

__all__ = [
    "exports",
    "figures",
    "glossary",
    "html",
    "logs",
    "result",
    "statement",
    "statement_pages",
    "terminal",
    "wording",
]
