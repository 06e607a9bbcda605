"""Try mutants: run tests on copies of the project with one text replaced, and remember which test noticed.

Copies are trees of hard links, tests run in forks of a process that has imported the heavy libraries once. Which test
caught a mutant is remembered in a file of killers: it is tried first the next time, alone, and only where it passes do
the other tests follow, so that a verdict does not depend on what was remembered. A test that fails on the project as it
is catches nothing. Verdicts are kept beside a digest of the sources, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NOT_COPIED = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "made")
"""Files that no test needs, at any depth."""
OF_THE_RUNNER = {"mutants.py", "mutating.py", "test_mutants.py", "killers.json"}
"""Files of tests/ that decide no test's outcome: a changed one invalidates no verdict."""
SECONDS_FOR_A_TEST = 120
SECONDS_FOR_A_GROUP = 3600
"""Time after which a process of tests that hangs where no signal reaches it is killed."""
MAX_TIMEOUTS = 3
"""Tests of one group that may time out before its others are left out."""

CAUGHT, SURVIVED, TIMED_OUT, DIED = "caught", "SURVIVED", "TIMED OUT", "DIED"
"""Verdicts: a test failed; none did; none did, but some hung, or ended the process that ran them."""


@dataclass(frozen=True)
class Mutant:
    """One replacement, and the tests that should notice it."""

    name: str
    file: str
    before: str
    after: str
    tests: str

    @property
    def key(self) -> str:
        """Name by which killers are remembered."""
        return f"{self.file}: {self.name}"

    @property
    def digest(self) -> str:
        """Hash of everything that the mutant is: an edited mutant has no verdict."""
        parts = [self.name, self.file, self.before, self.after, self.tests]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Watch:
    """Pytest plugin that stops at the first test that fails, and tells time-outs from failures.

    Args:
        wanted: Tests to run out of those collected, without stopping at failures; None: run all.
    """

    def __init__(self, wanted: Iterable[str] | None = None) -> None:
        self.wanted = None if wanted is None else set(wanted)
        self.failed: list[str] = []
        self.passed: list[str] = []
        self.timed_out: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.wanted is not None:
            items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        else:
            self.passed.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[pytest.TestReport | None]:
        report = yield
        if report.failed and _is_timeout(call.excinfo):
            self.timed_out.append(item.nodeid)
            if len(self.timed_out) >= MAX_TIMEOUTS:
                item.session.shouldstop = "too many tests timed out"
        elif report.failed:
            self.failed.append(item.nodeid)
            if self.wanted is None:
                item.session.shouldfail = "caught"
        elif report.when == "call" and report.passed:
            self.passed.append(item.nodeid)
        return report

    def outcome(self) -> dict[str, list[str]]:
        """Node ids of failed, timed out and passed tests; a test that failed in any phase has not passed."""
        bad = {*self.failed, *self.timed_out}
        passed = [one for one in self.passed if one not in bad]
        return {"failed": self.failed, "timed_out": self.timed_out, "passed": passed}


