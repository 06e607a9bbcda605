"""A federation on one machine: the clients of a run, one by one or stacked, in one process or many."""

__all__ = ["bf16", "choice", "engine", "local_transport", "memory", "serving", "slabs", "step_cost", "workers"]
