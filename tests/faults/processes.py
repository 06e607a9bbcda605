"""Copies of this process that run a command, watched and killed from outside.

Importing torch takes seconds, and a trial needs several processes: so everything is imported once, and each command
runs in a copy. This process computes nothing itself. A copy of a process that has computed would have fewer choices
than a fresh one: some settings are read at the first matrix product.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

LIMIT = 300.0
"""Seconds after which a command counts as hanging. Each takes about one; machines may be busy."""
HUNG = "hung"
EARLY = 143
"""The exit code of a command that was interrupted before it had begun."""


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int | str
    """The exit code, negative after a signal, or `HUNG`."""
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The last line of standard output, read as JSON."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def refused(self) -> bool:
        """Whether the command ended as it should on bad input: exit code 2, a sentence or one for each problem."""
        first, *problems = self.err.splitlines() or [""]
        listed = all(line.startswith("- ") for line in problems)
        return self.code == 2 and first.startswith("Error: ") and listed and not self.out

    @property
    def traceback(self) -> bool:
        """Whether the user was shown the program's insides."""
        return any(sign in self.out + self.err for sign in ("Traceback (most recent call last)", "Exception ignored"))

    def __str__(self) -> str:
        lines = self.err.strip().splitlines() or self.out.strip().splitlines() or ["nothing was printed"]
        before = f", {len(lines)} lines that end with" if len(lines) > 1 else ""
        return f"exit {self.code}{before}: {lines[-1][:300]}"


