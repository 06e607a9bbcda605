"""Seeded wrong and strange inputs for the command line: every key of an experiment, every hyper-parameter.

Numbers are small, or far beyond what is sensible: those between would ask for long but honest work.
"""

from __future__ import annotations

import contextlib
import json
import random
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from sordino.experiment.config import Experiment
from sordino.experiment.hyperparameters import field_names
from sordino.methods import find, names
from sordino.util.selectable import choices_of, settings


def words(text: str) -> list[str]:
    """What is written with spaces between."""
    return text.split()


BASE: dict[str, Any] = {"clients": 8, "rounds": 1, "partition": "iid", "workers": 1, "records": 160}
"""A run of a few hundredths of a second, before anything is spoiled."""
HYPER: dict[str, Any] = {"epochs": 1, "batch": 64}
OPTIONS = {"data", "partition", "clients", "model", "method", "variant", "rounds", "participation", "seed", "workers"}
"""Keys that are given as options; the others through --set."""

WHOLE = [-(10**22), -(2**63), -1, 0, 1, 2, 3, 5, 8, 10**13, 2**63, 10**22, 1 << 20_000]
REAL = [
    *[float(text) for text in words("-inf -1e300 -1 -0.0 0 5e-324 1e-300 1e-38 1e-18 1e-9 1e-5 0.01 0.1 0.3 0.5 0.6")],
    *[float(text) for text in words("0.9 0.9999 1 1.5 3 8 90 1e3 1e5 1e9 1e18 1e19 1e30 1e39 1e154 1e300 1.7e308")],
    *[1 - 1e-9, 1 - 1e-16, float("inf"), float("nan")],
]
WORDS = [*words("x 1 nan -1 true [/x] é∞ {} %s ../.. ~nobody-here"), "", " ", "a\0b", "a\nb", "y" * 5000]
JUNK: list[Any] = [*WORDS, True, False, [], [1], [1.5, "x"], [[[]]], {}, {"a": 1}, {"a": {"b": []}}]
TEXTS = {
    "data": words("digits digist . / /dev/null ~nobody-here/x mnist /no/such/place"),
    "public": words("default holdout holdout:0.5 holdout:2 holdout:nan holdout: holdout:1e-300 digits mnist"),
    "partition": [
        *words("iid natural dirichlet dirichlet:0.5 dirichlet:1e-300 dirichlet:1e300 dirichlet:nan dirichlet:inf"),
        *words("shards:1 shards:2 shards:1e22 shards:1e300 shards:inf shards:-1 iid:3 : natural:"),
        *words("labels:20% labels:1e-300% labels:100 labels:nan labels:101%"),
    ],
    "model": [
        *words("logistic mlp lenet cnn dnn-heart resnet9 no.such:Net os:getcwd os.path:join : . a. syntax:Net"),
        *words("torch.nn:Linear torch.nn:Module torch:nn json:dumps sys:exit"),
    ],
    "method": [*names(), *words("no.such:Method sordino.method:Method os:getcwd syntax:M torch.nn:Linear fedpda")],
    "device": words("cpu cuda meta cuda:99 mps tpu cpu:3 xla"),
    "budgets": words("1,2 1:0.5,2:0.5 1:0 : 1:2:3 nan 1e-300:1 1e300:1,8:1 8:1e300,1:1e300 0.01:1"),
    "curve": words("mnist cifar10 /no/such.json /dev/null ."),
    "store": words("/dev/null/x /proc/none"),
    "data_dir": words("/dev/null /no/such"),
}
MODEL_OPTIONS = words("model.hidden model.dropout model.nothing model.")
TOML = [
    *(b"", b"\xff\xfe\x00", b"rounds = ", b"[", b"seed = 1\nseed = 2", b"\xef\xbb\xbfseed = 1", b"\0", b"seed = 1e3"),
    *(b"rounds = 9" + b"9" * 5000, b"clients = 0x" + b"f" * 6000, b"[set]\nepochs = 0x" + b"f" * 6000),
    *(b"a = " + b"[" * 3000 + b"]" * 3000, b".".join([b"a"] * 3000) + b" = 1", b"[set.a.b.c.d]\ne = 1"),
    *(b"[set]\n[set]", b"set = 3", b"set = [1, 2]", b"[[set]]\na = 1", b"[set.model]\n", b"[set]\n'' = 3", b"'' = 3"),
    *(b"[set]\n'.' = 3", b"[set]\n'..' = 3", b"[set]\n'model' = 3", b"[rounds]\nx = 1", b"model = 3", b"rounds = nan"),
    *(b"rounds = 1979-05-27", b"epsilon = '8'", b"variant = ['paper']", b"shape = [1, 8, 8]", b"shape = 3"),
    *(
        b"[set.clipping]\nrule = 'quantile'",
        b"[set.clipping]\nrule = 3",
        b"[set.clipping.rule]\na = 1",
        b"[set]\nrule = 1",
    ),
    *(b"shape = [-1]", b"shape = ['x']", "seed = 1 # \u00e9".encode("latin-1"), "seed = 1".encode("utf-16")),
]
"""Files that are hardly experiments."""
SYMBOLS = b"=[]{}\"'\\.,\n\t\xff0-"

