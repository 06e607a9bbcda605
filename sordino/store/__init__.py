"""Store: runs on disk, their ledgers, checkpoints and spending."""
