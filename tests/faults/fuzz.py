"""Absurd input: configurations, files of them, and data, good and bad, at random."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import resource
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.processes import HUNG, Outcome, command
from faults.trials import Check, Part, kept

QUIET = "no input gives a traceback"
SENTENCE = "input is taken, or refused in one sentence"
ENDS = "no input hangs or kills the process"
LIMIT = 120.0
MEMORY = 16 << 30
"""Bytes that a trial may address: an absurd size must not take the machine with it."""

BASE: dict[str, Any] = {
    **{"data": "digits", "clients": 3, "rounds": 2, "records": 120, "model": "logistic", "partition": "iid"},
    **{"workers": 1, "compiled": "never", "epochs": 1, "batch": 32, "noise_multiplier": 2.0},
}
HUGE = 10**22
ODD: tuple[Any, ...] = ("", "text", "1", True, [], [1, 2], {}, {"a": 1}, math.nan, math.inf, -math.inf, HUGE, 1e300, -1)
SMALL: tuple[Any, ...] = (0, 1, 2, 3)
NUMBERS: tuple[Any, ...] = (0.0, 0.5, 1.0, 2.0, 1e-9, 0.9999, 1e-300, 1e300, 1e30, -0.5, 7)
POOLS: dict[str, tuple[Any, ...]] = {
    "data": ("digits", "nothing", "", ".", "/", "/dev/null", "mnist"),
    "data_dir": ("/nowhere", "", "/dev/null"),
    "label": ("label", ""),
    "shape": ([8, 8], [64], [1, 8, 8], [0], [-1, -64], [HUGE]),
    "records": (1, 2, 5, 60, 2**31, 2**63),
    "partition": (
        *("iid", "natural", "dirichlet:0.1", "dirichlet:0", "dirichlet:-1", "dirichlet:1e300", "dirichlet:1e-300"),
        *("dirichlet:x", "dirichlet:nan", "shards:2", "shards:0", "shards:1000", "shards:1e22", "labels:20%"),
        *("labels:0%", "labels:200%", "labels:x%", ":", "iid:3", "dirichlet"),
    ),
    "clients": (1, 2, 5, 60, 2**31, 2**63),
    "test_fraction": (0.01, 0.5, 0.99, 1.0),
    "public": ("holdout:0.1", "holdout:0.99", "holdout:0", "holdout:1", "holdout:-1", "holdout:x", "digits", "default"),
    "model": (
        "logistic",
        "mlp",
        "lenet",
        "cnn",
        "faults.own:Branching",
        "faults.own:Plain",
        "no.where:Net",
        "a:b:c",
        ":",
    ),
    "method": ("faults.own:Plain", "faults.own:Odd", "faults.own:Branching", "no.where:Method", "feddp", ":"),
    "rounds": (1, 2, 3, 0, HUGE),
    "epochs": (1, 2, 0, HUGE),
    "batch": (1, 5, 2**31, 2**63),
    "seed": (1, -1, 2**31, 2**32, 2**63, 2**64, HUGE),
    "epsilon": (0.1, 8.0, 100.0, 1e-300, 1e300, 1e-5, 1e5),
    "delta": (1e-5, 0.5, 1e-300, 0.9999),
    "workers": (1, 2, 0),
    "compiled": ("never", "nonsense"),
    "device": ("cpu", "cpu:0", "cuda", "cuda:99", "meta", "nonsense", ""),
    "budgets": ("1,2,3", "1:0.5,8:0.5", "0,1,2", "1e300,1,1", "1e-300,1,1", ",", "1:0", "nan,1,1", "1:1:1", "x"),
    "curve": ("/nowhere.json", "", "/dev/null", "."),
    "hot_start_epochs": (0, 1, 2),
    "vectors": (0, 1, 64, -1, 1000),
    "dimensions": (0, 1, 64, -1, 1000),
    "model.hidden": (0, 1, 16, -1, 2**63, [8, 8]),
    "model.width": (0, 1, -1),
    "model.nonsense": (1,),
    "nonsense": (1,),
}
"""What is worth trying for a key, besides what is always tried. Work that is long but possible is left out."""
FIXED = ("store", "set")
WORDS = (
    "=",
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    ".",
    ",",
    "\n",
    "#",
    "-1",
    "1e400",
    "nan",
    "true",
    "1979-05-27",
    "\x00",
    "é",
    "[[a]]",
)


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """One command with random input."""
    kind = draw.choices((settings, file, text, data, plain), (40, 25, 10, 22, 3))[0]
    arguments = kind(draw, folder)
    store = ["--store", folder / "store"] if arguments[0] in ("run", "compare", "runs") else []
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # noqa: E731
    first: Callable[[], object] = limit if kind is not plain else lambda: sys.stdout.reconfigure(encoding="ascii")  # type: ignore[union-attr]
    ended = command(*arguments, *store, first=first, limit=LIMIT)
    given = [path.read_bytes().decode(errors="replace") for path in folder.glob("*.toml")]
    shown = " ".join(str(argument) for argument in (*arguments, *(f"with {text!r}" for text in given)))
    yield kept(QUIET, not ended.traceback, f"sordino {shown}: {ended}")
    yield kept(ENDS, ended.code != HUNG and int(ended.code) >= 0, f"sordino {shown}: {ended}")
    if not ended.traceback and ended.code != HUNG:
        yield kept(
            SENTENCE, ended.code == 0 or ended.refused or _is_usage(ended), f"sordino {shown}: {ended.err[:500]}"
        )


def _is_usage(ended: Outcome) -> bool:
    """Whether the command line's own parser has refused."""
    return ended.code == 2 and ended.err.startswith("Usage: ")


