from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from data_makers import cifar_batch, idx_bytes

from sordino.data import get, load
from sordino.data.download import REMOTES, Remote, RemoteFile
from sordino.data.sources import SOURCES
from sordino.errors import UserError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The folder a local server serves, and the server's address."""
    folder = tmp_path / "home"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def served_mnist(home: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    folder, address = home
    files = []
    for split, count in (("train", 4), ("t10k", 2)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            contents = idx_bytes(np.ones(shape))
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(gzip.compress(contents))
            files.append(RemoteFile(f"{split}-{kind}-ubyte.gz", inside=(("", sha256(contents)),)))
    monkeypatch.setitem(REMOTES, "mnist", Remote("http://example.invalid/", tuple(files)))
    return folder, address


def test_a_download_is_verified_put_in_place_and_reported(served_mnist: tuple[Path, str], tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    folder = get("mnist", tmp_path / "data", lambda *step: seen.append(step), base_url=served_mnist[1])
    assert folder == tmp_path / "data" / "mnist"
    assert left_over(folder) == left_over(served_mnist[0])
    assert len(load("mnist", tmp_path / "data").y) == 6
    size = (folder / "train-images-idx3-ubyte.gz").stat().st_size
    assert seen[0] == ("train-images-idx3-ubyte.gz", size, size)


def test_what_is_there_and_right_is_left_alone_what_is_wrong_is_replaced(
    served_mnist: tuple[Path, str], tmp_path: Path
) -> None:
    folder = get("mnist", tmp_path, base_url=served_mnist[1])
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    seen: list[str] = []
    get("mnist", tmp_path, lambda name, arrived, expected: seen.append(name), base_url=served_mnist[1])
    assert seen == ["t10k-labels-idx1-ubyte.gz"]
    assert len(load("mnist", tmp_path).y) == 6


@pytest.mark.parametrize("contents", [gzip.compress(b"another", mtime=0), b"<html>Moved</html>"])
def test_a_wrong_checksum_keeps_nothing(served_mnist: tuple[Path, str], tmp_path: Path, contents: bytes) -> None:
    (served_mnist[0] / "train-images-idx3-ubyte.gz").write_bytes(contents)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz was downloaded but is not the published one"):
        get("mnist", tmp_path / "data", base_url=served_mnist[1])
    assert left_over(tmp_path / "data") == []


def test_the_real_checksums_are_used(home: tuple[Path, str], tmp_path: Path) -> None:
    (home[0] / "processed.cleveland.data").write_text("1,2,3")
    with pytest.raises(UserError, match=r"its SHA256 is .*, not a74b7efa"):
        get("heart-disease", tmp_path, base_url=home[1])


def test_no_network_and_no_file_are_one_sentence(home: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"/processed.cleveland.data cannot be downloaded: .*File not found"):
        get("heart-disease", tmp_path / "data", base_url=home[1])
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/gzip.zip cannot be downloaded: .*[Rr]efused"):
        get("emnist", tmp_path / "data", base_url="http://127.0.0.1:9/")
    assert left_over(tmp_path / "data") == []


def test_a_tar_is_checked_inside(home: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = {"train.bin": cifar_batch([(1, 2)]), "test.bin": cifar_batch([(3, 4)])}
    with tarfile.open(home[0] / "cifar-100-binary.tar.gz", "w:gz") as archive:
        for name, contents in batches.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    good = tuple((name, sha256(contents)) for name, contents in batches.items())
    for inside in (good, (good[0], ("test.bin", "0" * 64))):
        file = RemoteFile("cifar-100-binary.tar.gz", inside=inside)
        monkeypatch.setitem(REMOTES, "cifar100", Remote("http://example.invalid/", (file,)))
        if inside is good:
            get("cifar100", tmp_path / "good", base_url=home[1])
            assert load("cifar100", tmp_path / "good").y.tolist() == [2, 4]
        else:
            with pytest.raises(UserError, match=r"the SHA-256 of test.bin is .*, not 0000"):
                get("cifar100", tmp_path / "bad", base_url=home[1])


def test_members_of_a_zip_are_taken_out(
    home: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = REMOTES["emnist"].files[0].extract
    with zipfile.ZipFile(home[0] / "gzip.zip", "w") as archive:
        archive.writestr("gzip/emnist-letters-mapping.txt", "other")
        for name in members:
            shape = (3, 28, 28) if "images" in name else (3,)
            archive.writestr(name, gzip.compress(idx_bytes(np.ones(shape))))
    digest = hashlib.md5((home[0] / "gzip.zip").read_bytes()).hexdigest()
    file = RemoteFile("gzip.zip", digest=f"md5:{digest}", extract=members)
    monkeypatch.setitem(REMOTES, "emnist", Remote("http://example.invalid/", (file,)))
    folder = get("emnist", tmp_path / "data", base_url=home[1])
    assert left_over(folder) == sorted(name.removeprefix("gzip/") for name in members)
    assert len(load("emnist", tmp_path / "data").y) == 6
    (home[0] / "gzip.zip").unlink()
    assert get("emnist", tmp_path / "data", base_url=home[1]) == folder


def test_what_cannot_be_downloaded_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'digits' cannot be downloaded: it is built in"):
        get("digits", tmp_path)
    with pytest.raises(UserError, match=rf"TalwalkarLab/leaf.* into {tmp_path / 'femnist'}"):
        get("femnist", tmp_path)
    with pytest.raises(UserError, match="There is no data set 'cifar'; did you mean"):
        get("cifar", tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot be written: Not a directory; name another with --data-dir"):
        get("mnist", tmp_path / "file")


def test_every_known_data_set_is_downloaded_with_a_checksum_or_explained() -> None:
    from sordino.data.download import BY_HAND

    assert set(REMOTES) | set(BY_HAND) == set(SOURCES)
    for remote in REMOTES.values():
        assert remote.base.endswith("/")
        assert all(file.digest or file.inside for file in remote.files)
