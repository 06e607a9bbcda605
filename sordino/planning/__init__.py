"""Planning: what a run would cost and what to use, before any budget is spent."""

__all__ = ["advise", "plan", "situation"]
