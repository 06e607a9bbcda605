"""Configuration files and stores that were cut: told in a sentence, or read as what is left, never otherwise."""

from __future__ import annotations

import functools
import json
import random
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults import flips
from faults.cases import BASE, once
from faults.fuzz import written
from faults.processes import Copy, Outcome, command
from faults.trials import Check, Part, kept

TOLD = "a cut file is read, or refused in a sentence"
OTHER = "no value of a cut file is read as another one"
WHOLE = "a file that has lost nothing gives the same results"
LOOSER = "a cut roster names nobody whom the whole one does not name"
KEYS: dict[str, Any] = BASE | {
    **{"method": "dp-fedavg", "clients": 12, "rounds": 12, "delta": 1e-05, "records": 240, "evaluate_every": 10},
    **{"noise_multiplier": 12.5, "epochs": 10, "batch": 100, "clip": 10.25, "clipping": "fixed"},
}
"""An experiment with many values that are other ones when they lose a digit."""
CURVE: dict[str, Any] = {
    **{"kind": "piecewise", "coefficients": [0.5, 10.25, 0.25, 12.5], "low": 0.5, "high": 10.25},
    **{"clients": 12, "monotone": True, "points": [], "settings": {}},
}


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """Cut one file at a random byte, and let it be read."""
    yield from KINDS[number % len(KINDS)](draw, number, folder)


def experiment(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """An experiment's file, which is planned and, where nothing is missing, run."""
    whole = written(KEYS)
    cut, path = _cut(draw, whole), folder / "experiment.toml"
    path.write_text(cut)
    left = _parsed(cut)
    ended = command("plan", path, "--json")
    what = f"experiment.toml cut to {len(cut)} of {len(whole)} bytes"
    yield kept(TOLD, ended.code == 0 or ended.refused, f"{what}: {ended}")
    yield kept(OTHER, ended.code != 0 or _agree(left, _parsed(whole)), f"{what}: {cut[-60:]!r} is taken")
    if left == _parsed(whole) and ended.code == 0:
        ran = command("run", path, "--json", "--store", folder / "store")
        same = ran.code == 0 and _numbers(ran) == _undisturbed(whole)
        yield kept(WHOLE, same, f"{what}: {ran}")


@functools.cache
def _undisturbed(whole: str) -> dict[str, Any]:
    def make(folder: Path) -> dict[str, Any]:
        (folder / "experiment.toml").write_text(whole)
        return _numbers(command("run", folder / "experiment.toml", "--json", "--store", folder / "store"))

    return once(f"experiment {whole}", make)


def _numbers(ended: Outcome) -> dict[str, Any]:
    return {key: value for key, value in ended.document.items() if key not in ("run", "seconds", "over_runs")}


def roster(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """A list of sites, as a server and owners read it."""
    rows = [(f"site-{place}", draw.randbytes(32).hex()) for place in range(4)]
    whole = "".join(f'[[site]]\nname = "{name}"\nidentity = "{identity}"\n\n' for name, identity in rows)
    cut = _cut(draw, whole)
    (folder / "roster.toml").write_text(cut)

    def read() -> int:
        from sordino.deploy.protocol.roster import read_roster

        found = [(one.name, one.identity.hex()) for one in read_roster(folder / "roster.toml")]
        print(json.dumps(found))
        return 0

    ended = _outcome(read)
    what = f"roster.toml cut to {len(cut)} of {len(whole)} bytes"
    yield kept(TOLD, ended.code == 0 or ended.refused, f"{what}: {ended}")
    named = [tuple(one) for one in ended.document] if ended.code == 0 else []
    yield kept(LOOSER, named == rows[: len(named)], f"{what}: {named}")


def rules(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """A site's rules."""
    import numpy as np

    np.savez(folder / "data.npz", x=np.zeros((20, 4), np.float32), y=np.arange(20) % 2)

    def make() -> int:
        from sordino.deploy.site.site import Site

        limits = {"unit": "client", "max_epsilon": 10.25, "max_delta": 1e-05, "min_cohort": 12, "colluders": 10}
        Site.create(folder, "site", Path("data.npz"), **limits)
        return 0

    made = _outcome(make)
    if made.code != 0:
        raise RuntimeError(f"A site cannot be made without any fault: {made.err}")
    path = folder / "site.toml"
    whole = path.read_text()
    cut = _cut(draw, whole)
    path.write_text(cut)

    def read() -> int:
        from sordino.deploy.site.rules import read_rules

        print(json.dumps(read_rules(folder).rules.model_dump(mode="json")))
        return 0

    ended = _outcome(read)
    what = f"site.toml cut to {len(cut)} of {len(whole)} bytes"
    yield kept(TOLD, ended.code == 0 or ended.refused, f"{what}: {ended}")
    agree = ended.code != 0 or _agree(_parsed(cut), _parsed(whole))
    yield kept(OTHER, agree, f"{what}: {cut[-60:]!r} is taken")


def curve(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """A curve of thresholds."""
    whole = json.dumps(CURVE, indent=2) + "\n"
    cut, path = _cut(draw, whole), folder / "curve.json"
    path.write_text(cut)
    ended = command("curve", "show", path, "--json")
    what = f"curve.json cut to {len(cut)} of {len(whole)} bytes"
    yield kept(TOLD, ended.code == 0 or ended.refused, f"{what}: {ended}")
    yield kept(OTHER, ended.code != 0 or cut.strip() == whole.strip(), f"{what}: it is taken")


def store(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """A file of a store."""
    yield from flips.damaged(draw, number // len(KINDS), folder, flips.truncate)


KINDS: tuple[Callable[[random.Random, int, Path], Iterator[Check]], ...] = (experiment, roster, rules, curve, store)


def _cut(draw: random.Random, whole: str) -> str:
    """The beginning of a file: cut anywhere, behind a digit, or by no more than its last line break."""
    digits = [place for place, letter in enumerate(whole) if letter.isdigit()]
    places = (draw.randrange(len(whole) + 1), 1 + draw.choice(digits), len(whole) - draw.randint(0, 1))
    return whole[: draw.choices(places, (2, 2, 1))[0]]


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _agree(left: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether every value that is left is the one of the whole file; of lists of tables, the first ones."""
    return all(
        _agree(value, whole[key]) if isinstance(value, dict) else whole.get(key) == value for key, value in left.items()
    )


def _outcome(action: Callable[[], int]) -> Outcome:
    """Outcome of an action in a copy of this process; refused input ends as commands do."""

    def told() -> int:
        from sordino.errors import UserError

        try:
            return action()
        except UserError as error:
            print(f"Error: {error}", file=sys.stderr)
            return 2

    with Copy(told) as copy:
        return copy.outcome()


CUTS = Part("cuts", (TOLD, OTHER, WHOLE, LOOSER, flips.SILENT, flips.TOLD, flips.LISTED), 200, trial)
