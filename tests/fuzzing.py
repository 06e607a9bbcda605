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

from sordino.experiment.config import Experiment, field_names
from sordino.methods import find, names

BASE: dict[str, Any] = {"clients": 8, "rounds": 1, "partition": "iid", "workers": 1, "records": 160}
"""A run of a few hundredths of a second, before anything is spoiled."""
HYPER: dict[str, Any] = {"epochs": 1, "batch": 64}
WHOLE = [-(10**22), -(2**63), -1, 0, 1, 2, 3, 5, 8, 2**31 + 10**12, 2**63, 10**22, 0x1 << 20_000, 10**400]
REAL = [
    *(-1e300, -1.0, -0.0, 0.0, 5e-324, 1e-300, 1e-38, 1e-18, 1e-9, 1e-5, 0.01, 0.1, 0.3, 0.5, 0.6, 0.9, 0.9999),
    *(1 - 1e-9, 1 - 1e-16, 1.0, 1.5, 3.0, 8.0, 90.0, 1e3, 1e5, 1e9, 1e18, 1e19, 1e30, 1e39, 1e154, 1e300, 1.7e308),
    *(float("inf"), float("-inf"), float("nan")),
]
JUNK: list[Any] = [
    *(
        "",
        " ",
        "x",
        "1",
        "nan",
        "-1",
        "true",
        "a\0b",
        "a\nb",
        "[/x]",
        "\u00e9\u221e",
        "y" * 5000,
        "{}",
        "%s",
        "../..",
        "~nobody-here",
    ),
    *(True, False, [], [1], [1.5, "x"], [[[]]], {}, {"a": 1}, {"a": {"b": []}}),
]
TEXTS: dict[str, list[str]] = {
    "data": ["digits", "digist", ".", "/", "/dev/null", "~nobody-here/x", "mnist", "/no/such/place"],
    "public": [
        "default",
        "holdout",
        "holdout:0.5",
        "holdout:2",
        "holdout:nan",
        "digits",
        "holdout:",
        "mnist",
        "holdout:1e-300",
    ],
    "partition": [
        *("iid", "natural", "dirichlet", "dirichlet:0.5", "dirichlet:1e-300", "dirichlet:1e300", "dirichlet:1e-9"),
        *(
            "dirichlet:nan",
            "shards:1",
            "shards:2",
            "shards:1e22",
            "shards:inf",
            "shards:-1",
            "labels:20%",
            "labels:1e-300%",
        ),
        *("labels:100", "labels:nan", "iid:3", ":", "natural:", "shards:1e300", "dirichlet:inf", "labels:101%"),
    ],
    "model": [
        *(
            "logistic",
            "mlp",
            "lenet",
            "cnn",
            "dnn-heart",
            "resnet9",
            "no.such:Net",
            "os:getcwd",
            "os.path:join",
            ":",
            ".",
            "a.",
        ),
        *("torch.nn:Linear", "torch.nn:Module", "torch:nn", "json:dumps", "sys:exit", "spoiled:NoModule", "syntax:Net"),
    ],
    "method": [
        *names(),
        "no.such:Method",
        "sordino.method:Method",
        "os:getcwd",
        "syntax:M",
        "torch.nn:Linear",
        "fedpda",
    ],
    "device": ["cpu", "cuda", "meta", "cuda:99", "mps", "tpu", "cpu:3", "xla"],
    "budgets": [
        "1,2",
        "1:0.5,2:0.5",
        "1:0",
        ":",
        "1:2:3",
        "nan",
        "1e-300:1",
        "1e300:1,8:1",
        "8:1e300,1:1e300",
        "0.01:1",
    ],
    "curve": ["mnist", "cifar10", "/no/such.json", "/dev/null", "."],
    "label": ["label", "x"],
    "store": ["/dev/null/x", "/proc/none", "/no-such-place-here/x"],
    "data_dir": ["/dev/null", "/no/such"],
}
MODEL_OPTIONS = ["model.hidden", "model.dropout", "model.nothing", "model."]
BROKEN_TOML = [
    *(
        b"",
        b"\xff\xfe\x00",
        b"rounds = ",
        b"[",
        b"rounds = 1\nrounds = 2",
        b"\xef\xbb\xbfrounds = 1",
        b"rounds = 99" + b"9" * 5000,
    ),
    *(
        b"[set]\n[set]",
        b"set = 3",
        b"[[set]]\na = 1",
        b"a = " + b"[" * 3000 + b"]" * 3000,
        b"rounds = nan",
        b"rounds = 1979-05-27",
    ),
    *(
        b"clients = 0x" + b"f" * 6000,
        b"[set]\nepochs = 0x" + b"f" * 6000,
        b"'' = 3",
        b"[set]\n'' = 3",
        b"[set.a.b.c.d]\ne = 1",
    ),
    *(
        b"[set]\n'.' = 3",
        b"[set]\n'..' = 3",
        b"[set]\n'model' = 3",
        b"[set.model]\n",
        b"[rounds]\nx = 1",
        b"model = 3\n",
        b"\0",
    ),
    *(
        "rounds = 1 # \u00e9".encode("latin-1"),
        "data = 'digits'".encode("utf-16"),
        b"set = [1, 2]",
        b"seed = 1e3",
        b"epsilon = '8'",
    ),
    *(
        b"variant = ['paper']",
        b"shape = [1, 8, 8]",
        b"shape = 3",
        b"shape = [-1]",
        b"shape = [99999999999999999999999]",
        b"shape = ['x']",
    ),
]
CURVE: dict[str, Any] = {
    **{"kind": "power", "coefficients": [1.0, 0.5], "low": 0.5, "high": 8.0, "clip_low": 0.1, "clip_high": 3.0},
    "provenance": {},
}
MODULES = {
    "syntax": "class Net(:\n",
    "raising": (
        "import torch\nfrom dataclasses import dataclass\nfrom sordino.method import Method\n"
        "class Net(torch.nn.Module):\n    def __init__(self):\n        raise RuntimeError('one\\ntwo')\n"
        "class Wants(torch.nn.Module):\n    def __init__(self, more):\n        super().__init__()\n"
        "@dataclass(frozen=True)\nclass M(Method):\n    def __post_init__(self):\n        raise RuntimeError('one\\ntwo')\n"
        "class N(Method):\n    def __init__(self, more):\n        pass\n"
        "@dataclass(frozen=True)\nclass Untyped(Method):\n    odd: 'no_such_type' = 1\n"
    ),
    "leaving": "import sys\nsys.exit(3)\n",
    "lacking": "import no_such_module_at_all\n",
    "dividing": "1 / 0\n",
    "bytes": "\0",
}
OWN = [
    *("syntax:Net", "raising:Net", "raising:Wants", "raising:M", "raising:N", "raising:Untyped", "leaving:Net"),
    *(
        "lacking:Net",
        "dividing:Net",
        "bytes:Net",
        "raising:torch",
        "raising:Nothing",
        "raising",
        "..",
        "a:b:c",
        "raising:",
    ),
]