CURVE = {"kind": "power", "coefficients": [1.0, 0.5], "low": 0.5, "high": 8.0, "clip_low": 0.1, "clip_high": 3.0}
FITS = [
    *words("--epsilons=1,2 --epsilons= --epsilons=1,x,3 --epsilons=1,2,nan --epsilons=1,2,inf --epsilons=1,2,1e300"),
    *words("--epsilons=1e-300,1,2 --clips=0 --clips=1e300 --clips=nan --clips= --kind=cubic --kind=quadratic"),
    *words(f"--seeds=0 --seeds=-1 --seeds={10**22} --rounds=0 --clients=0 --records=0 --records={10**22} --monotone"),
    *words("--model=nothing --set=epochs=0 --set=clip=3 --set=x --data=digist"),
]
CONTENDERS = ["local", "", *words("fedavg[epochs=0] fedavg[rate=1e300] fedavg[ [] fedavg[x=1] fedavg] local[a]")]

MODULES = {
    "syntax": "class Net(:\n",
    "raising": """
import torch
from dataclasses import dataclass
from sordino.method import Method

class Net(torch.nn.Module):
    def __init__(self):
        raise RuntimeError("one\\ntwo")

class Wants(torch.nn.Module):
    def __init__(self, more):
        super().__init__()

@dataclass(frozen=True)
class M(Method):
    def __post_init__(self):
        raise RuntimeError("one\\ntwo")

    def run(self, fed, model):
        pass

class N(M):
    def __init__(self, more):
        pass

@dataclass(frozen=True)
class Untyped(M):
    odd: "no_such_type" = 1
""",
    "leaving": "import sys\nsys.exit(3)\n",
    "lacking": "import no_such_module_at_all\n",
    "dividing": "1 / 0\n",
    "bytes": "\0",
}
"""Modules of a user's own, each with something wrong."""
OWN = [
    *words("syntax:Net raising:Net raising:Wants raising:M raising:N raising:Untyped leaving:Net lacking:Net"),
    *words("dividing:Net bytes:Net raising:torch raising:Nothing raising .. a:b:c raising:"),
]


def trials(seed: int, folder: Path) -> Iterator[list[str]]:
    """Endless commands, each a list of arguments, to be run in `folder`, where the files that they name are written."""
    chance = random.Random(seed)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    kinds: list[Callable[[random.Random, Path], list[str]]] = [
        *[run_by_options] * 8,
        *[run_by_file] * 5,
        *(broken_file, own_class, plan, plan, data_show, curve_show, curve_fit, compare, misuse),
    ]
    while True:
        yield chance.choice(kinds)(chance, folder)


def run_by_options(chance: random.Random, folder: Path) -> list[str]:
    """`sordino run` with spoiled options."""
    keys, hyper = spoiled(chance)
    given = [f"--{key}={written(value)}" for key, value in keys.items() if key in OPTIONS]
    rest = {key: value for key, value in keys.items() if key not in OPTIONS} | hyper
    return ["run", *stored(keys, folder), *given, *[f"--set={key}={written(value)}" for key, value in rest.items()]]


