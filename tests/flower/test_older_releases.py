"""A released version of this repository as a site against today's server, and the reverse; and its folders, migrated.

The release is taken out of the repository's history, by the number in `sordino/version.py`, and runs in processes of
its own.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.deploy.server.journal import Heads
from sordino.flower.link import free_port
from sordino.store.store import Store
from sordino.util.toml import toml_value
from sordino.version import VERSION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
RELEASE = "0.4.0"
SITES = 3
ROUNDS = 2
PATIENCE = 120.0
EXPERIMENT = {
    **{"method": "dp-fedavg", "model": "logistic", "clients": SITES, "shape": [8], "labels": ["0", "1"]},
    **{"rounds": ROUNDS, "epsilon": 8, "delta": 1e-5},
}


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the release, from the repository's history."""
    try:
        changes = git("log", "--format=%H", f'-SVERSION = "{RELEASE}"', "--diff-filter=AM", "--", "sordino/version.py")
        commit = b"".join(changes.split()[-1:])  # the first: later ones took the number away again
        shallow = git("rev-parse", "--is-shallow-repository").strip() == b"true"
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no git, or no history of this code")
    if shallow or not commit:
        pytest.skip(f"the history does not reach back to version {RELEASE}")
    place = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit.decode(), "sordino"))) as archive:
        archive.extractall(place, filter="data")
    return place