def trials(seed: int, folder: Path) -> Iterator[list[str]]:
    """Endless commands, each a list of arguments; files that they name are written into `folder`."""
    chance = random.Random(seed)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    kinds: list[Callable[[random.Random, Path], list[str]]] = [
        *[options_of_run] * 8,
        *[file_of_run] * 5,
        *(broken_file, own_classes, plans, plans, data_show, curve_show, curve_fit, comparison, misuse),
    ]
    while True:
        yield chance.choice(kinds)(chance, folder)


def options_of_run(chance: random.Random, folder: Path) -> list[str]:
    """`sordino run` with spoiled options."""
    keys, hyper = spoiled(chance)
    options = {
        "data",
        "partition",
        "clients",
        "model",
        "method",
        "variant",
        "rounds",
        "participation",
        "seed",
        "workers",
    }
    given = [f"--{key}={written(value)}" for key, value in keys.items() if key in options]
    rest = {key: value for key, value in keys.items() if key not in options} | hyper
    given += [f"--set={key}={written(value)}" for key, value in rest.items()]
    return ["run", "--json", *([] if "store" in keys else [f"--store={folder / 'store'}"]), *given]


def file_of_run(chance: random.Random, folder: Path) -> list[str]:
    """`sordino run` with a spoiled experiment file."""
    keys, hyper = spoiled(chance)
    lines = [f"{json.dumps(key)} = {toml(value)}" for key, value in keys.items()]
    lines += ["[set]", *(f"{json.dumps(key)} = {toml(value)}" for key, value in hyper.items())]
    file = folder / "experiment.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return ["run", "--json", str(file), *([] if "store" in keys else [f"--store={folder / 'store'}"])]


