"""A server's folder (keys, and who may take part), and a run of it.

server/ca.pem ca.key         the authority: sites get ca.pem
server/server.pem server.key the certificate
server/sites.toml            the sites that were added: name, identity, key of its connection
server/link.log              what the SuperLink says
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.deploy.protocol.roster import Member, written_roster
from sordino.errors import UserError, quoted, writing
from sordino.flower import keys
from sordino.flower.carrier import FlowerCarrier
from sordino.flower.link import Link
from sordino.util.files import read_text, write_whole
from sordino.util.toml import read_toml

SITES = "sites.toml"
MARK = "sordino-site"
DEFAULT_ADDRESS = "0.0.0.0:8000"
NAME_LENGTH = 64


@dataclass(frozen=True)
class PublicSite:
    """What a site tells everybody: one line of text."""

    name: str
    identity: bytes
    node_key: str
    """The public key of its connection, in hexadecimal digits."""

    def line(self) -> str:
        """As text."""
        return f"{MARK} {self.name} {self.identity.hex()} {self.node_key}"

    @property
    def member(self) -> Member:
        """As one of a roster."""
        return Member(self.name, self.identity)

    @classmethod
    def read(cls, text: str, source: str) -> PublicSite:
        """From a line; a mistake names its `source`."""
        parts = text.split()
        if len(parts) != 4 or parts[0] != MARK:
            raise UserError(f"{source} holds no site's public line: `sordino site init` writes one, NAME.pub.")
        _, name, identity, node_key = parts
        check_name(name)
        try:
            found = cls(name, bytes.fromhex(identity), node_key)
        except ValueError as error:
            raise UserError(f"{source} is damaged: the site's identity is not in hexadecimal digits.") from error
        if len(found.identity) != 32:
            raise UserError(f"{source} is damaged: a site's identity has 32 bytes.")
        keys.public_pem(node_key)
        return found


def check_name(name: str) -> None:
    """Refuse a site's name that cannot stand in a file's name or a line of text."""
    if not name or len(name) > NAME_LENGTH or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
        raise UserError(f"A site cannot be called {quoted(name)}: use letters, digits, dots and hyphens.")
    if name.startswith((".", "-")):
        raise UserError(f"A site cannot be called {quoted(name)}: begin with a letter or a digit.")


def init(folder: Path, hosts: Sequence[str]) -> None:
    """Make a server's keys in a folder."""
    if (folder / keys.AUTHORITY_KEY).exists():
        raise UserError(f"{folder} has a server's keys already: sites know its ca.pem, so it is not replaced.")
    if not hosts:
        raise UserError("Give the name under which sites reach the server: --host fl.example.org.")
    with writing(folder / keys.AUTHORITY):
        keys.make_authority(folder, hosts)


def renew(folder: Path, hosts: Sequence[str]) -> datetime.datetime:
    """Make a new certificate under a server's authority, for `hosts` too; when it runs out."""
    if not (folder / keys.AUTHORITY_KEY).exists():
        raise UserError(f"There is no authority in {folder}: `sordino serve init --host NAME` makes a server's keys.")
    with writing(folder / keys.CERTIFICATE):
        return keys.renew(folder, hosts)


def add(folder: Path, files: Sequence[Path]) -> list[PublicSite]:
    """Let sites take part, by their public lines; all sites that may."""
    keys.check_server_keys(folder)
    found = {site.name: site for site in sites(folder)}
    for file in files:
        site = PublicSite.read(_text(file), str(file))
        known = [other for other in found.values() if other.identity == site.identity and other.name != site.name]
        if known:
            raise UserError(f"{file} is the site {known[0].name}, which was added under that name.")
        if site.name in found and found[site.name] != site:
            raise UserError(
                f"There is another site {site.name} already: if it was made anew, take the old one out of "
                f"{folder / SITES} first, and tell all owners."
            )
        found[site.name] = site
    rows = [
        f"[[site]]\nname = {json.dumps(site.name)}\nidentity = {json.dumps(site.identity.hex())}\n"
        f"node_key = {json.dumps(site.node_key)}\n"
        for site in found.values()
    ]
    with writing(folder / SITES):
        write_whole(folder / SITES, "\n".join(rows))
    return list(found.values())


def sites(folder: Path) -> list[PublicSite]:
    """The sites that were added to a server."""
    path = folder / SITES
    if not path.exists():
        return []
    try:
        rows = read_toml(path)["site"]
        return [PublicSite(row["name"], bytes.fromhex(row["identity"]), row["node_key"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: `sordino serve add` writes it.") from error


def roster(folder: Path) -> str:
    """The roster for owners to pin."""
    found = [site.member for site in sites(folder)]
    if not found:
        raise UserError(f"No site has been added to {folder}: `sordino serve add NAME.pub` does.")
    head = (
        '# Who takes part. With roster = "roster.toml" in site.toml, `sordino site status` shows their fingerprints:\n'
        "# compare each with what its owner told you, over another way than this file came.\n\n"
    )
    return head + written_roster(found)


def parsed_address(text: str) -> tuple[str, int]:
    """Host and port of an address such as 0.0.0.0:8000, fl.example.org:8000 or [::]:8000."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    wrong = not colon or not bare or not port.isdecimal() or not 0 < int(port) < 65536
    if wrong or (":" in bare and not host.startswith("[")):
        raise UserError(f"{quoted(text)} is no address: write HOST:PORT, for example {DEFAULT_ADDRESS}.")
    return bare, int(port)


@contextlib.contextmanager
def serving(
    folder: Path,
    address: tuple[str, int],
    node_keys: Sequence[str],
    largest: int,
    fork: Callable[[Link], None] | None = None,
) -> Iterator[FlowerCarrier]:
    """A SuperLink at an address, and this process as the server that speaks through it.

    `largest` is how many bytes a site's answer may have (`DeployedTerms.largest_answer`).
    `fork` is called when the SuperLink is starting, and may start processes of a trial's sites in the meantime.
    """
    keys.check_server_keys(folder)
    link = Link(folder, *address, folder, largest)
    try:
        link.start()
        if fork is not None:
            fork(link)
        link.wait()
        carrier = FlowerCarrier(link, node_keys)
        try:
            yield carrier
        finally:
            carrier.close()
    finally:
        link.stop()


def _text(file: Path) -> str:
    try:
        return read_text(file)[:4096].strip()
    except FileNotFoundError as error:
        raise UserError(f"There is no file {file}: the site's owner sends you its NAME.pub.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as a site's public line.") from error
