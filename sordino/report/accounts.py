"""A ledger as a table for the terminal."""

from __future__ import annotations

from collections import Counter

from rich import box
from rich.table import Table

from sordino.experiment.account import Account


def ledger_table(account: Account) -> Table:
    """What left, each kind of release in one line: in how many rounds, from how many clients, how often from each."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("step", "what left"):
        table.add_column(name, overflow="fold")
    for name in ("times", "rounds", "clients", "most by one client"):
        table.add_column(name, justify="right")
    table.add_column("covered by noise", overflow="fold")
    rows = [row for row in account.ledger.rows if not row.exposed]
    for step, release in dict.fromkeys((row.step, row.release) for row in rows):
        mine = [row for row in rows if (row.step, row.release) == (step, release)]
        each = Counter(client for row in mine for client in row.clients().tolist())
        reasons = list(dict.fromkeys(row.reason for row in mine if row.reason))
        table.add_row(
            *(step, release, str(len(mine)), str(len({row.round for row in mine})), str(len(each))),
            str(max(each.values(), default=0)),
            "no: " + "; ".join(reasons) if reasons else "yes",
        )
    return table