def run_by_file(chance: random.Random, folder: Path) -> list[str]:
    """`sordino run` with a spoiled experiment file."""
    keys, hyper = spoiled(chance)
    lines = [f"{json.dumps(key)} = {toml(value)}" for key, value in keys.items()]
    lines += ["[set]", *(f"{json.dumps(key)} = {toml(value)}" for key, value in hyper.items())]
    (folder / "experiment.toml").write_text("\n".join(lines), encoding="utf-8")
    return ["run", "experiment.toml", *stored(keys, folder)]


def broken_file(chance: random.Random, folder: Path) -> list[str]:
    """A file that is hardly an experiment."""
    content = bytearray(chance.choice(TOML))
    for _ in range(chance.choice([0, 0, 1, 3])):
        content.insert(chance.randint(0, len(content)), chance.choice(SYMBOLS))
    (folder / "broken.toml").write_bytes(bytes(content))
    rest = ["--json"] if chance.random() < 0.3 else quick(folder)
    return ["run" if len(rest) > 1 else "plan", "broken.toml", *rest]


def own_class(chance: random.Random, folder: Path) -> list[str]:
    """A network or a method of the user's own that is none."""
    return ["run", f"--{chance.choice(['model', 'method'])}={chance.choice(OWN)}", *quick(folder)]


def plan(chance: random.Random, folder: Path) -> list[str]:
    """`sordino plan` with strange numbers."""
    numbers: dict[str, list[Any]] = dict.fromkeys(("clients", "rounds", "parameters"), WHOLE)
    numbers |= dict.fromkeys(("epsilon", "noise-multiplier", "delta", "participation"), REAL)
    given = [f"--{key}={written(chance.choice(numbers[key]))}" for key in chance.sample(sorted(numbers), 2)]
    extra = ["--protect-from=server", "--allow-vacuous-delta", "--model=mlp", "--json"]
    return ["plan", *given, *chance.sample(extra, 2)]


def data_show(chance: random.Random, folder: Path) -> list[str]:
    """`sordino data show` with strange names and numbers."""
    given = [
        f"--clients={written(chance.choice(WHOLE))}",
        f"--partition={chance.choice(TEXTS['partition'])}",
        f"--seed={written(chance.choice(WHOLE))}",
        f"--picture={chance.choice(['a.xyz', 'no/a.png', '/dev/null/a.png'])}",
    ]
    name = chance.choice(["digits", "digits", *TEXTS["data"], *WORDS])
    return ["data", "show", written(name), *chance.sample(given, chance.randint(0, 3)), "--json"]


def curve_show(chance: random.Random, folder: Path) -> list[str]:
    """`sordino curve show` of a spoiled file."""
    curve: dict[str, Any] = dict(CURVE)
    for key in chance.sample([*CURVE, "provenance"], chance.randint(1, 2)):
        others: list[Any] = ["piecewise", "quadratic", [1e300, 1e300], [1, 2, 3], [1, 2, 2, 1], [0, 0]]
        curve[key] = chance.choice([*REAL, *JUNK, *others])
    text = chance.choice([json.dumps(curve)] * 4 + [json.dumps([curve]), "", "{", "null", "[" * 99_999])
    (folder / "curve.json").write_text(text)
    return ["curve", "show", "curve.json", *chance.choice([["--json"], []])]


def curve_fit(chance: random.Random, folder: Path) -> list[str]:
    """`sordino curve fit` with mistakes in it."""
    out = chance.choice(["fit.json", "fit.json", "/dev/null/x.json", "/no-such-place-here/x.json", "."])
    given = words("--epsilons=1,4,8 --clips=1 --clients=4 --rounds=1 --records=80 --set=epochs=1 --set=batch=64")
    return ["curve", "fit", out, *given, f"--store={folder / 'store'}", *chance.sample(FITS, 2)]


def compare(chance: random.Random, folder: Path) -> list[str]:
    """`sordino compare` with strange methods, seeds, budgets and pictures."""
    given = [
        f"--seeds={chance.choice([0, -1, 10**22])}",
        f"--methods={chance.choice(CONTENDERS)},{chance.choice(CONTENDERS)}",
        f"--picture={chance.choice(['x.png', 'x.nothing', '.', '/dev/null/x.png'])}",
        f"--epsilon={written(chance.choice(REAL))}",
    ]
    return ["compare", *quick(folder), "--methods=local", "--seeds=1", *chance.sample(given, 2)]


