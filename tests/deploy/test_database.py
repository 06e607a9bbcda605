"""Ledgers and journals that SQLite cannot read or write: one sentence with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from sordino.deploy import database
from sordino.deploy.database import CheckedDatabase, CheckedTable, DatabaseError

NOTES = CheckedTable("notes", {"place": "integer", "content": "blob"}, ["place"])


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(DatabaseError) as refusal:
        CheckedDatabase(path).select(NOTES)
    assert str(refusal.value) == f"{path} is damaged (file is not a database): put the newest folder back."


def test_a_full_disk_is_told_with_what_to_free(tmp_path: Path) -> None:
    with CheckedDatabase(tmp_path / "site.db") as full:
        full.execute(NOTES.creation_sql())
        full.execute("pragma max_page_count = 4")
        with pytest.raises(DatabaseError) as refusal, full.transaction():
            full.upsert(NOTES, place=1, content=bytes(100_000))
    assert str(refusal.value).startswith(f"{full.path} cannot be written (database or disk is full): free disk space, ")


def test_a_folder_that_is_gone_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"cannot be written \(unable to open database file\)"):
        CheckedDatabase(tmp_path / "gone" / "site.db")


def test_another_process_that_writes_is_named_as_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT_SECONDS", 0.1)
    with CheckedDatabase(tmp_path / "site.db") as one, CheckedDatabase(tmp_path / "site.db") as other:
        with one.transaction(), pytest.raises(DatabaseError) as refusal, other.transaction():
            pass
        assert str(refusal.value).startswith(f"{other.path} is busy: another process has been writing to it for 0.1 ")
        with other.transaction():  # free again
            pass
