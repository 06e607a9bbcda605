"""The documentation: its links lead somewhere, its code runs, its commands exist."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers import command
from safetensors.torch import save_file
from torch import nn

import sordino.cli
from sordino.features import read_choice
from sordino.features.extractor import build
from sordino.methods import names
from sordino.privacy.accounting.gaussian import attack_accuracy, mu_of
from sordino.privacy.accounting.tradeoff import hits
from sordino.report.statement_facts import of_thousand
from sordino.report.wording import attack_words
from sordino.version import VERSION

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MADE = DOCS / "made"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages that are made from the code."""
    loaded = importlib.util.spec_from_file_location("made", DOCS / "made.py")
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("made")
    module.make(folder)
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.*")}


def blocks(path: Path, *kinds: str) -> list[str]:
    """The code of a page in the given languages."""
    return [code for kind, code in FENCE.findall(path.read_text("utf-8")) if kind.strip() in kinds]


def anchors(text: str) -> set[str]:
    """What a page's headings are called in links to them."""
    headings = re.findall(r"^#{1,3} (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path, made: dict[str, str]) -> None:
    for link in LINK.findall(FENCE.sub("", path.read_text("utf-8"))):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if target.is_relative_to(MADE):
            text = made.get(str(target.relative_to(MADE)))
            assert text is not None, f"{link} leads nowhere"
        else:
            assert target.exists(), f"{link} leads nowhere"
            text = target.read_text("utf-8") if target.suffix == ".md" else ""
        assert not anchor or anchor in anchors(text), f"{link} names no heading"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^[\w/-]+$", "\n".join(blocks(DOCS / "index.md", "{toctree}")), re.MULTILINE)
    assert {path.stem for path in PAGES} - {"index"} <= set(listed)


def commands_in(path: Path, *kinds: str) -> list[list[str]]:
    """The lines of a page's code that call `sordino`: those of `sh` are run, those without a language only read."""
    lines = "\n".join(blocks(path, *kinds)).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("sordino ")]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_on_pages_exist(path: Path) -> None:
    for words in commands_in(path, "", "sh"):
        found: Any = typer.main.get_command(sordino.cli.app)
        rest = list(words)
        while hasattr(found, "commands") and rest and not rest[0].startswith("-"):
            if rest[0] not in found.commands and hasattr(found, "default"):  # the command that is meant without a name
                rest.insert(0, found.default)
            assert rest[0] in found.commands, words
            found = found.commands[rest.pop(0)]
        known = {option for one in found.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
        given = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert given <= known, f"{words}: no option {given - known}"


@pytest.mark.parametrize(
    # The own method's code is run by test_readme.py.
    "path",
    [path for path in PAGES if blocks(path, "python") and path.stem != "own-method"],
    ids=lambda path: path.stem,
)
def test_python_on_pages_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = blocks(path, "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{path.stem.replace('-', '_')}_page.py").write_text("\n".join(found))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(f"{path.stem.replace('-', '_')}_page")


def test_the_own_model_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text("\n".join(blocks(DOCS / "own-model.md", "python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    quick = ("--clients=8", "--rounds=2", "--workers=1", "--method=dp-fedavg", "--personal=own")
    outcome = command("run", "--model", "my_networks:Small", "--set", "model.width=8", *quick, "--json")
    assert outcome.code == 0, outcome


def test_the_adapted_network_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks.py").write_text("\n".join(blocks(DOCS / "own-model.md", "python")))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    save_file(encoder.state_dict(), tmp_path / "encoder.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    quick = ("--clients=8", "--rounds=2", "--workers=1", "--method=dp-fedavg", "--personal=own")
    outcome = command("run", "--model", "networks:adapted", "--set", "model.rank=2", *quick, "--json")
    assert outcome.code == 0, outcome
    assert "trained on images of a public archive, as its author declares" in outcome.out


def test_the_own_backbone_gives_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backbone.py").write_text("\n".join(blocks(DOCS / "features.md", "python")))
    (experiment,) = [text for text in blocks(DOCS / "features.md", "toml") if "backbone.py" in text]
    (tmp_path / "experiment.toml").write_text(experiment)
    page = runpy.run_path(str(tmp_path / "backbone.py"))
    save_file(page["factory"]((1, 8, 8)).state_dict(), tmp_path / "backbone.safetensors")
    monkeypatch.chdir(tmp_path)
    page["write_program"]()
    choice = read_choice("network.pt2:trained_on=nothing")
    assert choice is not None
    assert build(choice, (1, 8, 8), record_level=False).output == (16,)
    outcome = command("run", "experiment.toml", "--workers=1", "--personal=own", "--json")
    assert outcome.code == 0, outcome
    assert '"features": "backbone:factory' in outcome.out


def test_what_an_epsilon_means_is_computed() -> None:
    """The table on the page: attacks at epsilon 0.5 to 8."""
    rows = re.findall(r"^\| (epsilon|the best attack is right in) \| (.*) \|$", (DOCS / "epsilon.md").read_text(), re.M)
    budgets, attacks = (row.split(" | ") for _, row in rows)
    assert attacks == [attack_words(attack_accuracy(mu_of(float(budget), 1e-5))) for budget in budgets]


def test_what_a_statement_finds_is_computed() -> None:
    """The table on the page: hits at one false alarm in a thousand."""
    text = (DOCS / "statement.md").read_text("utf-8")
    rows = re.findall(r"^\| (epsilon|found, of 1,000, with .*?) \| (.*) \|$", text, re.M)
    budgets, found = (row.split(" | ") for _, row in rows)
    wanted = [hits(((1.0, 1 / mu_of(float(budget), 1e-5), 1),), 0.001) for budget in budgets]
    assert found == [of_thousand(share) for share in wanted]


def test_every_method_has_a_page(made: dict[str, str]) -> None:
    for name in names():
        text = made[f"methods/{name}.md"]
        assert text.startswith(f"# {name}\n")
        assert "| `epochs` |" in text
        assert f"(methods/{name}.md)" in made["methods.md"]
    assert "Fisher" in made["methods/feddpa.md"]


def test_every_command_and_key_is_in_the_reference(made: dict[str, str]) -> None:
    for name in typer.main.get_command(sordino.cli.app).commands:  # type: ignore[attr-defined]
        assert f"## sordino {name}" in made["commands.md"]
    from sordino.experiment.config import Experiment

    for key in Experiment.model_fields:
        assert f"| `{key}` |" in made["experiment.md"]


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {VERSION}\n" in text
    assert "license: Apache-2.0" in text


@pytest.mark.slow
@pytest.mark.parametrize(("page", "made"), [("researchers", "study.html"), ("hospitals", "statement.html")])
def test_tutorials_run(page: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = DOCS / f"{page}.md"
    for script, folder in re.findall(r"^python (\S+) (\S+)$", "\n".join(blocks(path, "sh")), re.MULTILINE):
        monkeypatch.setattr(sys, "argv", [script, folder])
        runpy.run_path(str(ROOT / script), run_name="__main__")
    for code in blocks(path, "toml"):
        name = re.match(r"# (\S+)\n", code)
        assert name is not None
        (tmp_path / name[1]).write_text(code.replace("rounds = 20", "rounds = 2"))
    for words in commands_in(path, "sh"):
        outcome = command(*words)
        assert outcome.code == 0, (words, outcome)
    assert (tmp_path / made).exists()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason='the site needs the extra `docs`: pip install -e ".[docs]"')
    built = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(DOCS),
        str(tmp_path / "site"),
    ]
    done = subprocess.run(built, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text("utf-8")
        outside = re.findall(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]*"', text)
        assert not outside, (page.name, outside)
    assert (tmp_path / "site" / "made" / "methods" / "feddpa.html").exists()
