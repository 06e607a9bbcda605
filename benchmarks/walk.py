"""Files that a run passes: those of the package in which a function is called, in the order of the first call.

    python benchmarks/walk.py --method dp-fedavg

Import time is not counted: modules are imported by a first run, which is not watched.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import sordino

ROOT = Path(sordino.__file__).parent


def files_passed(**keys: Any) -> list[str]:
    """Run an experiment twice and return the files that the second run passes; `keys` are those of an experiment."""
    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and frame.f_code.co_name != "<module>" and name.startswith(str(ROOT)):
            seen.setdefault(str(Path(name).relative_to(ROOT)))

    with tempfile.TemporaryDirectory() as folder:
        sordino.run(store=Path(folder) / "first", **keys)
        sys.setprofile(note)
        try:
            sordino.run(store=Path(folder) / "second", **keys)
        finally:
            sys.setprofile(None)
    return list(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description="Files that a run passes.")
    parser.add_argument("--method", default="dp-fedavg")
    found = files_passed(method=parser.parse_args().method, clients=8, rounds=2, workers=1, progress=False)
    print("\n".join([*found, f"{len(found)} files"]))


if __name__ == "__main__":
    main()
