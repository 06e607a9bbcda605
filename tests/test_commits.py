"""The hook that refuses long subjects of commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parent.parent / ".ci/hooks/commit-msg"
pytestmark = pytest.mark.skipif(not HOOK.exists(), reason="archives and copies may lack hidden folders")


def committed(message: str, folder: Path) -> tuple[int, str]:
    """The exit code of the hook, and what it says."""
    (folder / "message").write_text(message)
    done = subprocess.run([HOOK, folder / "message"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "A" * 72,
        "é" * 72,
        f"\n# comment\nShort\n\n{'long ' * 40}",
        f"# {'x' * 90}\nShort",
        f"Merge branch '{'x' * 90}'",
        f'Revert "{"x" * 70}"',
    ],
)
def test_subjects_of_72_characters_pass(message: str, tmp_path: Path) -> None:
    assert committed(message, tmp_path) == (0, "")


def test_a_longer_subject_is_refused(tmp_path: Path) -> None:
    told = "The subject has 73 characters: 72 are the most. Say why in the body.\n"
    assert committed(f"\n# comment\n{'A' * 73}\n\nWhy.\n", tmp_path) == (1, told)
