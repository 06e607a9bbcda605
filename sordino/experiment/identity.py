"""What decides a run's results: its configuration, its data, this version of Sordino, and the user's own code; whether
it decides them to the bit, and on which machine."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import inspect
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino.dotted import is_dotted
from sordino.experiment.notebooks import compiled_code
from sordino.version import VERSION

PACKAGE = Path(__file__).resolve().parent.parent


def identity_of(configuration: dict[str, Any], data_fingerprint: str, *code: object) -> str:
    """SHA-256 of everything that decides a run; `code` are the classes of its method and network."""
    sources = sorted({path for one in code for path in source_files(one)})
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
    digests += [compiled_code(one, without_files) for kind in code for one in without_files(kind)]
    decided = {**configuration, "data": data_fingerprint, "version": VERSION, "code": digests}
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()


def repeats(method: object, network: str, module: nn.Module, device: str) -> bool:
    """Whether a run's identity and seed decide its values to the bit: all code is the package's own, which draws from
    nothing else, and it runs on a processor. Of a user's code nobody knows that."""
    return not is_own(method) and not is_own_network(network, module) and torch.device(device).type == "cpu"


CPUINFO = Path("/proc/cpuinfo")
KIND = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)
"""What is read there of a processor: libraries choose their loops, and the order of sums, by it."""
SWITCHES = (
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"),
)
"""Variables by which users forbid libraries to use a processor's instructions."""


def describe_machine(device: str) -> str:
    """What decides the bits of a run besides its identity: versions of libraries, the processor and which of its
    instructions are used. Two machines that are described alike come to the same values."""
    lines = CPUINFO.read_text().partition("\n\n")[0].splitlines() if CPUINFO.exists() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    kind = [told.get(name, "") for name in KIND] if told else [platform.processor()]
    known = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": [platform.system(), platform.machine(), *platform.libc_ver()],
        "processor": hashlib.sha256(json.dumps(kind).encode()).hexdigest(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "switches": {name: os.environ[name] for name in SWITCHES if name in os.environ},
        "products": torch.get_float32_matmul_precision(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device,
    }
    return json.dumps(known)


def is_own(value: object) -> bool:
    """Whether any class or function of which a method is made, its settings included, is not the package's own."""
    kind = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    parts = [getattr(value, one.name) for one in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    elif isinstance(value, dict):
        parts = [*value, *value.values()]
    return not _is_known(kind) or any(is_own(part) for part in parts)


def is_own_network(name: str, module: nn.Module) -> bool:
    """Whether a network is a user's: one that is named by its dotted name, or made of layers that are not known."""
    return is_dotted(name) or not all(_is_known(type(layer)) for layer in module.modules())


def _is_known(kind: object) -> bool:
    """Whether a class and those that it is made of, or a function, come with this package, Python, torch or numpy."""
    return all(_comes_with_us(one) for one in (inspect.getmro(kind) if inspect.isclass(kind) else (kind,)))


def _comes_with_us(kind: object) -> bool:
    """By where its file lies: a user's module may have the name of one of Python's."""
    name = getattr(kind, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return name in sys.builtin_module_names
    path = Path(file).resolve()
    within = path.is_relative_to(PYTHON) and not INSTALLED & set(path.relative_to(PYTHON).parts)
    return within or any(path.is_relative_to(root) for root in (PACKAGE, *LIBRARIES))


def weights_of(name: str, module: nn.Module) -> dict[str, str]:
    """The digest of all parameters and buffers of a user's network, frozen ones included, as a key of what decides a
    run. Those of the package's own follow from name, options and seed, and are drawn a little differently by processors
    of other kinds: a run may be taken up on another one, where all that it asked since its last checkpoint is charged
    and asked again with other noise (`sordino.experiment.journal`)."""
    if not is_own_network(name, module):
        return {}
    digest = hashlib.sha256()
    for place, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
        whole = tensor.detach().cpu().contiguous()
        digest.update(repr((place, str(whole.dtype), tuple(whole.shape))).encode())
        digest.update(whole.reshape(-1).view(torch.uint8).numpy().data if whole.numel() else b"")
    return {"weights": digest.hexdigest()}


def source_files(kind: object) -> set[Path]:
    """The files of a class and of the classes it is made of; of a user's own also the files beside them that they
    import, directly or not, whether they have been loaded yet or not."""
    found: set[Path] = set()
    for one in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        module = inspect.getmodule(one)
        path = file_of(one)
        if module is None or path is None:
            continue
        if path.is_relative_to(PACKAGE) or INSTALLED & set(path.parts):
            found.add(path)
        else:
            depth = module.__name__.count(".") + (path.name == "__init__.py")
            found |= with_imports(path, path.parents[depth])
    return found


def file_of(kind: object) -> Path | None:
    """The source file of a class; None where it has none, or where its code is known by a version."""
    module = inspect.getmodule(kind)
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__.partition(".")[0] in NOT_OURS:
        return None
    path = Path(file).resolve()
    return path if path.is_file() else None


def without_files(kind: object) -> list[type]:
    """The classes that a class is made of whose code stands in no file: those of a notebook or an interpreter."""
    classes = inspect.getmro(kind) if inspect.isclass(kind) else ()
    return [one for one in classes if file_of(one) is None and one.__module__.partition(".")[0] not in NOT_OURS]


NOT_OURS = {*sys.stdlib_module_names, "builtins", "torch", "numpy"} - {"__main__"}
"""Whose code is known by its version."""
INSTALLED = {"site-packages", "dist-packages"}
PYTHON = Path(os.__file__).resolve().parent
LIBRARIES = tuple(Path(next(iter(library.__path__))).resolve() for library in (torch, np))


def with_imports(path: Path, root: Path) -> set[Path]:
    """A source file and all files below `root`, where its modules are looked for, that it imports, directly or not."""
    found: set[Path] = set()
    waiting = {path}
    while waiting:
        found |= waiting
        waiting = set().union(*(imported(one, root) for one in waiting)) - found
    return found


def imported(path: Path, root: Path) -> set[Path]:
    """The files below `root` that a source file names in its import statements, wherever they stand in it."""
    with contextlib.suppress(SyntaxError, ValueError):  # whoever imports it will be told
        stems: set[Path] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names, base = [alias.name for alias in node.names], root
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
                base = path.parents[node.level - 1] if node.level else root
            else:
                continue
            parts = [name.split(".") for name in names]
            stems |= {base.joinpath(*one[:end]) for one in parts for end in range(len(one) + 1)}
        files = {file for stem in stems for file in (stem.parent / f"{stem.name}.py", stem / "__init__.py")}
        return {file.resolve() for file in files if file.is_file()}
    return set()
