"""Files of the user: whole or not there, and what is no file of ours stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import command, process, refused

from sordino import files
from sordino.cli.audit import _stored
from sordino.errors import check_writable
from sordino.files import rotate, write_whole


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
    first, second = _stored(document, None, tmp_path), _stored(document, None, tmp_path)
    first.unlink()
    assert _stored(document | {"later": True}, None, tmp_path) == first
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
        "import sys, time; from pathlib import Path; from sordino import files; files.LOG_BYTES = 1000\n"
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
