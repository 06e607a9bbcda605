"""A site's process, until somebody ends it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from sordino.deploy.site import Site
from sordino.errors import UserError
from sordino.flower import keys
from sordino.flower.node import Server, take_part
from sordino.flower.serving import parsed_address


def join(folder: Path, address: str, authority: Path, threads: int, tell: Callable[[str], None]) -> None:
    """Open a site and take part until Ctrl-C or SIGTERM.

    The first one lets the site finish what it is at; the second one ends it at once, which loses nothing either.
    """
    parsed_address(address)
    keys.trusting(authority)
    if not folder.is_dir():
        raise UserError(f"There is no site in {folder}: `sordino site init` makes one.")
    keys.node_key(folder)
    torch.set_num_threads(threads)
    leaving = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        if leaving.is_set():
            raise KeyboardInterrupt
        leaving.set()
        tell("Leaving when the work at hand is done; once more ends it at once.")

    site = Site.open(folder)
    site.desk.tell = lambda text: tell(f"{time.strftime('%H:%M:%S')} {text}")
    for sentence in site.news:
        tell(sentence)
    if site.desk.allowed.roster is None:
        tell(
            "No roster is pinned in site.toml: nobody else's noise is counted on, so that the budget lasts less long, "
            "and no other site can confirm this one's ledger."
        )
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        take_part(site.answer, Server(address, authority), folder, tell, leaving.is_set)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        site.close()
    tell(f"The site {site.name} has left.")
