"""Planning: what a run would cost and what to use, before any budget is spent."""
