"""Reports for people: tables for the terminal, HTML pages, pictures, statements and logs."""

__all__ = [
    "exports",
    "figures",
    "glossary",
    "html",
    "judgement_page",
    "logs",
    "registry",
    "result",
    "run_facts",
    "run_page",
    "site_page",
    "site_statement",
    "statement",
    "statement_blocks",
    "statement_facts",
    "statement_pages",
    "terminal",
    "unit_words",
    "wording",
]
