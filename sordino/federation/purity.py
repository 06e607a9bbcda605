"""Purity of steps: what a step leaves in objects that outlive it would reach others past the gate.

In a simulation a method's clients and its script run in one process. Clients have a copy of the method and of the
network, so that what a step writes there does not reach the script. It would still reach the next client. So after
every step the method, the network, and the classes and modules in which the user wrote them must be unchanged. They
must be unchanged too after clients' models are evaluated or blended: a network could remember test records then, or a
model without noise, for the next client's step. This includes random generators: what one client draws would show in
what the next one draws.

This finds mistakes. Code that wants to evade it can: through files, other modules and what they hold (numpy's and
Python's global generators among it), or the garbage collector. Not compared are objects of Sordino's own classes, the
contents of arrays of more than `SMALL` bytes (for tensors, torch's version counter is), and objects that have no
attributes and cannot be pickled within `PICKLED` bytes: locks, context variables, open files.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import io
import itertools
import pickle
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, GeneratorType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.errors import UserError
from sordino.learning.network import Learner
from sordino.method import Method
from sordino.models.checks import attributes

OURS = ("sordino", "builtins", "abc", "typing", "dataclasses")
"""Packages whose classes and modules are not compared."""
NETWORKS = (*OURS, "torch")
"""Packages whose layers are not compared."""
PYTHONS = sys.stdlib_module_names - {"__main__"}
"""Python's own modules."""
DEPTH, ENTRIES = 6, 2000
"""Depth to which tables and lists are compared, and entries of each: datasets may lie in a user's module."""
SMALL = 2**16
"""Size in bytes up to which arrays are compared by their contents."""
PICKLED = 2**18
"""Size in bytes up to which objects of other packages are compared by their pickles."""
OPENED = 20_000
"""Number of objects after which those of other packages are no longer opened: one may hold a whole library."""
CONTAINERS = (dict, MappingProxyType, list, tuple, collections.deque, set, frozenset)
"""Containers that may be replaced by another with equal entries."""
PLAIN, WRAPPED = (str, bool, int, float, complex, bytes), (staticmethod, classmethod)
"""Values that are compared as text, and what wraps a class's functions."""
WORKED_IN = ("_bound", "_keepers", "_squaring")
"""Attributes of a learner that Sordino writes in a step."""


class Same:
    """A reference that equals only references to the same object; it keeps the object alive, so that its id stays
    unique."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


class Surroundings:
    """A method and a network, and the classes and modules in which a user wrote them, which steps must not change."""

    def __init__(self, method: Method, learner: Learner, example: Tensor) -> None:
        """Run a user's network once for training and once for evaluation on an `example`, which belongs to nobody: what
        it computes once, such as a table of positions, exists before the first client's step."""
        self._method, self._learner = method, learner
        self._refusal: str | None = None
        self._last: dict[str, Any] | None = None
        self._lazy = {name for kind in type(method).__mro__ for name in _lazy(kind)}
        self._classes = [kind for kind in type(method).__mro__ if _root(kind) not in OURS]
        written = [kind for kind in classes_of(learner.written) if kind not in self._classes]
        if written:
            mode = learner.module.training
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                for training in (False, True):
                    learner.module.train(training)
                    learner.module(example)
            learner.module.train(mode)
        self._classes += written
        self._homes = Homes.of(self._classes, learner.written)

    @contextlib.contextmanager
    def unchanged(self, what: str) -> Iterator[None]:
        """Refuse `what` runs in the block at clients, such as "step local", if it changes any of them.

        What was left behind stays: nothing is run with it any more, also where the refusal is caught.
        """
        if self._refusal is not None:
            raise UserError(self._refusal)
        # Nobody else has the copies of method and network in hand; a user's classes and modules are everybody's.
        before = self._seen() if self._homes.modules or self._last is None else self._last
        yield
        after = self._last = self._seen()
        changed = first_change(before, after)
        if changed is not None:
            self._refusal = (
                f"The {what} changed {changed}, through which others could learn of its client's records past the "
                "gate: let a step return what it sends and keeps, and let neither it nor a network change anything "
                "that outlives it."
            )
            raise UserError(self._refusal)

    def _seen(self) -> dict[str, Any]:
        """Snapshots of everything that a step must not change, by name."""
        found = {f"self.{name}": value for name, value in vars(self._method).items() if name not in self._lazy}
        if self._homes.modules:  # somebody else's code has the network in its hands
            held = {name: value for name, value in vars(self._learner).items() if name not in WORKED_IN}
            found |= {f"data.learner.{name}": value for name, value in held.items()}
        return self._homes.seen(found, self._learner.written)