def settings(draw: random.Random, folder: Path) -> list[Any]:
    """An experiment given by options."""
    return ["run", "--json", *(f"--set={key}={toml(value)}" for key, value in experiment(draw).items())]


def file(draw: random.Random, folder: Path) -> list[Any]:
    """An experiment given by a file, which is run, compared or planned."""
    path = folder / "experiment.toml"
    path.write_text(written(experiment(draw)))
    order = draw.choices(("run", "compare", "plan"), (6, 1, 2))[0]
    return [
        order,
        str(path),
        "--json",
        *(["--methods", "local,dp-fedavg", "--seeds", "1"] if order == "compare" else []),
    ]


def text(draw: random.Random, folder: Path) -> list[Any]:
    """A file that was an experiment before somebody fell on the keyboard."""
    content = bytearray(written(experiment(draw)).encode())
    for _ in range(draw.choice((1, 1, 3, 20))):
        begin = draw.randrange(len(content) + 1)
        content[begin : begin + draw.choice((0, 1, 5))] = draw.choice((draw.choice(WORDS).encode(), draw.randbytes(3)))
    path = folder / "experiment.toml"
    path.write_bytes(draw.randbytes(200) if draw.random() < 0.1 else bytes(content))
    small = ("--clients=3", "--rounds=1", "--workers=1", "--set=epochs=1", "--set=compiled=never", "--set=records=60")
    return ["run", str(path), "--json", *small]


def plain(draw: random.Random, folder: Path) -> list[Any]:
    """Output for people on a terminal that knows only ASCII."""
    shown = ["run", *(f"--set={key}={toml(value)}" for key, value in BASE.items())]
    return draw.choice((["methods"], ["runs"], ["data"], ["plan", "--clients=50"], shown))


def experiment(draw: random.Random) -> dict[str, Any]:
    """A small experiment with up to four keys or hyper-parameters that are at the limit, or beyond."""
    from sordino.experiment.config import Experiment
    from sordino.methods import find, names

    method = draw.choice(names())
    hyper = {field.name: field for field in dataclasses.fields(find(method))}
    hints = typing.get_type_hints(find(method))
    keys = [key for key in (*Experiment.model_fields, *hyper, *POOLS) if key not in FIXED]
    found = BASE | {"method": method}
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4))):
        key = draw.choice(keys)
        annotation = hints.get(key) or getattr(Experiment.model_fields.get(key), "annotation", None)
        found[key] = draw.choice(candidates(draw, key, annotation))
        if key == "epsilon":
            found.pop("noise_multiplier", None)
    return found


def candidates(draw: random.Random, key: str, annotation: Any) -> tuple[Any, ...]:
    """What to choose a value from: most often something that may be right."""
    if draw.random() < 0.2:
        return ODD
    if key in POOLS:
        return POOLS[key]
    if typing.get_origin(annotation) is typing.Literal:
        return (*typing.get_args(annotation), "nonsense")
    return NUMBERS + SMALL


