"""Store: runs on disk, their ledgers, checkpoints and spending."""

__all__ = [
    "checkpoint",
    "database",
    "importing",
    "journal",
    "ledger_rows",
    "lock",
    "merging",
    "run_files",
    "run_summary",
    "spending",
    "store",
]
