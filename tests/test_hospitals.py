"""The story of four hospitals, from raw tables to predictions and a statement: the script's own lines are run."""

from __future__ import annotations

import csv
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
from helpers import Outcome, command

EXAMPLES = Path(__file__).parent.parent / "examples"


def commands() -> list[str]:
    """The commands of the script, each on one line."""
    text = (EXAMPLES / "hospitals.sh").read_text().replace("\\\n", " ")
    run = next(line for line in text.splitlines() if line.startswith("run=")).split("=")[1].split()[0]
    lines = [line.strip() for line in text.splitlines() if line.startswith(("sordino ", "python ", "sed "))]
    return [
        line.replace('"$run"', run).replace('"$here/hospitals.py"', str(EXAMPLES / "hospitals.py")) for line in lines
    ]


def carried_out(line: str) -> Outcome:
    """One command, in this process where it is ours."""
    plain, _, target = line.partition(" > ")
    program, *arguments = shlex.split(plain)
    if program == "python":
        runpy.run_path(arguments[0])["main"](Path(arguments[1]))
        return Outcome(0, "", "")
    if program == "sed":
        return Outcome(subprocess.run([program, *arguments], check=True).returncode, "", "")
    outcome = command(*arguments)
    if target:
        Path(target).write_text(outcome.out)
    return outcome


@pytest.mark.slow
def test_from_raw_tables_to_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = commands()
    assert len(lines) <= 15
    told = {}
    for line in lines:
        told[line] = carried_out(line)
        assert told[line].code == 0, f"{line}\n{told[line].err}"
    positives = [Path(f"hospitals/{name}.csv").read_text().count("readmitted") for name in ("east", "north")]
    assert positives == [34, 48], "one in twelve"
    shown = next(outcome.out for line, outcome in told.items() if line.startswith("sordino show") and "--" not in line)
    assert "recall of 'readmitted'" in shown
    assert "always the majority class" in shown
    assert "read from the clients' records" not in shown, "everything was declared, or released with noise"
    with Path("predictions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 40
    assert all(abs(float(row["probability_well"]) + float(row["probability_readmitted"]) - 1) < 1e-5 for row in rows)
    assert {row["prediction"] for row in rows} <= {"well", "readmitted"}
    statement = Path("statement.md").read_text()
    assert "east, north, south, west" in statement
    assert "one person" in statement
    assert "2 stored runs used these people's data" in statement, "the normalisation counts"
    assert Path("shared.onnx").stat().st_size > 1000
    assert Path("ledger.csv").read_text().startswith("position,")
    assert "<svg" in Path("statement.html").read_text()
