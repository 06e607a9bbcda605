"""The known data sets, with the folders they are looked for in and their readers."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sordino.data import femnist, heart, images
from sordino.data.dataset import Dataset
from sordino.data.federate import fingerprint
from sordino.data.formats import quote
from sordino.data.own import Reading, read_own
from sordino.errors import UserError, quoted, unknown

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package dataset-fashion-mnist."""


def nothing_missing(folder: Path) -> list[str]:
    """Missing files of a data set that needs none."""
    return []


def idx_missing(names: tuple[str, ...], folder: Path) -> list[str]:
    """The idx files that are there neither compressed nor uncompressed."""
    return [name for name in names if not images.gz_or_not(folder, name).exists()]


def files_missing(names: tuple[str, ...], folder: Path) -> list[str]:
    """The files that are not in the folder."""
    return [name for name in names if not (folder / name).exists()]


def cifar_missing(layout: images.CifarLayout, folder: Path) -> list[str]:
    """The batches that are not there, unless the published archive is."""
    if (folder / layout.archive).exists():
        return []
    return files_missing(layout.batches, images.batch_folder(folder, layout))


def femnist_missing(folder: Path) -> list[str]:
    """The files of FEMNIST that are missing, where neither of its two layouts is whole."""
    splits = {in_test for _, in_test in femnist.leaf_files(folder)}
    if (folder / femnist.ARCHIVE).exists() or len(splits) == 2:
        return []
    return [f"{femnist.ARCHIVE}, or LEAF's train/*.json and test/*.json"]


@dataclass(frozen=True)
class DataSource:
    """One known data set."""

    title: str
    records: int
    classes: int
    shape: tuple[int, ...]
    home: str
    """Address of the official home."""
    licence: str
    missing: Callable[[Path], list[str]]
    """Names of the files that a folder lacks; empty when the data set is there."""
    read: Callable[[Path], Dataset]
    system: tuple[Path, ...] = ()
    """Folders of system packages that may hold it."""
    among: tuple[str, ...] = ()
    """Other data sets whose folders may hold its files too, as the one archive of all splits of EMNIST does."""


MNIST_FILES = (*images.idx_names("", "train"), *images.idx_names("", "t10k"))

SOURCES: dict[str, DataSource] = {
    "digits": DataSource(
        title="Handwritten digits 8x8 (inside scikit-learn)",
        records=1797,
        classes=10,
        shape=(1, 8, 8),
        home="https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0 (UCI, Alpaydin and Kaynak)",
        missing=nothing_missing,
        read=lambda folder: images.read_digits(),
    ),
    "mnist": DataSource(
        title="MNIST handwritten digits",
        records=70_000,
        classes=10,
        shape=(1, 28, 28),
        home="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0 (LeCun, Cortes, Burges)",
        missing=partial(idx_missing, MNIST_FILES),
        read=images.read_mnist,
    ),
    "fashion-mnist": DataSource(
        title="Fashion-MNIST clothing",
        records=70_000,
        classes=10,
        shape=(1, 28, 28),
        home="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT (Zalando)",
        missing=partial(idx_missing, MNIST_FILES),
        read=images.read_fashion_mnist,
        system=(DEBIAN_FASHION_MNIST,),
    ),
    **{
        name: DataSource(
            title=f"EMNIST letters and digits, {split.split}",
            records=split.records,
            classes=split.classes,
            shape=(1, 28, 28),
            home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
            licence="public domain (NIST)",
            missing=partial(idx_missing, split.files),
            read=partial(images.read_emnist, name=name),
            among=("emnist",),
        )
        for name, split in images.EMNIST.items()
    },
    "cifar10": DataSource(
        title="CIFAR-10 photographs",
        records=60_000,
        classes=10,
        shape=(3, 32, 32),
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated (Krizhevsky 2009)",
        missing=partial(cifar_missing, images.CIFAR10),
        read=partial(images.read_cifar_folder, layout=images.CIFAR10),
    ),
    "cifar100": DataSource(
        title="CIFAR-100 photographs, fine labels",
        records=60_000,
        classes=100,
        shape=(3, 32, 32),
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated (Krizhevsky 2009)",
        missing=partial(cifar_missing, images.CIFAR100),
        read=partial(images.read_cifar_folder, layout=images.CIFAR100),
    ),
    "svhn": DataSource(
        title="Street View house numbers, cropped",
        records=99_289,
        classes=10,
        shape=(3, 32, 32),
        home="http://ufldl.stanford.edu/housenumbers/",
        licence="non-commercial use (Netzer et al. 2011)",
        missing=partial(files_missing, ("train_32x32.mat", "test_32x32.mat")),
        read=images.read_svhn,
    ),
    "femnist": DataSource(
        title="FEMNIST characters by writer (LEAF)",
        records=805_263,
        classes=femnist.CLASSES,
        shape=(1, 28, 28),
        home="https://github.com/TalwalkarLab/leaf",
        licence="public domain images (NIST), split by LEAF",
        missing=femnist_missing,
        read=femnist.read_femnist,
    ),
    "heart-disease": DataSource(
        title="Heart disease in four hospitals (as in FLamby)",
        records=740,
        classes=2,
        shape=(13,),
        home="https://archive.ics.uci.edu/dataset/45",
        licence="CC BY 4.0 (UCI, Janosi et al. 1988)",
        missing=partial(files_missing, tuple(heart.centre_file(centre) for centre in heart.CENTRES)),
        read=heart.read_heart_disease,
    ),
}


