"""Audit by attack: what an attacker reaches against every epsilon that the program prints.

- Tier 0, `conformance`: noise, bounds, coins and prices of everything that left, inputs known.
- Tier 1, `client_canaries` and `record_canaries`: is one client, or one record, there? Many trials of the
  gate's own path.
- Tier 2, `one_run`: canaries in a real run, with what one run tells.
- Tier 3, `side_channels`: one attack for each thing on the wire.

An epsilon that an attack surely exceeds is refuted. One that none exceeds is consistent with all of them, and proves
nothing more.
"""

__all__ = [
    "bounds",
    "client_canaries",
    "conformance",
    "findings",
    "one_run",
    "record_canaries",
    "recorded_run",
    "recorder",
    "replay",
    "side_channels",
    "suite",
    "sum_canaries",
    "sum_conformance",
    "worlds",
]
