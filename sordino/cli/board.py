"""The command `board`: prints the address of a page on this machine that shows runs while they go on, and serves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import Json, StoreFolder
from sordino.errors import UserError
from sordino.experiment.defaults import DEFAULT_STORE


def board(
    store: StoreFolder = DEFAULT_STORE,
    site: Annotated[
        Path | None,
        typer.Option("--site", metavar="SITE", help="Show a site to its owner. [default: the runs of the store]"),
    ] = None,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes any free one.", min=0, max=65535)] = 8484,
    token: Annotated[
        str | None, typer.Option(help="What the address must end with. [default: made at random, and printed]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show runs, budgets, comparisons and deployments in a browser on this machine, as they go on. It changes nothing.

    The address that is printed holds a token: whoever has it, on this machine, sees all that is shown.
    """
    from sordino.board.server import Board, SiteBoard, StoreBoard
    from sordino.store.database import DATABASE

    if site is not None:
        from sordino.flower import check_installed

        check_installed()
        if store != DEFAULT_STORE:
            raise UserError("Give either --store or --site: a board shows one of them.")
    with Board(StoreBoard(store) if site is None else SiteBoard(site), port, token) as found:
        if as_json:
            typer.echo(json.dumps({"address": found.address, "port": found.server_port, "token": found.token}))
        else:
            typer.echo(f"{found.address}\nOpen it in a browser on this machine. Ctrl-C ends the board.")
            if site is None and not (store / DATABASE).is_file():
                typer.echo(f"There is no store in {store} yet: the board shows runs when there are any.")
        try:
            found.serve_forever()
        except KeyboardInterrupt:
            return
