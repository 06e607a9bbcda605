"""A site: one client on its own machine, with its own records, rules, ledger and memory."""

__all__ = [
    "app",
    "check",
    "data",
    "end",
    "enrol",
    "freshness",
    "judging",
    "ledger",
    "migration",
    "requests",
    "rules",
    "session",
    "site",
    "spending",
    "status",
    "verify",
    "witness",
    "work",
]