class Copy:
    """An action in a copy of this process, the first of a session of its own."""

    def __init__(self, action: Callable[[], object]) -> None:
        """`action` may return the exit code."""
        self._out, self._err = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        self.started = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ctrl-C concerns the command, not how it is started
        self.process = os.fork()
        if self.process == 0:
            _live(action, self._out.fileno(), self._err.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        self._outcome: Outcome | None = None
        self._family: set[int] = set()

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind."""
        self.others()
        for process in (self.process, *self._family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.outcome()
        self._out.close()
        self._err.close()

    def alive(self) -> bool:
        """Whether the first process is still there."""
        if self._outcome is None:
            found, status = os.waitpid(self.process, os.WNOHANG)
            if found:
                self._end(os.waitstatus_to_exitcode(status))
        return self._outcome is None

    def others(self) -> list[int]:
        """The living processes that descend from the first one, without it."""
        living = processes()
        known = self._family | {self.process}
        grown = True
        while grown:
            more = {n for n, (parent, session) in living.items() if parent in known or session == self.process} - known
            known |= more
            grown = bool(more)
        self._family = known - {self.process}
        return sorted(self._family & living.keys())

    def kill(self, how: signal.Signals, everybody: bool = False) -> None:
        """Send a signal to the first process, or to its whole session."""
        who = [self.process, *self.others()] if everybody else [self.process]
        for process in who:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, how)

    def outcome(self, limit: float = LIMIT) -> Outcome:
        """Wait for the end of the first process; at the time limit it is killed."""
        end = time.monotonic() + limit
        while self.alive():
            if time.monotonic() > end:
                self.kill(signal.SIGKILL, everybody=True)
                os.waitpid(self.process, 0)
                self._end(HUNG)
            time.sleep(0.002)
        assert self._outcome is not None
        return self._outcome

    def left(self, limit: float = 15.0) -> list[int]:
        """The processes that still live so long after the first one has ended."""
        end = time.monotonic() + limit
        while self.others() and time.monotonic() < end:
            time.sleep(0.01)
        return self.others()

    def _end(self, code: int | str) -> None:
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
        self._outcome = Outcome(code, *texts)


def _live(action: Callable[[], object], out: int, err: int) -> None:
    """What the copy does until its end."""
    code: object = 1
    try:
        os.setsid()
        for number, stream in ((out, 1), (err, 2)):
            os.dup2(number, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        code = action() or 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


def processes() -> dict[int, tuple[int, int]]:
    """The living processes of this machine: parent and session of each."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            how, parent, _, session, *_ = [*_status(int(entry)), "X", "0", "0", "0"]
            if how not in "ZX":
                found[int(entry)] = int(parent), int(session)
    return found


def state(process: int) -> str:
    """What a process is doing, as the kernel's letter: T when it is stopped, X when there is none."""
    return [*_status(process), "X"][0]


def _status(process: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()
    return []


def sordino(*arguments: object, first: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """The action `sordino ARGUMENTS...`; `first` is done before it in the same process."""

    def action() -> None:
        from sordino.cli import main
        from sordino.experiment import run

        run.new_nonce = lambda: bytes(16)  # else no two runs of own code could be compared
        sys.argv = ["sordino", *(str(argument) for argument in arguments)]
        first()
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        except KeyboardInterrupt:
            sys.exit(EARLY)
        main()

    return action


def command(*arguments: object, first: Callable[[], object] = lambda: None, limit: float = LIMIT) -> Outcome:
    """What comes of `sordino ARGUMENTS...`."""
    with Copy(sordino(*arguments, first=first)) as copy:
        return copy.outcome(limit)


def options(keys: dict[str, Any]) -> list[str]:
    """An experiment's keys as options of `sordino run`; hyper-parameters stand under their dotted names."""
    return [f"--set={key}={json.dumps(value)}" for key, value in keys.items()]


def warm_up(scratch: Path) -> None:
    """Import here whatever a run imports, so that the copies need not."""
    import torch

    torch.set_num_threads(1)  # a copy has none of torch's threads, and would wait for them forever
    names = scratch / "modules"

    def visit() -> None:
        for arguments in VISITS:
            sys.argv = ["sordino", *arguments, f"--store={scratch / 'warm'}"]
            with contextlib.suppress(SystemExit):
                from sordino.cli import main

                main()
        names.write_text("\n".join(sys.modules))

    with Copy(visit) as copy:
        copy.outcome()
    for name in ("pyarrow.parquet", *names.read_text().split()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    entry_points()  # reads what is installed, once


SMALL = {"model": "logistic", "epochs": 1, "records": 60, "noise_multiplier": 2.0, "compiled": "never"}
VISITS = [
    ["run", "--json", "--clients=2", "--rounds=1", "--workers=2", *options(SMALL)],
    ["run", "--json", "--clients=2", "--rounds=1", "--partition=iid", "--method=adadp-cfl", *options(SMALL)],
]
"""Commands that between them import what all others need."""


WATCHED = frozenset(
    [
        *("open", "write", "pwrite", "pwritev", "fsync", "fdatasync", "rename", "replace", "unlink", "remove"),
        *("truncate", "ftruncate", "mkdir", "flock", "serialize_file", "close"),
    ]
)
"""Functions of the operating system and of libraries that change files, by which moments are counted: from the first
look into a database on, because what a process opens before is its own code."""
MEMORY = frozenset(["pwrite", "pwritev"])
"""With which clients' memory is written."""
ROOM = frozenset(["write", "pwrite", "pwritev", "fsync", "rename", "replace", "mkdir", "serialize_file"])
"""Watched functions that a full disk refuses."""
LOCKING = frozenset(["__enter__", "__exit__", "acquire", "release"])


def count_into(note: Path) -> Callable[[], None]:
    """Make a preparation for a copy, which then writes into `note` at its end how many watched calls it has made, and
    how many until it last wrote to clients' memory."""
    return lambda: _hook(None, None, note)


def die_at(call: int, how: signal.Signals, whole: bool = False, worker: bool = False) -> Callable[[], None]:
    """What a copy must do first to be killed at the given watched call: odd ones before it, even ones after.

    With `whole` its session dies with it. With `worker` the calls of its worker processes count, not its own.
    """
    return lambda: _hook(call, lambda: _die(how, whole), worker=worker)


def full_at(call: int) -> Callable[[], None]:
    """Make a preparation for a copy, in which the first call that needs room, from the given watched call on, finds
    none."""
    return lambda: _hook(call, _no_room, only=ROOM)


def _no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _die(how: signal.Signals, whole: bool) -> None:
    if whole:
        os.killpg(0, how)
    os.kill(os.getpid(), how)


def _hook(
    call: int | None,
    action: Callable[[], None] | None,
    note: Path | None = None,
    worker: bool = False,
    only: frozenset[str] = frozenset(),
) -> None:
    """Count watched calls of this process from now on, and act at one of them, or at the first of the functions `only`
    that begins there or later."""
    main, seen, trained, begun = os.getpid(), 0, 0, False

    def profile(_: Any, event: str, function: Any) -> None:
        nonlocal seen
        nonlocal trained
        nonlocal begun
        nonlocal call
        if not event.startswith("c_") or not _is_watched(function, worker) or (os.getpid() != main) != worker:
            return
        begun = begun or worker or _is_of_a_database(function)
        seen += begun
        name = getattr(function, "__name__", "")
        trained = seen if name in MEMORY else trained
        wanted = seen == call if not only else call is not None and seen >= call and event == "c_call" and name in only
        if wanted and action is not None:
            call = None
            action()

    if note is not None:
        atexit.register(lambda: os.getpid() == main and note.write_text(f"{seen} {trained}"))
    sys.setprofile(profile)


def _is_watched(function: Any, worker: bool) -> bool:
    name = getattr(function, "__name__", "")
    if isinstance(getattr(function, "__self__", None), io.BytesIO | io.StringIO):
        return False  # it writes to memory, which no disk refuses
    owner = type(getattr(function, "__self__", None)).__module__
    locking = worker and name in LOCKING and owner == "_multiprocessing"
    return name in WATCHED or locking or _is_of_a_database(function)


def _is_of_a_database(function: Any) -> bool:
    where = (type(getattr(function, "__self__", None)).__module__, getattr(function, "__module__", ""))
    return any(str(module).removeprefix("_") == "sqlite3" for module in where)
