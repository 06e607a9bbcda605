"""What a site answers from: its folder, its rules, its records, its keys and the runs that it takes part in."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sordino.deploy import keys
from sordino.deploy.records import SiteFile
from sordino.deploy.rules import Allowed
from sordino.deploy.session import Session
from sordino.files import rotate

LOG = "site.log"


@dataclass
class Desk:
    """A site's own things."""

    folder: Path
    allowed: Allowed
    file: SiteFile
    private: bytes
    """Its lasting Ed25519 key."""
    secret: bytes
    """From which follows what depends on no noise, as the choice of test records."""
    tell: Callable[[str], None] = lambda sentence: None
    """Tells whoever watches the site what it does."""
    sessions: dict[str, Session] = field(default_factory=dict)
    """The runs that it has been asked about since it was opened."""

    @property
    def identity(self) -> bytes:
        """Its public key."""
        return keys.public_identity(self.private)

    @contextlib.contextmanager
    def keeping_errors(self, what: str) -> Iterator[None]:
        """Write whatever fails on the site's records into its log, and tell nobody else: that it failed tells of
        them."""
        try:
            yield
        except KeyboardInterrupt:  # somebody stops the site
            raise
        except BaseException:
            self.note(f"{what}:\n{traceback.format_exc()}")

    def note(self, text: str) -> None:
        """Tell what the site does, and write it into its log, if that can be written.

        What a server has said may stand in it: that speaks to no terminal, and begins no line of the log.
        """
        lines = ["".join(one if one.isprintable() else "?" for one in line) for line in text.splitlines()]
        self.tell(lines[0])
        rotate(self.folder / LOG)
        with contextlib.suppress(OSError), (self.folder / LOG).open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} " + "\n    ".join(lines) + "\n")