def misuse(chance: random.Random, folder: Path) -> list[str]:
    """Options and commands that do not exist, values of the wrong kind, and places that are none."""
    store = f"--store={chance.choice(['store', 'none', '/dev/null', '/proc/x', 'syntax.py'])}"
    return chance.choice(
        [
            ["run", "--rounds=many", *quick(folder)],
            ["run", "--nothing", *quick(folder)],
            ["nothing"],
            ["run", "one.toml", "two.toml"],
            ["run", "\udcff.toml"],
            ["resume", chance.choice(["", "..", "no-such-run", "a/b", "x" * 5000]), store, "--json"],
            ["resume", "x", f"--workers={written(chance.choice(WHOLE))}", store],
            ["runs", store, "--json"],
            ["data", "get", chance.choice(["digits", "nothing", ""]), "--data-dir=data"],
            ["data", f"--data-dir={chance.choice(['/dev/null', '~nobody-here'])}", "--json"],
        ]
    )


def quick(folder: Path) -> list[str]:
    """The options of a small run."""
    keys = [f"--{key}={value}" for key, value in BASE.items() if key != "records"]
    hyper = [f"--set={key}={value}" for key, value in (HYPER | {"records": BASE["records"]}).items()]
    return [*keys, *hyper, *stored({}, folder)]


def stored(keys: dict[str, Any], folder: Path) -> list[str]:
    """Where a run goes, unless the keys say it; results for machines are quicker."""
    return ["--json"] if "store" in keys else ["--json", f"--store={folder / 'store'}"]


def spoiled(chance: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of an experiment and hyper-parameters, one to three of them drawn at random."""
    method = chance.choice(names())
    keys: dict[str, Any] = {**BASE, "method": method, "variant": chance.choice(["sound", "sound", "paper"])}
    hyper = dict(HYPER)
    hints = typing.get_type_hints(find(method), include_extras=True)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        where = chance.random()
        if where < 0.5:
            name = chance.choice(sorted(field_names(find(method))))
            hyper |= hyper_parameter(chance, name, hints[name])
        elif where < 0.9:
            name = chance.choice(sorted(set(Experiment.model_fields) - {"set", "compiled"}))
            keys[name] = value_for(chance, name, Experiment.model_fields[name].annotation)
        else:
            keys["model"] = chance.choice(["mlp", "mlp", "logistic"])
            hyper[chance.choice(MODEL_OPTIONS)] = chance.choice([*WHOLE, *REAL, *JUNK, [4, 4], "4,4"])
    return keys, hyper


def hyper_parameter(chance: random.Random, name: str, hint: Any) -> dict[str, Any]:
    """A value for a hyper-parameter; where that is one of several kinds, mostly one of them and one of its settings."""
    choice = choices_of(hint)
    if choice is None or chance.random() < 0.1:
        return {name: value_for(chance, name, hint)}
    kind = chance.choice(sorted(choice.kinds))
    found: dict[str, Any] = {chance.choice([name, name, f"{name}.rule"]): kind}
    own = settings(choice.kinds[kind]) or {"nothing": float}
    setting = chance.choice(sorted(own))
    return found | {f"{name}.{setting}": value_for(chance, setting, own[setting])}


def value_for(chance: random.Random, name: str, hint: Any) -> Any:
    """A value for a key: mostly of its kind, but rarely a good one."""
    while get_origin(hint) in (typing.Annotated, typing.Union, types.UnionType):
        hint = get_args(hint)[0]
    pools: dict[Any, list[Any]] = {bool: [True, False], int: WHOLE, float: REAL}
    pool = list(get_args(hint)) if get_origin(hint) is Literal else pools.get(hint, [*TEXTS.get(name, []), *WORDS])
    return chance.choice(JUNK if chance.random() < 0.08 else pool)


def written(value: Any) -> str:
    """A value as it is given on the command line, where no argument can hold a zero byte."""
    return (value if isinstance(value, str) else toml(value)).replace("\0", "")


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value) if value > 2**63 else str(value)
    with contextlib.suppress(ValueError):
        return json.dumps(value, allow_nan=False)
    return repr(value)
