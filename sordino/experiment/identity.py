"""Identity of a run: a hash of everything that decides its results, a user's own code and weights included."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import inspect
import json
import marshal
import os
import platform
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino.util.import_by_name import is_dotted
from sordino.version import VERSION

WithoutFiles = Callable[[object], list[type]]
"""The classes that a class is made of whose code stands in no file."""


def compiled_code(kind: type, without_files: WithoutFiles) -> str:
    """A digest of a class whose source is not at hand: its functions' compiled code and its constants, with all that
    they name, directly or not. It is another each time where something in that cannot be digested."""
    return _Digest(without_files).of(kind)


class _Digest:
    """Digests of values by what they are, each function and class once: for code that stands in no file, such as
    classes of a notebook."""

    def __init__(self, without_files: WithoutFiles) -> None:
        self._without_files = without_files
        self._seen: set[int] = set()

    def of(self, value: Any) -> str:
        """A digest of a value; one that never comes again for what has none."""
        return hashlib.sha256("\n".join(self._parts(value)).encode()).hexdigest()

    def _parts(self, value: Any) -> list[str]:
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(function, FunctionType):
            return self._once(function, self._of_function)
        if isinstance(value, ModuleType):
            return [value.__name__]
        if isinstance(value, type):
            own = value in self._without_files(value)
            return self._once(value, self._of_class) if own else [value.__qualname__]
        return self._of_value(value)

    def _of_value(self, value: Any) -> list[str]:
        kind = type(value).__name__
        if isinstance(value, dict):
            return [kind, *(self.of(item) for pair in value.items() for item in pair)]
        if isinstance(value, list | tuple | set | frozenset):
            items = [self.of(item) for item in value]
            return [kind, *(sorted(items) if isinstance(value, set | frozenset) else items)]
        if isinstance(value, torch.Tensor | np.ndarray):
            array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
            return [str(array.dtype), str(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
        if value is None or isinstance(value, str | bytes | int | float | complex):
            return [kind, repr(value)]
        return [secrets.token_hex()]

    def _once(self, value: Any, parts: Callable[[Any], list[str]]) -> list[str]:
        if id(value) in self._seen:
            return [value.__qualname__]
        self._seen.add(id(value))
        return parts(value)

    def _of_function(self, function: FunctionType) -> list[str]:
        named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        known = [part for name, value in sorted(named.items()) for part in (name, *self._parts(value))]
        inner = [function.__defaults__, function.__kwdefaults__, held, getattr(function, "releases", None)]
        return [marshal.dumps(function.__code__).hex(), *known, *(part for one in inner for part in self._parts(one))]

    def _of_class(self, kind: type) -> list[str]:
        made = MADE_BY_PYTHON | (MADE_BY_DATACLASSES if dataclasses.is_dataclass(kind) else set())
        members = {name: value for name, value in vars(kind).items() if name not in made}
        return [kind.__qualname__, *(part for name in sorted(members) for part in (name, *self._parts(members[name])))]


def _names(code: CodeType) -> set[str]:
    """The names that compiled code looks up, inner functions included."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*(_names(one) for one in inner))


MADE_BY_PYTHON = {
    *("__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"),
}
"""Members of a class that follow from the others, or that say nothing about what it does."""
MADE_BY_DATACLASSES = {
    *("__dataclass_fields__", "__dataclass_params__", "__init__", "__repr__", "__eq__", "__hash__"),
    *("__setattr__", "__delattr__", "__match_args__", "__replace__"),
}
"""Attributes that Python derives from a dataclass's fields, whose defaults are members themselves."""


PACKAGE = Path(__file__).resolve().parent.parent


def identity_of(configuration: dict[str, Any], data_fingerprint: str, *code: object) -> str:
    """SHA-256 of everything that decides a run; `code` are the classes of its method and network."""
    sources = sorted({path for one in code for path in source_files(one)})
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
    digests += [compiled_code(one, without_files) for kind in code for one in without_files(kind)]
    decided = {**configuration, "data": data_fingerprint, "version": VERSION, "code": digests}
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()


def repeats(method: object, network: str, module: nn.Module, device: str) -> bool:
    """Whether identity and seed decide a run's values to the bit on this machine: all code is the package's own, which
    has no other source of randomness, and runs on a processor. A user's code may not repeat itself."""
    return not is_own(method) and not is_own_network(network, module) and torch.device(device).type == "cpu"


CPUINFO = Path("/proc/cpuinfo")
KIND = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)
"""Facts about a processor by which libraries choose their loops, and the order of sums."""
SWITCHES = (
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"),
)
"""Variables by which users forbid libraries to use a processor's instructions."""


def describe_machine(device: str) -> str:
    """Describe what decides the bits of a run besides its identity: versions of libraries, the processor and which of
    its instructions are used. Two machines that are described alike come to the same values."""
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
    """Whether one class or function does, by the path of its file: a user's module may have the name of one of
    Python's."""
    name = getattr(kind, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return name in sys.builtin_module_names
    path = Path(file).resolve()
    within = path.is_relative_to(PYTHON) and not INSTALLED & set(path.relative_to(PYTHON).parts)
    return within or any(path.is_relative_to(root) for root in (PACKAGE, *LIBRARIES))


def tensors_of(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """All tensors that a user's network holds, with their places: parameters and buffers, frozen and unsaved ones
    included, and plain attributes of its layers."""
    plain = [
        (f"{path}.{name}".lstrip("."), value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    ]
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(), *plain]


def weights_of(name: str, module: nn.Module) -> dict[str, str]:
    """Digest of all tensors of a user's network (`tensors_of`), as a key of the configuration.
    Weights of the package's networks follow from name, options and seed; processors of other kinds draw them a little
    differently. A run may be resumed there: all that it asked since its last checkpoint is then charged and asked again
    with other noise (`sordino.store.journal`)."""
    if not is_own_network(name, module):
        return {}
    digest = hashlib.sha256()
    for place, tensor in tensors_of(module):
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