def broken_file(chance: random.Random, folder: Path) -> list[str]:
    """A file that is hardly an experiment."""
    file = folder / "broken.toml"
    base = "\n".join(
        f"{key} = {toml(value)}" for key, value in (BASE | {"method": "fedavg"}).items() if key != "rounds"
    )
    content = chance.choice(BROKEN_TOML)
    with contextlib.suppress(UnicodeDecodeError):
        content = chance.choice([content, (base + "\n" + content.decode()).encode()])
    if chance.random() < 0.5:
        spoilt = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            spoilt.insert(chance.randint(0, len(spoilt)), chance.choice(b"=[]{}\"'\\.,\n\t\xff0-"))
        content = bytes(spoilt)
    file.write_bytes(content)
    if chance.random() < 0.3:
        return ["plan", str(file), "--json"]
    return ["run", str(file), *quick(folder), "--json"]


def own_classes(chance: random.Random, folder: Path) -> list[str]:
    """A network or a method of the user's own that is none."""
    key = chance.choice(["model", "method"])
    return ["run", "--json", f"--{key}={chance.choice(OWN)}", *quick(folder)]


def plans(chance: random.Random, folder: Path) -> list[str]:
    """`sordino plan` with strange numbers."""
    wanted = chance.sample(
        ["clients", "rounds", "epsilon", "noise-multiplier", "delta", "participation", "parameters"], 2
    )
    given = [
        f"--{key}={written(chance.choice(WHOLE if key in ('clients', 'rounds', 'parameters') else REAL))}"
        for key in wanted
    ]
    extra = ["--protect-from=server", "--allow-vacuous-delta", "--model=mlp", "--data=digits", "--json"]
    return ["plan", *given, *chance.sample(extra, 2)]


def data_show(chance: random.Random, folder: Path) -> list[str]:
    """`sordino data show` with strange names and numbers."""
    name = chance.choice(
        ["digits", *TEXTS["data"], *[text for text in JUNK if isinstance(text, str) and "\0" not in text]]
    )
    given = [f"--clients={written(chance.choice(WHOLE))}", f"--partition={chance.choice(TEXTS['partition'])}"]
    given += [
        f"--seed={written(chance.choice(WHOLE))}",
        f"--picture={folder / chance.choice(['a.png', 'a.xyz', 'no/a.png'])}",
    ]
    return ["data", "show", name, *chance.sample(given, chance.randint(0, 3)), "--json"]


def curve_show(chance: random.Random, folder: Path) -> list[str]:
    """`sordino curve show` of a spoiled file."""
    curve: Any = dict(CURVE)
    for key in chance.sample(sorted(curve), chance.randint(1, 2)):
        choices: list[Any] = [*REAL, *JUNK, "piecewise", "quadratic", [1e300, 1e300], [1, 2, 3], [1, 2, 2, 1], [0, 0]]
        curve[key] = chance.choice(choices)
    text = chance.choice([json.dumps(curve), json.dumps(curve), json.dumps([curve]), "", "{", "null", "[" * 99_999])
    file = folder / "curve.json"
    file.write_text(text)
    return ["curve", "show", str(file), *(["--json"] if chance.random() < 0.5 else [])]


def curve_fit(chance: random.Random, folder: Path) -> list[str]:
    """`sordino curve fit`, mostly with a mistake in it."""
    spoils = [
        *("--epsilons=1,2", "--epsilons=", "--epsilons=1,x,3", "--epsilons=1,2,nan", "--epsilons=1,2,inf", "--clips=0"),
        *("--epsilons=1e-300,1,2", "--epsilons=1,2,1e300", "--clips=1e300", "--clips=nan", "--clips=", "--kind=cubic"),
        *(
            "--seeds=0",
            "--seeds=-1",
            f"--seeds={10**22}",
            "--rounds=0",
            "--clients=0",
            f"--records={10**22}",
            "--records=0",
        ),
        *(
            "--model=nothing",
            "--set=epochs=0",
            "--set=clip=3",
            "--set=x",
            "--data=digist",
            "--kind=quadratic",
            "--monotone",
        ),
    ]
    out = chance.choice(
        [folder / "fit.json", folder / "fit.json", "/dev/null/x.json", "/no-such-place-here/x.json", folder]
    )
    given = [
        "--epsilons=1,4,8",
        "--clips=1",
        "--clients=4",
        "--rounds=1",
        "--records=80",
        "--set=epochs=1",
        "--set=batch=64",
    ]
    return [
        "curve",
        "fit",
        str(out),
        *given,
        f"--store={folder / 'store'}",
        chance.choice(spoils),
        chance.choice(spoils),
    ]


