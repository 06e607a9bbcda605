"""Downloading a known data set from its home. A file is put in place only once its checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from sordino.data.formats import read_bytes, read_tar
from sordino.data.remotes import BY_HAND, REMOTES, RemoteFile
from sordino.data.sources import data_folder, source
from sordino.errors import UserError

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes that have arrived, and the bytes expected where the server says."""

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60


def get(name: str, data_dir: Path | None = None, progress: Progress | None = None, base_url: str | None = None) -> Path:
    """Download a known data set into the data folder and return the folder it is now in.

    Files that are already there with the right checksum are left alone. `base_url` stands in for the address
    of the home.
    """
    source(name)
    folder = data_folder(data_dir) / name
    if name in BY_HAND:
        raise UserError(f"The data set {name!r} cannot be downloaded: {BY_HAND[name].format(folder=folder)}.")
    remote = REMOTES[name]
    base = base_url or remote.base
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in remote.files:
            fetch(file, base if base.endswith("/") else f"{base}/", folder, progress)
    except OSError as error:
        raise UserError(
            f"The folder {folder} cannot be written: {error.strerror or error}; name another with --data-dir."
        ) from error
    return folder


def fetch(file: RemoteFile, base: str, folder: Path, progress: Progress | None) -> None:
    """Bring one file into the folder, unless it is there already."""
    target = folder / file.name
    if file.extract:
        # The archive was verified before anything was taken out of it, so that presence is proof enough.
        if all((folder / Path(member).name).exists() for member in file.extract):
            return
    elif target.exists() and problem(file, target) is None:
        return
    # Beside the target, for a move across file systems would not be atomic; with its suffix, for its readers.
    handle, part_name = tempfile.mkstemp(prefix=".part-", suffix=f"-{file.name}", dir=folder)
    os.close(handle)
    part = Path(part_name)
    try:
        transfer(base + file.name, part, file.name, progress)
        wrong = problem(file, part)
        if wrong is not None:
            raise UserError(
                f"The file {base + file.name} was downloaded but is not the published one: {wrong}. "
                "Nothing was kept; try again, or get it by hand."
            )
        if file.extract:
            take_out(file, part, folder)
        else:
            part.chmod(0o644)
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def transfer(url: str, part: Path, name: str, progress: Progress | None) -> None:
    """Copy what an address serves into a file."""
    request = urllib.request.Request(url, headers={"User-Agent": "sordino"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer, part.open("wb") as stream:
            announced = answer.headers.get("Content-Length")
            expected = int(announced) if announced else None
            arrived = 0
            while chunk := answer.read(CHUNK):
                stream.write(chunk)
                arrived += len(chunk)
                if progress is not None:
                    progress(name, arrived, expected)
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        TimeoutError,
        ConnectionError,
        ValueError,
    ) as error:
        raise UserError(
            f"The file {url} cannot be downloaded: {getattr(error, 'reason', error)}. "
            "Check the network, or get it by hand and point --data-dir at its folder."
        ) from error


def problem(file: RemoteFile, path: Path) -> str | None:
    """What is wrong with a file's contents, or None when every known checksum is right."""
    if file.digest:
        algorithm, expected = file.digest.split(":")
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm).hexdigest()
        if found != expected:
            return f"its {algorithm.upper()} is {found}, not {expected}"
    try:
        members = {name for name, _ in file.inside}
        contents = {"": read_bytes(path)} if members == {""} else read_tar(path, tuple(members)) if members else {}
    except UserError as error:
        return str(error).rstrip(".")
    for name, expected in file.inside:
        found = hashlib.sha256(contents[name]).hexdigest()
        if found != expected:
            return f"the SHA-256 of {name or 'its contents'} is {found}, not {expected}"
    return None


def take_out(file: RemoteFile, archive: Path, folder: Path) -> None:
    """Put the wanted members of a verified .zip into the folder, each under its last name."""
    with zipfile.ZipFile(archive) as opened:
        for member in file.extract:
            part = folder / f".part-{Path(member).name}"
            part.write_bytes(opened.read(member))
            part.replace(folder / Path(member).name)
