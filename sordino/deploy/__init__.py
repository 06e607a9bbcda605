"""Federations on real machines: the sites, the server and their protocol, independent of what carries the bytes."""

__all__ = ["accuracies", "database", "declarations", "protocol", "server", "site", "terms", "trial"]
