"""Files of the user: whole or not there, and what is no file of ours stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from helpers import command, process, refused

from sordino.cli.audit import _store_document
from sordino.data import formats
from sordino.errors import UserError, check_writable
from sordino.util import files
from sordino.util.files import LARGEST_TEXT, check_file, keep_file, read_file, rotate, write_whole


def test_a_text_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.md"
    write_whole(path, "old")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_name_is_on_disk_before_a_text_counts_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, str]] = []
    monkeypatch.setattr(files, "sync_folder", lambda folder: synced.append((folder, path.read_text())))
    path = tmp_path / "a.md"
    write_whole(path, "text")
    assert synced == [(tmp_path, "text")]


def test_a_kept_file_takes_no_other_ones_place(tmp_path: Path) -> None:
    """Whatever a database refers to is there with its bytes until the database refers to another."""
    kept = []
    for number in range(3):
        (tmp_path / "round.tmp").write_text(str(number))
        kept.append(keep_file(tmp_path / "round.tmp", tmp_path / "round.safetensors"))
    assert [one.name for one in kept] == ["round.safetensors", "round-2.safetensors", "round-3.safetensors"]
    assert [one.check(tmp_path, "The file").read_text() for one in kept] == ["0", "1", "2"]


def test_links_stay_links_and_pipes_stay_pipes(tmp_path: Path) -> None:
    link, target, pipe = tmp_path / "link", tmp_path / "target", tmp_path / "pipe"
    link.symlink_to(target)
    check_writable(link)
    assert link.is_symlink()
    assert not target.exists()
    write_whole(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert pipe.is_fifo()


def test_an_audit_takes_no_other_ones_place(tmp_path: Path) -> None:
    document = {"method": "feddpa", "variant": "sound"}
    first, second = _store_document(document, None, tmp_path), _store_document(document, None, tmp_path)
    first.unlink()
    assert _store_document(document | {"later": True}, None, tmp_path) == first
    assert "later" not in second.read_text()


def test_answers_in_a_schema_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.csv").write_text("x,label\n1,0\n2,1\n")
    given = ("data", "schema", tmp_path / "own", "-o", tmp_path / "schema.toml")
    assert command(*given).code == 0
    assert command(*given).code == 0  # the same draft again
    answered = (tmp_path / "schema.toml").read_text().replace("public = false", "public = true")
    (tmp_path / "schema.toml").write_text(answered)
    assert "may hold your answers" in refused(*given)
    assert (tmp_path / "schema.toml").read_text() == answered


def test_predictions_do_not_take_the_records_place(tmp_path: Path) -> None:
    records = tmp_path / "new.csv"
    records.write_text("x\n1\n")
    assert "take the place of the records" in refused("predict", "x", records, "-o", records, "--store", tmp_path)
    assert records.read_text() == "x\n1\n"


NAMED: list[tuple[object, ...]] = [
    ("curve", "show", "{}"),
    ("run", "{}"),
    ("compare", "{}"),
    ("plan", "{}"),
    ("serve", "{}"),
    ("run", "--data", "own", "--schema", "{}"),
    ("run", "--method", "pac-dp", "--set", 'curve="{}"'),
]


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
def test_what_is_no_file_or_never_ends_is_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices and pipes are not even opened, folders are not taken for files, and a long file is not read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.csv").write_text("x,label\n1,0\n2,1\n")
    os.mkfifo("pipe")
    with open("long", "wb") as long:
        long.truncate(LARGEST_TEXT + 1)
    kinds = {"/dev/zero": "a device or a pipe", "pipe": "a device or a pipe", "own": "a folder", "long": "more than"}
    for name, what in kinds.items():
        assert what in refused(*(word.replace("{}", name) for word in words))


def test_a_file_that_hides_its_length_is_read_up_to_the_limit() -> None:
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_file(Path("/proc/self/maps"), 3)


def test_arrays_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    np.savez_compressed(tmp_path / "own" / "a.npz", x=np.zeros((100, 100), np.float32), y=np.arange(100) % 2)
    monkeypatch.setattr(formats, "MAX_FILE_BYTES", 10_000)
    with pytest.raises(UserError, match="unpacks to more than 10,000 bytes"):
        formats.read_npz(tmp_path / "own" / "a.npz")


def test_a_file_whose_bytes_have_changed_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "new.tmp").write_bytes(b"content")
    kept = keep_file(tmp_path / "new.tmp", tmp_path / "kept")
    assert kept.check(tmp_path, "The file") == tmp_path / "kept"
    (tmp_path / "kept").write_bytes(b"contend")
    with pytest.raises(UserError, match="is damaged, its bytes are not those that were written"):
        kept.check(tmp_path, "The file")


def test_a_long_log_is_put_aside_and_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOG_BYTES", 10)
    log = tmp_path / "link.log"
    assert not rotate(log)
    for number in range(6):
        log.write_text(f"{number} is quite long")
        assert rotate(log)
        assert not log.exists()
    log.write_text("short")
    assert not rotate(log)
    kept = {path.name: path.read_text()[0] for path in tmp_path.iterdir()}
    assert kept == {"link.log": "s", "link.log.1": "5", "link.log.2": "4", "link.log.3": "3"}


def test_the_output_of_a_process_goes_on_in_a_new_log(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from sordino.util import files; files.LOG_BYTES = 1000\n"
        "log = Path(sys.argv[1]); files.write_output_to(log); files.keep_rotating(log, 0.01)\n"
        "print('x' * 2000, flush=True)\n"
        "until = time.monotonic() + 60\n"
        "while not log.with_name('a.log.1').exists() or not log.exists():\n"
        "    assert time.monotonic() < until; time.sleep(0.01)\n"
        "time.sleep(0.1); print('after', flush=True)\n"
    )
    assert process(script, tmp_path / "a.log").code == 0
    assert (tmp_path / "a.log").read_text() == "after\n"
    assert (tmp_path / "a.log.1").read_text() == "x" * 2000 + "\n"


def test_the_length_of_a_file_is_looked_at_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"12345")
    check_file(path, 5)
    with pytest.raises(OSError, match="more than 4 bytes"):
        check_file(path, 4)
