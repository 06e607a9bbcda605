"""A server's folder (its keys and the sites that may take part), and serving a run from it.

server/ca.pem ca.key         certificate authority; sites get ca.pem
server/server.pem server.key certificate
server/sites.toml            sites that were added: name, identity, key of the connection
server/link.log              log of the SuperLink
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.deploy.protocol.roster import NAME_LENGTH, Member, roster_toml
from sordino.errors import UserError, quoted, writing
from sordino.flower import keys
from sordino.flower.carrier import FlowerCarrier
from sordino.flower.link import Link
from sordino.util.files import read_text, write_whole
from sordino.util.toml import read_toml

SITES = "sites.toml"
MARK = "sordino-site"
"""First word of the text in a site's NAME.pub."""
DEFAULT_ADDRESS = "0.0.0.0:8000"


@dataclass(frozen=True)
class PublicSite:
    """Name and public keys of a site: one line of text in NAME.pub, which its owner sends to the server's operator."""

    name: str
    identity: bytes
    node_key: str
    """Public key of the site's connection, in hexadecimal digits."""

    def line(self) -> str:
        """Text of the line."""
        return f"{MARK} {self.name} {self.identity.hex()} {self.node_key}"

    @property
    def member(self) -> Member:
        """The site as a member of a roster."""
        return Member(self.name, self.identity)

    @classmethod
    def read(cls, text: str, source: str) -> PublicSite:
        """Read a public line; errors name its `source`."""
        parts = text.split()
        if len(parts) != 4 or parts[0] != MARK:
            raise UserError(
                f"{source} does not hold a site's public line, as `sordino site init` writes it into NAME.pub."
            )
        _, name, identity, node_key = parts
        check_name(name)
        try:
            found = cls(name, bytes.fromhex(identity), node_key)
        except ValueError as error:
            raise UserError(
                f"{source} is damaged: the site's identity is not hexadecimal; ask its owner for NAME.pub again."
            ) from error
        if len(found.identity) != 32:
            raise UserError(
                f"{source} is damaged: the site's identity does not have 32 bytes; ask its owner for NAME.pub again."
            )
        keys.public_pem(node_key)
        return found


def check_name(name: str) -> None:
    """Refuse a site's name that cannot be part of a file name or a line of text."""
    if not name or len(name) > NAME_LENGTH or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
        raise UserError(f"A site cannot be called {quoted(name)}: use 1 to 64 of A-Z, a-z, 0-9, -, _ and dots.")
    if name.startswith((".", "-")):
        raise UserError(f"A site cannot be called {quoted(name)}: begin with a letter or a digit.")


def create_server(folder: Path, hosts: Sequence[str]) -> None:
    """Make a server's keys in a folder, for the host names or addresses `hosts`."""
    if (folder / keys.AUTHORITY_KEY).exists():
        raise UserError(f"{folder} has a server's keys already: sites trust its ca.pem, so they are not replaced.")
    if not hosts:
        raise UserError("Give the name under which sites reach the server: --host fl.example.org.")
    with writing(folder / keys.AUTHORITY):
        keys.make_authority(folder, hosts)


def renew_certificate(folder: Path, hosts: Sequence[str]) -> datetime.datetime:
    """Renew a server's certificate, also for `hosts`; returns when the new one expires."""
    if not (folder / keys.AUTHORITY_KEY).exists():
        raise UserError(
            f"{folder} has no {keys.AUTHORITY_KEY}: `sordino serve init --host NAME` makes a server's keys."
        )
    with writing(folder / keys.CERTIFICATE):
        return keys.renew_certificate(folder, hosts)


def add_sites(folder: Path, files: Sequence[Path]) -> list[PublicSite]:
    """Add sites by the files with their public lines; returns all sites of the server."""
    keys.check_server_keys(folder)
    found = {site.name: site for site in read_sites(folder)}
    for file in files:
        site = PublicSite.read(_read_public_line(file), str(file))
        known = [other for other in found.values() if other.identity == site.identity and other.name != site.name]
        if known:
            raise UserError(f"{file} names the site {known[0].name}, which was added under that name already.")
        if site.name in found and found[site.name] != site:
            raise UserError(
                f"There is another site {site.name} already: if its owner made it anew, remove the old one from "
                f"{folder / SITES} first, and tell the owners of all sites."
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


def read_sites(folder: Path) -> list[PublicSite]:
    """Sites that were added to the server in `folder`."""
    path = folder / SITES
    if not path.exists():
        return []
    try:
        rows = read_toml(path)["site"]
        return [PublicSite(row["name"], bytes.fromhex(row["identity"]), row["node_key"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read: delete it, and add all sites again with `sordino serve add`."
        ) from error


def roster_file(folder: Path) -> str:
    """Text of the roster file that owners pin."""
    found = [site.member for site in read_sites(folder)]
    if not found:
        raise UserError(f"No site has been added to {folder}: add each with `sordino serve add NAME.pub`.")
    head = (
        '# The sites that take part. With roster = "roster.toml" in site.toml, `sordino site status` shows their\n'
        "# fingerprints: compare each with what its owner tells you, over another channel than this file came by.\n\n"
    )
    return head + roster_toml(found)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of an address such as 0.0.0.0:8000, fl.example.org:8000 or [::]:8000."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    wrong = not colon or not bare or not port.isdecimal() or not 0 < int(port) < 65536
    if wrong or (":" in bare and not host.startswith("[")):
        raise UserError(f"{quoted(text)} is not an address: write HOST:PORT, for example {DEFAULT_ADDRESS}.")
    return bare, int(port)


@contextlib.contextmanager
def serve(
    folder: Path,
    address: tuple[str, int],
    node_keys: Sequence[str],
    max_answer_bytes: int,
    fork: Callable[[Link], None] | None = None,
    refused: Callable[[int, str], None] | None = None,
) -> Iterator[FlowerCarrier]:
    """Run a SuperLink until the end of the block, with this process as the run's server.

    Args:
        folder: The server's folder.
        address: Host and port at which the SuperLink listens.
        node_keys: Public keys with which sites may connect.
        max_answer_bytes: Size of the largest answer of a site (`DeployedTerms.largest_answer`).
        fork: Called while the SuperLink starts; a trial starts the processes of its sites in it.
        refused: Called with the place of a key and a sentence where that site's version cannot connect.
    """
    keys.check_server_keys(folder)
    link = Link(folder, *address, folder, max_answer_bytes)
    try:
        link.start()
        if fork is not None:
            fork(link)
        link.wait()
        carrier = FlowerCarrier(link, node_keys, refused)
        try:
            yield carrier
        finally:
            carrier.close()
    finally:
        link.stop()


def _read_public_line(file: Path) -> str:
    try:
        return read_text(file)[:4096].strip()
    except FileNotFoundError as error:
        raise UserError(f"There is no file {file}: the site's owner sends you its NAME.pub.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as a site's public line: ask its owner for NAME.pub again.") from error
