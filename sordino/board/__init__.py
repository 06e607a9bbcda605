"""The live board: one page on this machine alone, which shows a store, a deployment or a site, and changes nothing."""

__all__ = ["budgets", "look", "sections", "server"]
