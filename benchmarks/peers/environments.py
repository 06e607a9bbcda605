"""The environments of the peers: one virtual environment each under `.bench/`, made when first asked for, then kept."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / ".bench"


class PeerError(Exception):
    """A peer cannot take part; the message is the sentence that says why."""


@dataclass(frozen=True)
class Environment:
    """What pip installs for a peer, in one call, under the project's constraints."""

    name: str
    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    """Those whose versions are reported, where they are installed."""
    wished: tuple[str, ...] = ()
    """What is installed besides where that is possible, and done without elsewhere."""

    @property
    def python(self) -> Path:
        return FOLDER / self.name / "bin" / "python"

    def make(self) -> None:
        """Install, unless the same requirements are installed already."""
        folder, constraints = FOLDER / self.name, PROJECT / "constraints.txt"
        wanted = "\n".join((*self.requirements, *self.wished, sys.version, constraints.read_text()))
        installed = folder / "installed.txt"
        if installed.exists() and installed.read_text() == wanted:
            return
        print(f"Installing {' '.join(self.requirements)} into {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints))
        self.output(*pip, *self.requirements)
        if self.wished:
            try:
                self.output(*pip, *self.wished)
            except PeerError as failure:
                print(failure, flush=True)
        installed.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Of the packages."""
        program = (
            "import json; from importlib.metadata import distributions; "
            f"print(json.dumps({{d.name: d.version for d in distributions() if d.name in {self.packages}}}))"
        )
        return dict(json.loads(self.output("-c", program)))

    def output(self, *arguments: str) -> str:
        """What the environment's interpreter prints, run in the project's folder."""
        command = [str(self.python), *arguments]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerError(f"{self.name}: {' '.join(arguments[:3])} failed: {last_error(done.stderr)}")
        return done.stdout


def last_error(text: str) -> str:
    """The last line that says it is an error, as pip's do; failing that, the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    return ([line for line in lines if line.startswith("ERROR")] or lines)[-1]


FLOWER = Environment("flower", ("flwr[simulation]==1.41.0", "torch"), ("flwr", "ray", "torch", "numpy"))
PFL = Environment("pfl", ("pfl[pytorch]==0.6.0",), ("pfl", "torch", "numpy"))
OPACUS = Environment(
    "opacus", ("-e", ".", "opacus>=1.6"), ("opacus", "opake", "torch", "numpy"), wished=("opake>=0.16,<0.17",)
)
"""Opake joins the steps that Opacus takes, in the same process."""
