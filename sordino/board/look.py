"""View of a store at one moment, as the board shows it, read again only where something changed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.deploy.server.status import FILE as SITES
from sordino.deploy.server.status import read_status
from sordino.errors import UserError
from sordino.store.database import DATABASE, run_folders
from sordino.store.lock import is_held
from sordino.store.store import LOCK, RunRow, Store
from sordino.util.files import read_text

SETTLED = 0.1
"""Age in seconds from which a file's time of change tells later changes apart: clocks of file systems tick slowly."""
MOST_CURVES = 12
"""Most runs under way whose rounds are read."""


@dataclass(frozen=True)
class StoredStudy:
    """A comparison or an audit that lies in the store as a file."""

    file: str
    """Name of the file; of an audit with the folder `audits/` before it."""
    kind: str
    """`comparison` or `audit`."""
    title: str
    sentences: list[str]
    """Verdicts."""
    refuted: bool = False
    """Whether an audit refutes a claim."""


@dataclass(frozen=True)
class StoreLook:
    """A store at one moment."""

    number: int
    """Number of the look; another one where anything has changed."""
    rows: list[RunRow] = field(default_factory=list)
    """Runs, newest first."""
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rounds of the runs under way."""
    deployed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """State of the sites of unfinished deployments."""
    studies: list[StoredStudy] = field(default_factory=list)
    problem: str | None = None
    """Sentence on why the store cannot be read; the rest is then what was read before."""
    read: float = 0.0
    """Time when the store was last read, in seconds since 1970."""

    @property
    def running(self) -> list[RunRow]:
        """Runs under way."""
        return [row for row in self.rows if row.state == "running"]


class StoreWatch:
    """A store that is looked at again and again, by several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._seen: object = None
        self._look = StoreLook(0)
        self._studies: dict[Path, tuple[object, StoredStudy | None]] = {}

    def look(self) -> StoreLook:
        """Read the store, unless nothing of it has changed since the last look. A store that is damaged, busy or gone
        is told in the look's `problem`."""
        with self._lock:
            seen = self._signature()
            if seen is None or seen != self._seen or self._look.problem is not None:
                self._look, self._seen = self._read(), seen
            return self._look

    def _signature(self) -> object:
        """Value that changes with the store; None where it may change without showing it."""
        stamps = [_stamp(self.folder / DATABASE), *(_stamp(path) for path in self._files())]
        if any(stamp is None or time.time() - stamp[0] / 1e9 < SETTLED for stamp in stamps):
            return None
        runs = self.folder / "runs"
        held = [
            (row.run, is_held(runs / row.run / LOCK), _stamp(runs / row.run / SITES))
            for row in self._look.rows
            if row.summary is None
        ]
        return stamps, held

    def _files(self) -> list[Path]:
        return sorted(path for pattern in ("*.json", "audits/*.json") for path in self.folder.glob(pattern))

    def _read(self) -> StoreLook:
        before, now = self._look, time.time()
        try:
            there = (self.folder / DATABASE).exists() or self.folder.is_file() or bool(run_folders(self.folder))
            rows, curves = self._runs() if there else ([], {})
        except UserError as error:
            kept = {key: getattr(before, key) for key in ("rows", "curves", "deployed", "studies", "read")}
            return StoreLook(before.number + 1, **kept, problem=str(error))
        unfinished = [row for row in rows if row.summary is None]
        found = {row.run: read_status(self.folder / "runs" / row.run) for row in unfinished}
        deployed = {run: status for run, status in found.items() if status is not None}
        studies = [study for path in self._files() if (study := self._study(path)) is not None]
        return StoreLook(before.number + 1, rows, curves, deployed, studies, None, now)

    def _runs(self) -> tuple[list[RunRow], dict[str, list[dict[str, Any]]]]:
        with contextlib.closing(Store(self.folder, must_exist=True, watched=True)) as store:
            rows, curves = store.all(), {}
            for row in [row for row in rows if row.state == "running"][:MOST_CURVES]:
                with contextlib.suppress(UserError):  # it was removed meanwhile, or whoever takes it up is told
                    curves[row.run] = store.curve(row.run)
        return rows, curves

    def _study(self, path: Path) -> StoredStudy | None:
        """Read a file, unless it is as it was when it was last read; None where it holds something else."""
        stamp = _stamp(path)
        known = self._studies.get(path)
        if known is None or known[0] != stamp:
            known = self._studies[path] = (stamp, _read_study(path))
        return known[1]


def _read_study(path: Path) -> StoredStudy | None:
    try:
        found = json.loads(read_text(path))
        if path.parent.name == "audits":
            views = found["views"]
            refuted = [name for name, view in views.items() if view["refuted"]]
            told = f"Refuted for: {', '.join(refuted)}." if refuted else "No attack refutes a claim."
            title = f"Audit of {found.get('called', found['method'])}"
            return StoredStudy(f"audits/{path.name}", "audit", title, [told], bool(refuted))
        methods = list(dict.fromkeys(str(row["method"]) for row in found["rows"] if row["runs"]))
        verdict = [str(one) for one in found.get("verdict", [])]
        return StoredStudy(path.name, "comparison", f"Comparison of {', '.join(methods)}", verdict) if methods else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Time of change, size and number of a file; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
