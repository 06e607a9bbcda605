"""Container files and the trial of Compose, linted: nothing is built here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from sordino import cli

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / "containers").glob("*.Containerfile"))
KNOWN = {
    *("FROM", "COPY", "RUN", "USER", "ENV", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL"),
    *("ENTRYPOINT", "CMD"),
}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions of a container file with their arguments, in their order."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines()]


def command(path: Path) -> Any:
    """The click command that a container runs, with its arguments."""
    given = dict(instructions(path))
    assert json.loads(given["ENTRYPOINT"]) == ["python", "-P", "-m", "sordino"]
    return json.loads(given["CMD"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_containers_run_without_rights_and_write_to_their_volumes(path: Path) -> None:
    found = instructions(path)
    names = [name for name, _ in found]
    assert set(names) <= KNOWN
    assert names[0] == "FROM"
    assert ":" in found[0][1], "a base without a version is another one tomorrow"
    assert not found[0][1].endswith(":latest")
    given = dict(found)
    assert int(given["USER"]) > 0
    assert names.index("USER") > max(place for place, name in enumerate(names) if name in ("RUN", "COPY"))
    volumes = json.loads(given["VOLUME"])
    assert given["WORKDIR"] in volumes
    assert f"HOME={given['WORKDIR']}" in given["ENV"].split()
    assert "--no-cache-dir" in given["RUN"]
    assert "-c /source/constraints.txt" in given["RUN"]
    for source in (one for name, rest in found if name == "COPY" for one in rest.split()[:-1]):
        assert (ROOT / source).exists(), source
    assert ("EXPOSE" in names) == ("server" in path.name), "a site opens no port"
    if "site" in path.name:
        assert "XDG_STATE_HOME=/witness" in given["ENV"].split()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_containers_run_commands_that_there_are(path: Path) -> None:
    arguments, group = command(path), typer.main.get_command(cli.app)
    name = arguments.pop(0)
    found: Any = group.commands[name]  # type: ignore[attr-defined]
    found = found.commands["run"] if name == "serve" else found
    options = {one for parameter in found.params for one in parameter.opts}
    assert {one for one in arguments if one.startswith("--")} <= options


def test_the_trial_isolates_its_sites() -> None:
    found = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text())
    assert found["networks"]["federation"] == {"internal": True}
    used = set()
    for name, service in found["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "ports" not in service
        assert (ROOT / "containers" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        assert service["restart"] == "on-failure"
        assert "max-size" in service["logging"]["options"]
        assert name == "server" or len(service["volumes"]) == 2
        used |= {volume.split(":")[0] for volume in service["volumes"]}
    assert used == set(found["volumes"])
