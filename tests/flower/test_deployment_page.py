"""What docs/deployment.md says of three machines is done here, command by command, up to the network between them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from sordino import cli
from sordino.deploy.protocol.carrier import InProcessCarrier
from sordino.deploy.server.coordinator import start
from sordino.deploy.server.trips import Deadlines
from sordino.deploy.site.site import Site
from sordino.experiment.config import Experiment
from sordino.flower import serving
from sordino.store.store import Store

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
CHAPTER = PAGE[PAGE.index("## Three machines") : PAGE.index("## Which methods")]


def commands(start: str) -> list[list[str]]:
    """The commands of the chapter that begin so, as a shell reads them."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", CHAPTER, re.DOTALL | re.MULTILINE)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(start)]


@pytest.fixture
def sordino(tmp_path, monkeypatch, capsys):
    """Runs a command; what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(arguments: list[str]) -> str:
        assert arguments[0] == "sordino"
        monkeypatch.setattr("sys.argv", arguments)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return str(told.out)

    return run


def records(path: Path, seed: int) -> None:
    """A table with the columns of the page."""
    drawn = np.random.default_rng(seed)
    rows = ["patient_id,age,pressure,cholesterol,outcome"]
    for place in range(300):  # every second patient has two rows
        ill = drawn.random() < 0.5
        age, pressure, cholesterol = drawn.normal([50, 130, 220], [10, 15, 40]) + ill * np.array([10, 10, 20])
        rows.append(f"P{place - place // 3},{age:.0f},{pressure:.0f},{cholesterol:.0f},{'ill' if ill else 'healthy'}")
    path.write_text("\n".join(rows) + "\n")


@pytest.mark.slow
def test_three_machines_are_set_up_as_the_page_says(sordino, tmp_path):
    sordino(*commands("sordino serve init"))
    (init,) = commands("sordino site init")
    for number in range(3):
        records(tmp_path / f"records{number}.csv", number)
        text = " ".join(init).replace("site0", f"site{number}").replace("records.csv", f"records{number}.csv")
        assert f"site{number}.pub" in sordino(text.split())
        (tmp_path / f"site{number}.pub").write_text((tmp_path / f"site{number}" / f"site{number}.pub").read_text())
    assert "3 sites may take part" in sordino(*commands("sordino serve add"))
    (show,) = commands("sordino serve roster")
    assert show[-2:] == [">", "roster.toml"]
    roster = sordino(show[:-2])
    for number in range(3):
        folder = tmp_path / f"site{number}"
        (folder / "roster.toml").write_text(roster)
        rules = (folder / "site.toml").read_text()
        assert "# roster =" in rules
        (folder / "site.toml").write_text(rules.replace("# roster =", 'roster = "roster.toml"'))
    for name, content in re.findall(r"```toml\n# (\w+.toml)\n(.*?)```", CHAPTER, re.DOTALL):
        (tmp_path / name).write_text(content)
    (asked,) = commands("sordino site check")
    told = " ".join(sordino(asked).split())
    assert "site0 would take part, in at most 62 rounds." in told
    assert "(of 161 persons)" in told
    assert "the experiment declares about 160 persons in training." in told
    sites = [Site.open(tmp_path / f"site{number}") for number in range(3)]
    try:
        chosen = Experiment.read(tmp_path / "experiment.toml")
        members = [site.member for site in serving.read_sites(tmp_path / "server")]
        store = Store(tmp_path / ".sordino")
        summary = start(chosen, members, InProcessCarrier(sites), store, deadlines=Deadlines(hello=0.0))
    finally:
        for site in sites:
            site.close()
    assert summary.rounds_done == chosen.rounds
    assert 0.97 * 4 < summary.epsilon["outsider"] <= 4, "all but the two spare rounds that were reserved"
    (shown,) = commands("sordino site status")
    assert summary.run in sordino(shown)
    found = json.loads(sordino([*shown, "--json"]))
    assert (found["promised"], found["unit"]) == ("outsider", "person")
    globals_ = [
        json.loads(sordino(["sordino", "site", "status", f"site{n}", "--json"]))["runs"][0]["global"] for n in range(3)
    ]
    assert sum(globals_) / 3 > 0.6, "it learns: half of the records are ill"
    assert 0.999 * 4 < found["spent"]["outsider"] <= 4, "a site counts what it reserved"
    assert all(0.97 * spent < summary.epsilon[view] <= spent for view, spent in found["spent"].items())
    for line in (*commands("sordino statement"), *commands("sordino ledger")):
        sordino(line)
    assert "Privacy statement: site0" in (tmp_path / "statement.html").read_text()
    (tmp_path / "new.csv").write_text("age,pressure,cholesterol\n61,150,260\n40,115,190\n")
    for line in commands("sordino predict"):
        assert "2 records" in sordino(line)
