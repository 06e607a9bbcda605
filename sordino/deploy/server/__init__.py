"""The server of a deployment, and its way to the sites."""

__all__ = ["coordinator", "dry_run", "journal", "presence", "questions", "status", "stopped", "trips"]