@dataclass(frozen=True)
class CatalogueEntry:
    """One line of the catalogue."""

    name: str
    title: str
    records: int
    """Records of the published data set; the copy that is there may be a part of it."""
    classes: int
    shape: tuple[int, ...]
    present: bool
    found_at: Path | None
    """The folder it was found in; None when it is absent or built in."""
    looked_in: list[Path]
    home: str
    licence: str


def at_home(folder: str | Path) -> Path:
    """A folder as the user wrote it, with ~ replaced where that user exists."""
    return Path(os.path.expanduser(folder))


def data_folder(data_dir: Path | None) -> Path:
    """The folder of data sets: the one given, else $SORDINO_DATA, else ~/.cache/sordino."""
    if data_dir is not None:
        return at_home(data_dir)
    named = os.environ.get("SORDINO_DATA")
    if named:
        return at_home(named)
    try:
        return Path.home() / ".cache" / "sordino"
    except RuntimeError as error:
        raise UserError("There is no home folder: name one for data sets with --data-dir or $SORDINO_DATA.") from error


def source(name: str) -> DataSource:
    """The known data set of that name."""
    if name not in SOURCES:
        folders = [path.name for path in Path().iterdir() if path.is_dir()]
        near = difflib.get_close_matches(name, folders, n=1, cutoff=0.7)
        if near and not difflib.get_close_matches(name.lower(), SOURCES, n=1, cutoff=0.7):
            raise UserError(f"There is no data set or folder {quoted(name)}; did you mean the folder {near[0]!r}?")
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]


def places(name: str, data_dir: Path | None) -> list[Path]:
    """The folders a data set is looked for in, in order; none for one that is built in."""
    known = source(name)
    if known.missing is nothing_missing:
        return []
    folders = dict.fromkeys((name, *known.among))
    return [*(data_folder(data_dir) / folder for folder in folders), *known.system]


def missing_files(known: DataSource, folder: Path) -> list[str]:
    """Names of the files that a folder lacks; a folder that the system does not let us look into is refused."""
    try:
        return known.missing(folder)
    except OSError as error:
        raise UserError(f"The folder {quote(folder)} cannot be looked into: {error.strerror}.") from error


def catalogue(data_dir: Path | None = None) -> list[CatalogueEntry]:
    """Every known data set, and whether it is here."""
    entries = []
    for name, known in SOURCES.items():
        looked_in = places(name, data_dir)
        found_at = next((folder for folder in looked_in if not missing_files(known, folder)), None)
        entries.append(
            CatalogueEntry(
                name=name,
                title=known.title,
                records=known.records,
                classes=known.classes,
                shape=known.shape,
                present=found_at is not None or not looked_in,
                found_at=found_at,
                looked_in=looked_in,
                home=known.home,
                licence=known.licence,
            )
        )
    return entries


def load(data: str, data_dir: Path | None = None, how: Reading | None = None, **keys: Any) -> Dataset:
    """Load the data set of a known name, or the records of a folder with one file per client.

    Args:
        data: name of a known data set, or the folder.
        data_dir: folder in which known data sets are looked for; None for the usual one.
        how: options for a folder of the user's own files only.
        keys: fields of `Reading`, instead of `how`.
    """
    found = _read(data, data_dir, how or Reading(**keys))
    return found if found.people else replace(found, people=fingerprint([], [found.x]))


def _read(data: str, data_dir: Path | None, how: Reading) -> Dataset:
    if data not in SOURCES and (os.sep in data or "/" in data or os.path.isdir(at_home(data))):
        return read_own(at_home(data), how)
    known = source(data)
    given = how.given()
    if given:
        raise UserError(
            f"{given[0]!r} was given for the known data set {data!r}, which has its own; "
            "leave it out, or name a folder of your own files."
        )
    looked_in = places(data, data_dir)
    for folder in looked_in:
        if not missing_files(known, folder):
            return known.read(folder)
    if not looked_in:
        return known.read(Path())
    raise UserError(
        f"The data set {data!r} is not here: looked in {' and '.join(str(folder) for folder in looked_in)} "
        f"(missing: {', '.join(missing_files(known, looked_in[0]))}); download it with `sordino data get {data}`, "
        "or point --data-dir at the folder that holds it."
    )
