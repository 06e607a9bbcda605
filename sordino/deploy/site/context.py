"""What a site answers from: its folder, its rules, its records, its keys and the runs that it takes part in."""

from __future__ import annotations

import contextlib
import secrets
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sordino.deploy.protocol import keys
from sordino.deploy.protocol.roster import Member
from sordino.deploy.site.data import SiteFile
from sordino.deploy.site.rules import Allowed
from sordino.deploy.site.session import Session
from sordino.util.files import rotate

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
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Random bytes drawn when the site is opened: a note that answers them is no older."""
    is_fresh: bool = False
    """Whether enough others have confirmed its ledger since it was opened."""
    held: dict[bytes, int] = field(default_factory=dict)
    """Position of the head that each other site holds of this ledger, as far as it is known."""

    @property
    def identity(self) -> bytes:
        """Its public key."""
        return keys.public_identity(self.private)

    @contextlib.contextmanager
    def keeping_errors(self, what: str) -> Iterator[None]:
        """Write errors on the site's records into its log and tell nobody else, because a failure tells of the
        records."""
        try:
            yield
        except KeyboardInterrupt:  # somebody stops the site
            raise
        except BaseException:
            self.note(f"{what}:\n{traceback.format_exc()}")

    @property
    def others(self) -> list[Member]:
        """The other sites of the owner's pinned roster; without one nobody, since the server might invent sites."""
        return [one for one in self.allowed.roster or () if one.identity != self.identity]

    @property
    def quorum(self) -> int:
        """Number of other sites that have to confirm its ledger."""
        named = self.allowed.rules.witnesses
        return len(self.others) if named is None else named

    def note(self, text: str) -> None:
        """Tell what the site does, and write it into its log, if that can be written.

        What a server has said may stand in it: that speaks to no terminal, and begins no line of the log.
        """
        lines = ["".join(one if one.isprintable() else "?" for one in line) for line in text.splitlines()]
        self.tell(lines[0])
        rotate(self.folder / LOG)
        with contextlib.suppress(OSError), (self.folder / LOG).open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} " + "\n    ".join(lines) + "\n")
