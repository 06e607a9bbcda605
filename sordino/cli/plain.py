"""Patches of typer: complete help in plain text, whichever versions of typer and click are installed."""

from __future__ import annotations

from typing import Any

import typer.core


def plain_help() -> None:
    """Let typer write help without rich, and with what arguments mean."""
    # With rich, typer escapes brackets for a markup that is turned off here.
    typer.core.HAS_RICH = False
    # From 8.5 on click explains arguments itself: it forgets what typer was told of them, and would list them twice.
    made = typer.core.TyperArgument.__init__

    def with_help(self: typer.core.TyperArgument, *, help: str | None = None, **rest: Any) -> None:
        made(self, help=help, **rest)
        self.help = help

    typer.core.TyperArgument.__init__ = with_help  # type: ignore[method-assign]
    typer.core.TyperCommand.format_arguments = lambda *_: None  # type: ignore[method-assign]
