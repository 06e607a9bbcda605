"""Federations on real machines: what a site and a coordinator do, whatever carries their bytes."""

__all__ = ["accuracies", "database", "declared", "protocol", "server", "site", "terms", "trial"]