def comparison(chance: random.Random, folder: Path) -> list[str]:
    """`sordino compare` with strange methods, seeds and pictures."""
    methods = [
        "local",
        "fedavg[epochs=0]",
        "fedavg[rate=1e300]",
        "fedavg[",
        "[]",
        "fedavg[x=1]",
        "fedavg]",
        "local[a]",
        ",",
        "",
    ]
    given = [
        f"--seeds={chance.choice([1, 1, 0, -1, 10**22])}",
        f"--methods={chance.choice(methods)},{chance.choice(methods)}",
        f"--picture={chance.choice([folder / 'x.png', folder / 'x.nothing', folder, '/dev/null/x.png'])}",
        f"--epsilon={written(chance.choice(REAL))}",
    ]
    return ["compare", *quick(folder), "--seeds=1", *chance.sample(given, 2), "--json"]


def misuse(chance: random.Random, folder: Path) -> list[str]:
    """Options and commands that do not exist, and values of the wrong kind."""
    store = (
        f"--store={chance.choice([folder / 'store', folder / 'none', '/dev/null', '/proc/x', folder / 'syntax.py'])}"
    )
    return chance.choice(
        [
            ["run", "--rounds=many", *quick(folder)],
            ["run", "--nothing", *quick(folder)],
            ["nothing"],
            ["run", "one.toml", "two.toml"],
            ["resume", chance.choice(["", "..", "no-such-run", "a/b", "\udcff", "x" * 5000]), store, "--json"],
            ["resume", "x", f"--workers={written(chance.choice(WHOLE))}", store],
            ["runs", store, "--json"],
            ["data", "get", chance.choice(["digits", "nothing", ""]), f"--data-dir={folder / 'data'}"],
            ["data", f"--data-dir={chance.choice(['/dev/null', '~nobody-here'])}", "--json"],
            ["plan", f"--parameters={written(chance.choice(WHOLE))}"],
            ["run", f"{folder}/\udcff.toml"],
        ]
    )


def quick(folder: Path) -> list[str]:
    """The options of a small run."""
    keys = [f"--{key}={value}" for key, value in BASE.items() if key != "records"]
    hyper = [f"--set={key}={value}" for key, value in (HYPER | {"records": BASE["records"]}).items()]
    return [*keys, *hyper, f"--store={folder / 'store'}"]


def spoiled(chance: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of an experiment and hyper-parameters, one to three of them drawn at random."""
    method = chance.choice(names())
    keys: dict[str, Any] = {**BASE, "method": method, "variant": chance.choice(["sound", "sound", "paper"])}
    hyper = dict(HYPER)
    hints = typing.get_type_hints(find(method), include_extras=True)
    own = sorted(field_names(find(method)))
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        where = chance.random()
        if where < 0.45:
            name = chance.choice(own)
            hyper[name] = value_for(chance, name, hints[name])
        elif where < 0.9:
            name = chance.choice(sorted(set(Experiment.model_fields) - {"set", "compiled"}))
            keys[name] = value_for(chance, name, Experiment.model_fields[name].annotation)
        else:
            keys["model"] = chance.choice(["mlp", "mlp", "logistic", "resnet18"])
            hyper[chance.choice(MODEL_OPTIONS)] = chance.choice([*WHOLE, *REAL, *JUNK, [4, 4], "4,4"])
    return keys, hyper


def value_for(chance: random.Random, name: str, hint: Any) -> Any:
    """A value for a key: mostly of its kind, but rarely a good one."""
    if chance.random() < 0.08:
        return chance.choice(JUNK)
    while get_origin(hint) in (typing.Annotated, typing.Union, types.UnionType):
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return chance.choice(get_args(hint))
    if hint is bool:
        return chance.choice([True, False])
    if hint is int:
        return chance.choice(WHOLE)
    if hint is float:
        return chance.choice(REAL)
    if name == "shape":
        return chance.choice([[1, 8, 8], [64], [], [-1], [0], [10**22]])
    return chance.choice([*TEXTS.get(name, []), *[text for text in JUNK if isinstance(text, str)]])


def written(value: Any) -> str:
    """A value as it is given on the command line, where no argument can hold a zero byte."""
    return (value if isinstance(value, str) else toml(value)).replace("\0", "")


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return hex(value) if value > 2**63 else str(value)
    if isinstance(value, list):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {toml(item)}' for key, item in value.items())}}}"
    return json.dumps(value) if isinstance(value, str) else repr(value)
