"""Clients and studies on a Ray cluster (extra `cluster`): the same results, on many machines.

`study` makes each run of a comparison a task of its own; `team` divides a single run among workers on all nodes. The
store stays where the command was given: nodes keep nothing.
"""

__all__ = ["connection", "node", "packing", "study", "team"]
