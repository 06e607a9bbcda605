"""Download of known data sets: addresses, checksums, and files that are put in place only when they match."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sordino.data import heart
from sordino.data.formats import read_bytes, read_tar
from sordino.data.images import CIFAR10, CIFAR100, EMNIST
from sordino.data.sources import data_folder, source
from sordino.errors import UserError


@dataclass(frozen=True)
class RemoteFile:
    """One file to download. At least one of `digest` and `inside` is given: nothing unverified is kept."""

    name: str
    """Its name under the base address, and in the data set's folder."""
    digest: str = ""
    """Checksum of the file as downloaded, as "sha256:..." or, where only that is published, "md5:..."."""
    inside: tuple[tuple[str, str], ...] = ()
    """For a .gz: ("", SHA-256 of the decompressed contents). For a .tar.gz: (member, SHA-256) of each."""
    extract: tuple[str, ...] = ()
    """Members of a .zip that are put into the folder instead of the archive."""


@dataclass(frozen=True)
class Remote:
    """Download addresses of one data set."""

    base: str
    """Address that the file names are appended to; it ends in a slash."""
    files: tuple[RemoteFile, ...]


def idx_files(digests: dict[str, str]) -> tuple[RemoteFile, ...]:
    """Compressed idx files, checked by their decompressed contents: mirrors compress differently."""
    return tuple(RemoteFile(f"{name}.gz", inside=(("", digest),)) for name, digest in digests.items())


MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_MNIST = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
CIFAR10_BATCHES = (
    ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)
HEART = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
REMOTES: dict[str, Remote] = {
    # The home of MNIST refuses most downloads; this is the mirror that PyTorch keeps.
    "mnist": Remote("https://ossci-datasets.s3.amazonaws.com/mnist/", idx_files(MNIST)),
    "fashion-mnist": Remote("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", idx_files(FASHION_MNIST)),
    # All splits of EMNIST are in one archive, out of which only one's files are taken.
    **{
        name: Remote(
            "https://biometrics.nist.gov/cs_links/EMNIST/",
            (
                RemoteFile(
                    "gzip.zip",
                    digest="md5:58c8d27c78d21e728a6bc7b3cc06412e",
                    extract=tuple(f"gzip/{file}.gz" for file in split.files),
                ),
            ),
        )
        for name, split in EMNIST.items()
    },
    "cifar10": Remote(
        "https://www.cs.toronto.edu/~kriz/",
        (RemoteFile(CIFAR10.archive, digest="md5:c32a1d4ab5d03f1284b67883e8d87530", inside=CIFAR10_BATCHES),),
    ),
    "cifar100": Remote(
        "https://www.cs.toronto.edu/~kriz/",
        (RemoteFile(CIFAR100.archive, digest="md5:03b5dce01913d631647c71ecec9e9cb8"),),
    ),
    "svhn": Remote(
        "http://ufldl.stanford.edu/housenumbers/",
        (
            RemoteFile("train_32x32.mat", digest="md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            RemoteFile("test_32x32.mat", digest="md5:eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    "heart-disease": Remote(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        tuple(RemoteFile(heart.centre_file(centre), digest=f"sha256:{digest}") for centre, digest in HEART.items()),
    ),
}

BY_HAND = {
    "digits": "it is built in: there is nothing to download",
    "femnist": "LEAF publishes scripts that build it, not files with checksums: follow "
    "https://github.com/TalwalkarLab/leaf/tree/master/data/femnist and put the train and test folders of "
    "JSON files they make into {folder}",
}
"""Data sets that cannot be downloaded, and what to do instead."""


Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes that have arrived, and the bytes expected where the server says."""

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60


def get(name: str, data_dir: Path | None = None, progress: Progress | None = None, base_url: str | None = None) -> Path:
    """Download a known data set into the data folder and return the folder it is now in.

    Files that are already there with the right checksum are left alone.

    Args:
        name: the data set.
        data_dir: folder of data sets; None for the usual one.
        progress: called as bytes arrive; None for silence.
        base_url: address to download from instead of the official one.
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
    """Description of what is wrong with a file's contents; None when every known checksum is right."""
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
    """Extract the wanted members of a verified .zip into the folder, each under its file name without folders."""
    with zipfile.ZipFile(archive) as opened:
        for member in file.extract:
            part = folder / f".part-{Path(member).name}"
            part.write_bytes(opened.read(member))
            part.replace(folder / Path(member).name)
