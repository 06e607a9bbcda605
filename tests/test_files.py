"""Files of the user: whole or not there, and what is no file of ours stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import command, refused

from sordino.cli.audit import _stored
from sordino.errors import UserError, check_writable
from sordino.files import replace_file, write_whole


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


def test_a_file_whose_bytes_have_changed_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "new.tmp").write_bytes(b"content")
    kept = replace_file(tmp_path / "new.tmp", tmp_path / "kept")
    assert kept.check(tmp_path, "The file") == tmp_path / "kept"
    (tmp_path / "kept").write_bytes(b"contend")
    with pytest.raises(UserError, match="is damaged, its bytes are not those that were written"):
        kept.check(tmp_path, "The file")