@dataclass
class Place:
    """Folders of a server and of sites, and the code with which commands run in them."""

    folder: Path

    def start(self, code: Path, log: str, *arguments: object) -> subprocess.Popen[str]:
        """Start `sordino ARGUMENTS...` of some code; what it says goes into a file."""
        environment = os.environ | {
            **{"PYTHONPATH": str(code), "XDG_STATE_HOME": str(self.folder / "state"), "OMP_NUM_THREADS": "1"},
            **{"SORDINO_CACHE": str(self.folder / "cache"), "COLUMNS": "300"},
        }
        command = [sys.executable, "-P", "-m", "sordino", *map(str, arguments)]
        with (self.folder / log).open("w") as said:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=said, stderr=said, text=True)

    def do(self, code: Path, *arguments: object) -> str:
        """Run a command to its end, which must be a good one."""
        process = self.start(code, "command.log", *arguments)
        assert process.wait(PATIENCE) == 0, self.said("command.log")
        return self.said("command.log")

    def said(self, log: str) -> str:
        return (self.folder / log).read_text()

    @contextlib.contextmanager
    def joined(self, code: Path, port: int) -> Iterator[None]:
        """All sites, as they take part with some code."""
        options = ("--server", f"localhost:{port}", "--ca", "server/ca.pem")
        sites = [self.start(code, f"join-{number}.log", "join", f"site{number}", *options) for number in range(SITES)]
        try:
            yield
        finally:
            for one in sites:
                one.send_signal(signal.SIGKILL)
                one.wait()

    @contextlib.contextmanager
    def serving(self, code: Path, port: int) -> Iterator[subprocess.Popen[str]]:
        """The server, as it serves the experiment with some code."""
        address = f"127.0.0.1:{port}"
        process = self.start(code, "serve.log", "serve", "e.toml", "--address", address, "--store", "store")
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], said: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def before(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Three sites and a server of the release, with a run behind them."""
    place = Place(tmp_path_factory.mktemp("place"))
    noise = np.random.default_rng(0)
    for number in range(SITES):
        x = noise.random((60, 8)).astype("float32")
        np.savez(place.folder / f"records{number}.npz", x=x, y=(x[:, 0] > 0.5).astype("int64"))
    (place.folder / "e.toml").write_text("".join(f"{key} = {toml_value(value)}\n" for key, value in EXPERIMENT.items()))
    assert place.do(release, "--version").split() == ["sordino", RELEASE]
    place.do(release, "serve", "init", "--host", "localhost")
    for number in range(SITES):
        place.do(
            release, "site", "init", "--name", f"site{number}", "--data", f"records{number}.npz", "--max-epsilon", 40
        )
    place.do(release, "serve", "add", *(f"site{number}/site{number}.pub" for number in range(SITES)))
    (place.folder / "roster.toml").write_text(place.do(release, "serve", "roster"))
    for number in range(SITES):
        with (place.folder / f"site{number}" / "site.toml").open("a") as rules:
            rules.write('roster = "../roster.toml"\n')
    port = free_port()
    with place.joined(release, port), place.serving(release, port) as server:
        assert server.wait(PATIENCE) == 0, place.said("serve.log")
    return place


@pytest.fixture
def place(before: Place, tmp_path: Path) -> Place:
    """A copy of the release's folders."""
    shutil.copytree(before.folder, tmp_path / "place")
    for number in range(SITES):
        rules = tmp_path / "place" / f"site{number}" / "site.toml"
        rules.write_text(rules.read_text().replace(str(before.folder), str(tmp_path / "place")))
    return Place(tmp_path / "place")


def migrated(place: Place) -> list[dict[str, float]]:
    """Migrate all sites; what each says that was spent."""
    told = [json.loads(place.do(ROOT, "site", "migrate", f"site{number}", "--json")) for number in range(SITES)]
    return [one["spent"] for one in told]


def test_an_older_site_is_named_to_the_operator_and_keeps_its_budget(release: Path, place: Place) -> None:
    port, ledger = free_port(), (place.folder / "site0" / "site.db").read_bytes()
    told = functools.partial(place.said, "serve.log")
    with place.joined(release, port), place.serving(ROOT, port):
        until(lambda: told().count("the site must be upgraded") == SITES, told)
    for number in range(SITES):
        assert f"site{number} cannot connect: The site's version is older than {VERSION}" in told()
    assert "does not let this site in" in place.said("join-0.log")  # the sentence of that release
    assert (place.folder / "site0" / "site.db").read_bytes() == ledger


def test_a_site_of_today_says_that_an_older_server_must_be_upgraded(release: Path, place: Place) -> None:
    migrated(place)
    shutil.rmtree(place.folder / "store")
    port = free_port()
    with place.serving(release, port), place.joined(ROOT, port):
        until(
            lambda: all("the server must be upgraded" in place.said(f"join-{number}.log") for number in range(SITES)),
            lambda: place.said("join-0.log"),
        )
    assert all(one["state"] == "done" for one in status_of(place, 0)["runs"])


def test_folders_of_a_release_are_migrated_and_go_on(release: Path, place: Place) -> None:
    old = place.do(release, "site", "status", "site0")
    spent = migrated(place)
    assert f"{spent[0]['outsider']:.2f}" in old
    assert "another version" in refusal(place, release, "site", "status", "site0")
    port = free_port()
    with place.joined(ROOT, port), place.serving(ROOT, port) as server:
        assert server.wait(PATIENCE) == 0, place.said("serve.log")
    after = status_of(place, 0)
    assert [one["state"] for one in after["runs"]] == ["done", "done"]
    assert after["spent"]["outsider"] > 1.2 * spent[0]["outsider"]
    assert after["unwitnessed"] is None
    with contextlib.closing(Heads(place.folder / "store")) as heads:
        assert heads.head(bytes.fromhex(after["identity"])) is not None
    assert len(Store(place.folder / "store").all()) == 2


def test_the_server_of_today_knows_how_far_ledgers_were_under_the_release(place: Place) -> None:
    rows = {}
    with contextlib.closing(Heads(place.folder / "store")) as heads:
        for number in range(SITES):
            place.do(ROOT, "site", "migrate", f"site{number}")
            found = status_of(place, number)
            head = heads.head(bytes.fromhex(found["identity"]))
            assert head is not None
            rows[number] = (head.position, found["ledger"]["rows"])
    assert all(1 <= known <= there for known, there in rows.values()), rows


def status_of(place: Place, number: int) -> dict[str, Any]:
    """A site's status, with its witness."""
    found: dict[str, Any] = json.loads(place.do(ROOT, "site", "status", f"site{number}", "--json"))
    return found


def refusal(place: Place, code: Path, *arguments: object) -> str:
    process = place.start(code, "refusal.log", *arguments)
    assert process.wait(PATIENCE) == 2
    return place.said("refusal.log")
