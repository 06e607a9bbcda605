"""A deployment on one machine: the SuperLink and every site in a process of its own, this one as the server.

Sites are forked, so that none imports anything anew. They end with this process, however it ends: each reads from a
pipe whose other end only this process holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from sordino.deploy.site import Site
from sordino.errors import UserError
from sordino.files import keep_rotating, rotate, write_output_to
from sordino.flower import keys, serving
from sordino.flower.carrier import FlowerCarrier
from sordino.flower.link import Link, free_port
from sordino.flower.node import Server, take_part

STOP_SECONDS = 5.0
QUICK_POLL = 0.5
"""How long a site that shares its machine with the server waits between questions at the most, in seconds."""
SERVER = "server"
JOIN_LOG = "join.log"


class Household:
    """The processes of a trial's sites."""

    def __init__(self, folders: Sequence[Path], server: Server) -> None:
        self.folders, self.server = folders, server
        self.processes: dict[int, Path] = {}
        self._leash = os.pipe()

    def start(self, link: Link) -> None:
        """Fork a process for each site."""
        for folder in self.folders:
            process = os.fork()
            if process == 0:
                link.forget()
                self._live(folder)
            self.processes[process] = folder
        os.close(self._leash[0])

    def stop(self) -> None:
        """End the processes and wait for them."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while self.processes and time.monotonic() < until:
            self._reap(os.WNOHANG)
            time.sleep(0.05)
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        self._reap(0)
        os.close(self._leash[1])

    def _reap(self, options: int) -> None:
        for process in list(self.processes):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(process, options)[0] == 0:
                    continue
            del self.processes[process]

    def _live(self, folder: Path) -> NoReturn:
        """A site's process."""
        code = 1
        try:
            os.setsid()  # Ctrl-C is for the server, which ends the sites
            os.close(self._leash[1])
            threading.Thread(target=_follow, args=(self._leash[0],), daemon=True).start()
            sys.stdout.flush()
            sys.stderr.flush()
            rotate(folder / JOIN_LOG)
            write_output_to(folder / JOIN_LOG)
            keep_rotating(folder / JOIN_LOG)
            leaving = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: leaving.set())
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            torch.set_num_threads(1)
            site = Site.open(folder)
            try:
                take_part(site.answer, self.server, folder, _say, leaving.is_set, QUICK_POLL)
            finally:
                site.close()
            code = 0
        except UserError as error:
            _say(str(error))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)


@contextlib.contextmanager
def household(folder: Path, folders: Sequence[Path], largest: int) -> Iterator[FlowerCarrier]:
    """Run a server in `folder` and its sites in `folders` until the end of the block; a site's answer has at most
    `largest` bytes."""
    server = folder / SERVER
    if not (server / keys.AUTHORITY_KEY).exists():
        serving.init(server, ["localhost"])
    node_keys = [_connection_key(site) for site in folders]
    port = free_port()
    sites = Household(folders, Server(f"127.0.0.1:{port}", server / keys.AUTHORITY))
    try:
        with serving.serving(server, ("127.0.0.1", port), node_keys, largest, sites.start) as carrier:
            yield carrier
    finally:
        sites.stop()
        shutil.rmtree(server / "home", ignore_errors=True)


def _connection_key(folder: Path) -> str:
    if not (folder / keys.NODE_KEY).exists():
        keys.make_node_key(folder)
    return keys.public_text(keys.node_key(folder))


def _follow(leash: int) -> None:
    """End when the process that started this one has ended."""
    os.read(leash, 1)
    os._exit(1)


def _say(sentence: str) -> None:
    os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sentence}\n".encode())
