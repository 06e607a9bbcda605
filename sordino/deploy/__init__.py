"""Federations on real machines: the sites, the server and their protocol, independent of what carries the bytes."""

__all__ = [
    "accuracies",
    "app",
    "database",
    "declarations",
    "monitor",
    "protocol",
    "server",
    "services",
    "site",
    "terms",
    "trial",
]
