"""The environments of the peers: one virtual environment each under `.bench/`, made when first asked for, then kept."""

from __future__ import annotations

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
    """Those whose versions are reported."""

    @property
    def python(self) -> Path:
        return FOLDER / self.name / "bin" / "python"

    def make(self) -> None:
        """Install, unless the same requirements are installed already."""
        folder, constraints = FOLDER / self.name, PROJECT / "constraints.txt"
        wanted = "\n".join((*self.requirements, sys.version, constraints.read_text()))
        installed = folder / "installed.txt"
        if installed.exists() and installed.read_text() == wanted:
            return
        print(f"Installing {' '.join(self.requirements)} into {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = ("pip", "install", "--quiet", "--disable-pip-version-check", *self.requirements, "-c", str(constraints))
        self.output("-m", *pip)
        installed.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Of the packages."""
        program = f"from importlib.metadata import version; print(*map(version, {self.packages}))"
        return dict(zip(self.packages, self.output("-c", program).split(), strict=True))

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
OPACUS = Environment("opacus", ("-e", ".", "opacus>=1.6"), ("opacus", "torch", "numpy"))
