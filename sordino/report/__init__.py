"""Reports for people: tables for the terminal, HTML pages, pictures, statements and logs."""

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