@dataclass(frozen=True)
class Homes:
    """Classes and modules in which a user wrote code."""

    classes: Sequence[type]
    modules: Sequence[ModuleType]

    @classmethod
    def of(cls, classes: Sequence[type], network: nn.Module) -> Homes:
        """Find the modules of some classes, and of what is attached to the layers of a `network` to be called."""
        names = dict.fromkeys([kind.__module__ for kind in classes] + _modules_of_hooks(network))
        return cls(classes, [sys.modules[name] for name in names if name in sys.modules])

    def seen(self, held: Mapping[str, Any], network: nn.Module) -> dict[str, Any]:
        """Return snapshots, by name, of what the classes and modules hold, and of more that is `held`; `network` is as
        for `Look`."""
        found = dict(held)
        for kind in self.classes:
            found |= {f"{kind.__qualname__}.{name}": value for name, value in _chosen_by_user(vars(kind))}
        for module in self.modules:
            found |= {f"{module.__name__}.{name}": value for name, value in _chosen_by_user(vars(module))}
        look = Look({module.__name__ for module in self.modules}, network)
        return {name: look.at(value, DEPTH) for name, value in found.items()}


def classes_of(network: nn.Module) -> list[type]:
    """Return the classes of a network's layers that a user wrote."""
    layers = dict.fromkeys(kind for part in network.modules() for kind in type(part).__mro__)
    return [kind for kind in layers if _root(kind) not in NETWORKS]


def first_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return the name of the first snapshot that differs; None where all are equal."""
    names = {**before, **after}
    return next((name for name in names if before.get(name, Same(before)) != after.get(name)), None)


class Look:
    """One snapshot of everything: each object is opened once."""

    def __init__(self, homes: set[str], network: nn.Module) -> None:
        """`homes` are the modules whose functions and classes are opened; Sordino binds the parameters of `network` to
        each client's model, and switches it between training and evaluation."""
        self._homes, self._written = homes, network
        self._met: dict[int, Any] = {}  # they live on here, so that no other gets their place

    @functools.cached_property
    def _bound(self) -> set[int]:
        """Identities of the network's layers and parameters."""
        return {id(one) for one in (*self._written.modules(), *self._written.parameters())}

    def at(self, value: Any, depth: int) -> Any:
        """Take a snapshot of a value that compares equal until somebody changes it."""
        if isinstance(value, WRAPPED):
            value = value.__func__
        if value is None or isinstance(value, PLAIN):
            return type(value), repr(value)  # nan equals itself as text
        if id(value) in self._met or not depth:
            return Same(value)
        self._met[id(value)] = value
        inside = self._inside(value, depth - 1)
        return (type(value) if isinstance(value, CONTAINERS) else Same(value)), inside

    def _each(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.at(one, depth) for one in itertools.islice(values, ENTRIES)]

    def _named(self, values: Mapping[Any, Any], depth: int) -> list[Any]:
        # Names need no snapshot: texts are what they are.
        return [
            (key if type(key) is str else self.at(key, depth), self.at(one, depth))
            for key, one in itertools.islice(values.items(), ENTRIES)
        ]

    def _inside(self, value: Any, depth: int) -> Any:
        """Take a snapshot of an object of any kind."""
        found: Any = None
        if type(value) is dict:  # most objects are: not to be held against every other kind first
            found = len(value), self._named(value, depth)
        elif isinstance(value, FunctionType):
            found = self._run(value, depth)
        elif isinstance(value, Tensor):
            found = self._tensor(value, depth)
        elif isinstance(value, nn.Module):
            found = self._network(value, depth)
        elif isinstance(value, np.ndarray) and value.dtype.hasobject:
            found = value.shape, self._each(value.flat, depth)
        elif isinstance(value, (np.ndarray, memoryview)):
            found = _bytes(value)
        elif isinstance(value, (set, frozenset)):
            found = frozenset(value)
        elif isinstance(value, (dict, MappingProxyType)):
            found = len(value), self._named(value, depth)
        elif isinstance(value, CONTAINERS):
            found = len(value), self._each(value, depth)
        elif isinstance(value, type):
            found = self._named(dict(_chosen_by_user(vars(value))), depth) if value.__module__ in self._homes else None
        elif not isinstance(value, ModuleType):
            found = self._run(value, depth) or self._object(value, depth)
        return found

    def _tensor(self, value: Tensor, depth: int) -> Any:
        """Take a snapshot of a tensor: its values, its version and its gradient."""
        grad = self.at(value.grad, depth) if value.is_leaf else None
        if id(value) in self._bound and value.requires_grad:
            return grad
        held = None
        if value.device.type == "cpu" and value.numel() * value.element_size() <= SMALL:
            with contextlib.suppress(RuntimeError):  # kinds that have no bytes
                held = value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        return tuple(value.shape), 0 if value.is_inference() else value._version, held, grad

    def _network(self, value: nn.Module, depth: int) -> Any:
        """The attributes of a layer, and those of the layers in it, however deep."""
        # Which tensors a recurrent layer was run with last: binding it to a model, before each client, sets that anew.
        last = (
            ("_flat_weights", "_flat_weight_refs") if isinstance(value, nn.RNNBase) and id(value) in self._bound else ()
        )
        own = {name: one for name, one in vars(value).items() if name not in ("_modules", "training", *last)}
        parts = [(name, self.at(part, depth + 1)) for name, part in value._modules.items()]
        return parts, id(value) in self._bound or value.training, self._named(own, depth)

    def _run(self, value: Any, depth: int) -> Any:
        """Take a snapshot of what functions, generators and caches carry about; None for other objects."""
        found: Any = None
        if isinstance(value, FunctionType):
            found = self._each(_values_held(value), depth) if value.__module__ in self._homes else "elsewhere"
        elif isinstance(value, functools._lru_cache_wrapper):
            # Not in the order of its use, nor how often it was asked: a table that is full may be read.
            held = sorted(gc.get_referents(value), key=id) if value.__module__ in self._homes else ()
            found = value.cache_info().misses if held else 0, self._each(held, depth)
        elif isinstance(value, functools.partial):
            found = self._each((value.func, value.args, value.keywords), depth)
        elif isinstance(value, (MethodType, BuiltinMethodType)):
            found = self._each((value.__self__, getattr(value, "__func__", None)), depth)
        elif isinstance(value, GeneratorType):
            frame = value.gi_frame
            found = ("ended",) if frame is None else (frame.f_lasti, self._named(frame.f_locals, depth))
        elif isinstance(value, torch.Generator):
            found = value.get_state().cpu().numpy().tobytes()
        elif isinstance(value, itertools.count):
            found = repr(value)
        return found

    def _object(self, value: Any, depth: int) -> Any:
        """Take a snapshot of an object's attributes; of another package's object, its pickle, which leaves out
        caches."""
        kind = type(value)
        if _root(kind) == "sordino":
            return None
        if kind.__module__ not in self._homes:
            if len(self._met) > OPENED:
                return None
            if kind.__reduce_ex__ is not object.__reduce_ex__ or any(
                "__reduce__" in vars(one) or "__getstate__" in vars(one) for one in kind.__mro__[:-1]
            ):
                pickled = _pickle(value)
                if pickled is not None:
                    return pickled
        lazy = {name for one in kind.__mro__ for name in _lazy(one)}
        return self._named({name: one for name, one in attributes(value).items() if name not in lazy}, depth)