def written(keys: dict[str, Any]) -> str:
    """An experiment as a TOML file, which is also an experiment when a hyper-parameter stands among the keys."""
    from sordino.experiment.config import Experiment

    own = {key: value for key, value in keys.items() if key in Experiment.model_fields}
    rest = {key: value for key, value in keys.items() if key not in own}
    lines = [f"{key} = {toml(value)}" for key, value in own.items()]
    return "\n".join([*lines, "[set]", *(f"{key} = {toml(value)}" for key, value in rest.items()), ""])


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def data(draw: random.Random, folder: Path) -> list[Any]:
    """A folder of own files, some of them damaged or odd."""
    own = folder / "own"
    own.mkdir()
    kind = draw.choice(("csv", "npz", "parquet"))
    for client in range(draw.choice((1, 2, 3))):
        content = {"csv": table, "npz": arrays, "parquet": columns}[kind](draw)
        if draw.random() < 0.5:
            content = damaged(draw, content)
        (own / f"{client}.{kind}").write_bytes(content)
    if draw.random() < 0.4:
        return ["data", "show", str(own), "--json"]
    tiny = ("--rounds=1", "--workers=1", "--set=epochs=1", "--set=compiled=never", "--method=dp-fedavg")
    return ["run", "--data", str(own), "--json", "--set=noise_multiplier=2", "--set=allow_vacuous_delta=true", *tiny]


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Bytes changed, cut, added, or all of them random."""
    if draw.random() < 0.15:
        return draw.randbytes(draw.choice((0, 1, 100, 5000)))
    changed = bytearray(content)
    for _ in range(draw.choice((1, 2, 10))):
        place = draw.randrange(min(len(changed), draw.choice((64, 10**9))) or 1)
        changed[place : place + draw.choice((0, 1, 1, 1, 8))] = draw.randbytes(draw.choice((0, 1, 1, 1, 8)))
    return bytes(changed[: draw.choice((len(changed), len(changed), draw.randrange(len(changed) + 1)))])


CELLS = (
    "",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e39",
    "text",
    "1,2",
    '"',
    "'1'",
    "\x00",
    "é",
    " 1 ",
    "0x10",
    "1_000",
    "True",
    "9" * 5000,
)


def table(draw: random.Random) -> bytes:
    """A CSV file."""
    lines = [["a", "b", "label"]] + [[str(i), str(i / 3), str(i % 2)] for i in range(draw.choice((0, 1, 12)))]
    for _ in range(draw.choice((0, 0, 1, 2))):
        row = draw.choice(lines)
        row[draw.randrange(3)] = draw.choice(CELLS)
    separator, end = draw.choice((",", ",", ",", ";", "\t")), draw.choice(("\n", "\n", "\r\n", "\r"))
    return end.join(separator.join(row) for row in lines).encode(draw.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16")))


def arrays(draw: random.Random) -> bytes:
    """An NPZ file."""
    import numpy as np

    kinds = (np.float32, np.float64, np.int64, np.uint8, bool, np.complex64, object, "U3", "M8[s]", np.float16)
    shapes = ((12, 4), (12, 2, 2), (12,), (0, 4), (12, 0), ())
    x = np.zeros(draw.choice(shapes), dtype=draw.choice(kinds) if draw.random() < 0.4 else np.float32)
    if x.dtype == np.float32 and x.size and draw.random() < 0.3:
        x.flat[0] = draw.choice((np.nan, np.inf, 3e38))
    y: Any = np.arange(draw.choice((12, 12, 12, 11, 0))) % 2
    if draw.random() < 0.3:
        y = y.astype(draw.choice(kinds))
    buffer = io.BytesIO()
    names = draw.choice((("x", "y"), ("x", "y"), ("x", "y"), ("x", "x_test"), ("features", "labels")))
    more = {"x_test": x, "y_test": y} if draw.random() < 0.2 else {}
    draw.choice((np.savez, np.savez_compressed))(buffer, **({names[0]: x, names[1]: y} | more))
    return buffer.getvalue()


def columns(draw: random.Random) -> bytes:
    """A Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    size = draw.choice((0, 1, 12))
    choices: list[list[Any]] = [
        [float(i) for i in range(size)],
        [i % 2 for i in range(size)],
        [None] * size,
        [str(i) for i in range(size)],
        [[i] for i in range(size)],
        [b"\xff"] * size,
        [2**63 - 1] * size,
        [math.nan] * size,
        [{"a": i} for i in range(size)],
    ]
    first = choices[0] if draw.random() < 0.6 else draw.choice(choices)
    label = choices[1] if draw.random() < 0.7 else draw.choice(choices)
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"a": first, "b": choices[0], "label": label}), buffer)
    return buffer.getvalue()


FUZZ = Part("fuzz", (QUIET, SENTENCE, ENDS), 3000, trial)