def _is_timeout(found: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Whether a test was ended by pytest-timeout, or by a program that it waited for."""
    if found is None:
        return False
    by_plugin = isinstance(found.value, pytest.fail.Exception) and str(found.value).startswith("Timeout (>")
    return by_plugin or isinstance(found.value, subprocess.TimeoutExpired)


def _run_pytest(project: Path, tests: list[str], watch: Watch, scratch: Path, more: list[str]) -> None:
    """Run tests of a copy of the project in this process, which ends after having written their outcome."""
    os.setsid()
    os.chdir(project)
    sys.path[:0] = [str(project)]
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ |= {"PYTHONPATH": str(project), "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = False  # into the copy, beside what is compiled there
    tempfile.tempdir = None
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silence, stream)
    sys.stdout = sys.stderr = os.fdopen(silence, "w")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # nothing that was imported before becomes garbage: it need not be looked through again and again
    options = ["-q", "--timeout", str(SECONDS_FOR_A_TEST), "--basetemp", str(scratch / "tests")]
    plugins = [f"-pno:{name}" for name in ("cacheprovider", "xdist", "anyio")]
    code = pytest.main([*options, *plugins, *more, *tests], plugins=[watch])
    (scratch / "outcome.json").write_text(json.dumps(watch.outcome()))
    os._exit(code)


@dataclass
class Runner:
    """Runs mutants of one project and keeps what it found out.

    Args:
        root: Folder of the project, with the folders `package` and tests/.
        killers: JSON file of the test that caught each mutant.
        state: JSON file of verdicts and of the digest of the sources that they hold for.
        later: Groups of tests that run, one after the other, where the tests that should notice do not.
    """

    root: Path
    killers: Path
    state: Path
    later: tuple[str, ...] = ()
    package: str = "sordino"
    jobs: int = 2
    say: Callable[[str], None] = print
    verdicts: dict[str, str] = field(default_factory=dict)
    _sound: dict[str, bool] = field(default_factory=dict)
    _remembered: dict[str, str] = field(default_factory=dict)
    _alive: set[int] = field(default_factory=set)
    _stopped: bool = False

    def __post_init__(self) -> None:
        # A fork copies locks as they are: nothing that a child needs may be held by another thread meanwhile.
        self._forking = threading.RLock()
        self._scratch = Path()
        self._copies = 0

    def run(self, mutants: list[Mutant], known: Iterable[Mutant], resume: bool = False) -> dict[Mutant, str]:
        """Try mutants and return their verdicts.

        Args:
            mutants: Mutants to try.
            known: All mutants there are; the killers of others are forgotten.
            resume: Take over verdicts that an interrupted run found for the same sources, but for time-outs.
        """
        keys = {one.key for one in known}
        self._remembered = {key: test for key, test in _read(self.killers).items() if key in keys}
        digest = digest_of(self.root, self.package)
        stored = _read(self.state)
        if resume and stored.get("digest") == digest:
            self.verdicts = {one: found for one, found in stored["verdicts"].items() if found in (CAUGHT, SURVIVED)}
            self._sound = dict.fromkeys(stored["sound"], True)
            lost = {one.digest for one in mutants if one.key not in self._remembered}  # somebody changed the killers
            self.verdicts = {one: found for one, found in self.verdicts.items() if found == SURVIVED or one not in lost}
        elif resume:
            self.say("No verdicts to resume from: there was no run, or sources have changed since.")
        self._digest = digest
        begin = time.monotonic()
        waiting = [one for one in mutants if one.digest not in self.verdicts]
        if len(waiting) < len(mutants):
            self.say(f"{len(mutants) - len(waiting)} of {len(mutants)} verdicts are those of the interrupted run.")
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder, self._ending_children():
            self._scratch = Path(folder)
            self._copy_project()
            self._check_killers(mutants)
            while waiting:
                self._try_all(waiting, len(mutants))
                self._check_killers(mutants)
                waiting = [one for one in mutants if self._is_caught_by_a_failing_test(one)]
        found = {one: self.verdicts[one.digest] for one in mutants}
        caught = sum(verdict == CAUGHT for verdict in found.values())
        self.say(f"{caught} of {len(mutants)} mutants caught in {(time.monotonic() - begin) / 60:.0f} minutes")
        for one, verdict in found.items():
            if verdict != CAUGHT:
                self.say(f"{verdict}  {one.key}")
        return found

    def _try_all(self, waiting: list[Mutant], total: int) -> None:
        """Try mutants, some at once, and write each verdict down as it comes."""
        done = total - len(waiting)
        pool = ThreadPoolExecutor(self.jobs)
        try:
            trials = {pool.submit(self._try, one): one for one in waiting}
            for trial in as_completed(trials):
                one, (verdict, by, seconds) = trials[trial], trial.result()
                done += 1
                with self._forking:
                    self.verdicts[one.digest] = verdict
                    if by is not None:
                        self._remembered[one.key] = by
                    self._save()
                    caught_by = f" ({seconds:.1f} s: {by})" if by is not None else f" ({seconds:.1f} s)"
                    self.say(f"{done} of {total}  {verdict:<9}  {one.key}{caught_by}")
        except BaseException:
            self._stopped = True
            self._kill_children()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _try(self, mutant: Mutant) -> tuple[str, str | None, float]:
        """Verdict on a mutant, the test that caught it and the seconds it took."""
        begin = time.monotonic()
        with self._copied() as copy:
            target = copy / "project" / self.package / mutant.file
            text = target.read_text()
            target.unlink()  # other copies share the file
            target.write_text(text.replace(mutant.before, mutant.after, 1))
            for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
                compiled.unlink()
            verdict, by = self._verdict(mutant, copy)
        return verdict, by, time.monotonic() - begin

    def _verdict(self, mutant: Mutant, copy: Path) -> tuple[str, str | None]:
        """Run the remembered killer, then the tests that should notice, then the later groups."""
        verdict = SURVIVED
        first = self._remembered.get(mutant.key)
        groups = [mutant.tests.split(), *(later.split() for later in self.later)]
        if first is not None and self._sound.get(first):
            groups.insert(0, [first])
        failing = {test for test, sound in self._sound.items() if not sound}
        left_out = [f"--deselect={test}" for test in sorted(failing)]
        if any("::" not in test for test in failing):  # whole files, which cannot be collected
            left_out.append("--continue-on-collection-errors")
        for group in groups:
            outcome = None if self._stopped else self._tested(copy, group, Watch(), left_out)
            if outcome is None:
                verdict = DIED
                continue
            if outcome["timed_out"] and verdict == SURVIVED:
                verdict = TIMED_OUT
            for by in outcome["failed"]:
                if by not in failing:
                    return CAUGHT, by
        return verdict, None

    def _is_caught_by_a_failing_test(self, mutant: Mutant) -> bool:
        """Whether a mutant was caught by a test that fails on the project as it is, so that it must be tried again."""
        return self.verdicts[mutant.digest] == CAUGHT and not self._sound[self._remembered[mutant.key]]

    def _check_killers(self, mutants: list[Mutant]) -> None:
        """Run the remembered killers on the project as it is; those that do not pass are not trusted."""
        remembered = {self._remembered[one.key] for one in mutants if one.key in self._remembered}
        unknown = sorted(remembered - set(self._sound))
        if not unknown:
            return
        self.say(f"Checking that {len(unknown)} remembered tests pass without mutants ...")
        parts = [unknown[begin :: self.jobs] for begin in range(self.jobs)]  # tests of a file take alike
        with ThreadPoolExecutor(self.jobs) as pool:
            for part, passed in zip(parts, pool.map(self._check_part, parts), strict=True):
                self._sound |= {test: test in passed for test in part}
        for test in unknown:
            if not self._sound[test]:
                self.say(f"{test} does not pass without mutants: it catches none.")
        self._save()

    def _check_part(self, tests: list[str]) -> set[str]:
        with self._copied() as copy:
            return self._passing(copy, tests)

    def _passing(self, copy: Path, tests: list[str]) -> set[str]:
        """Those of some tests that pass in a copy of the project; a renamed one does not."""
        files = sorted({test.split("::")[0] for test in tests})
        there = [file for file in files if (copy / "project" / file).exists()]
        if not there:
            return set()
        outcome = self._tested(copy, there, Watch(tests), ["--continue-on-collection-errors"])
        return set() if outcome is None else set(outcome["passed"])

    def _tested(self, copy: Path, tests: list[str], watch: Watch, more: list[str]) -> dict[str, Any] | None:
        """Outcome of tests in a fork of this process, None where it died or was killed."""
        scratch = copy / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        work = multiprocessing.get_context("fork").Process(
            target=_run_pytest, args=(copy / "project", tests, watch, scratch, more)
        )
        with self._forking:
            work.start()
            self._alive.add(work.pid)
        work.join(SECONDS_FOR_A_GROUP)
        hung = work.is_alive()
        with self._forking:
            self._alive.discard(work.pid)
        _kill_group(work.pid)  # itself, if it hangs, and programs that its tests have left behind
        work.join()
        if hung:
            return {"failed": [], "timed_out": tests, "passed": []}
        with suppress(FileNotFoundError):
            return json.loads((scratch / "outcome.json").read_text())
        return None

    def _copy_project(self) -> None:
        """Copy the project once, with compiled modules."""
        base = self._scratch / "base"
        shutil.copytree(self.root, base, ignore=NOT_COPIED)
        compiling = [sys.executable, "-m", "compileall", "-q", str(base / self.package)]
        subprocess.run(compiling, check=False, stdout=subprocess.DEVNULL)

    @contextmanager
    def _copied(self) -> Iterator[Path]:
        """Folder with a copy of the project, whose files are hard links."""
        with self._forking:
            self._copies += 1
            copy = self._scratch / str(self._copies)
        shutil.copytree(self._scratch / "base", copy / "project", copy_function=os.link)
        try:
            yield copy
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _save(self) -> None:
        """Write killers and verdicts; a reader sees a whole file, before or after."""
        _write(self.killers, dict(sorted(self._remembered.items())))
        sound = sorted(test for test, passes in self._sound.copy().items() if passes)
        _write(self.state, {"digest": self._digest, "verdicts": self.verdicts, "sound": sound})

    @contextmanager
    def _ending_children(self) -> Iterator[None]:
        """Kill children, which have sessions of their own, when the run is interrupted or terminated."""

        def interrupt(number: int, _: object) -> None:
            raise KeyboardInterrupt(number)

        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, interrupt) if in_main else None
        try:
            yield
        finally:
            self._stopped = True
            self._kill_children()
            if in_main:
                signal.signal(signal.SIGTERM, before)

    def _kill_children(self) -> None:
        with self._forking:
            for pid in self._alive:
                _kill_group(pid)


def _kill_group(pid: int) -> None:
    """Kill a process that leads a session, and all processes that it has left in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def digest_of(root: Path, package: str = "sordino") -> str:
    """Digest of everything that decides verdicts: package, tests, and the declared dependencies."""
    total = hashlib.sha256(sys.version.encode())
    files = [root / "pyproject.toml", root / "constraints.txt"]
    files += sorted(path for folder in (package, "tests") for path in (root / folder).rglob("*") if path.is_file())
    for path in files:
        if path.exists() and "__pycache__" not in path.parts and path.name not in OF_THE_RUNNER:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(root)} {content}\n".encode())
    return total.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """Content of a JSON file, empty where there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file: one entry a line, so that versions of it merge."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    fresh.write_text(json.dumps(content, indent=0, ensure_ascii=False) + "\n")
    os.replace(fresh, path)