class _Short(io.BytesIO):
    """A file that takes no more than `PICKLED` bytes."""

    def write(self, more: Any) -> int:
        if self.tell() + len(memoryview(more).cast("B")) > PICKLED:
            raise OverflowError
        return super().write(more)


def _pickle(value: Any) -> bytes | None:
    """Return the pickle of a value; None where it cannot be pickled, or is too long."""
    file = _Short()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pickle.Pickler(file, protocol=5).dump(value)
    except OSError:  # no room or no more open files: the machine's trouble is no change of the value
        raise
    except Exception:  # whatever another package raises where it cannot
        return None
    return file.getvalue()


def _bytes(value: np.ndarray | memoryview) -> tuple[int, bytes | None]:
    return value.nbytes, value.tobytes() if value.nbytes <= SMALL else None


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _lazy(kind: type) -> list[str]:
    """Return the names of cached properties."""
    return [name for name, value in vars(kind).items() if isinstance(value, functools.cached_property)]


def _modules_of_hooks(network: nn.Module) -> list[str]:
    """Return the modules of what a user attached to layers to be called: hooks, and a replaced `forward`, whether
    functions, methods or objects."""
    hung = [one for part in network.modules() for value in vars(part).values() for one in _values(value)]
    names = [name for one in hung if callable(one) and not isinstance(one, nn.Module) for name in _homes(one)]
    return [name for name in names if name.partition(".")[0] not in (*NETWORKS, *PYTHONS)]


def _homes(called: Any) -> list[str]:
    """Return the modules in which the code of something that can be called was written."""
    if isinstance(called, functools.partial):
        return [name for one in (called.func, *called.args, *called.keywords.values()) for name in _homes(one)]
    if isinstance(called, (MethodType, BuiltinMethodType)):
        return [*_homes(getattr(called, "__func__", None)), *_homes(called.__self__)]
    return [getattr(called, "__module__", None) or type(called).__module__]


def _values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else (value,)


def _chosen_by_user(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the values under names that a user chose, without dunder names, which Python itself writes, and modules,
    which may be imported at any time."""
    return [(name, value) for name, value in names.items() if name[:2] != "__" and not isinstance(value, ModuleType)]


def _values_held(function: FunctionType) -> tuple[Any, ...]:
    """Return the values that a function holds: defaults, closure, attributes."""
    closed = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            closed.append(cell.cell_contents)
    return function.__defaults__, function.__kwdefaults__, vars(function), *closed
