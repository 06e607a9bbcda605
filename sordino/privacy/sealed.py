"""Values computed from raw records that only the gate can open.

At record level a step sees its client's records through noisy gradients alone. What else it may hand to the gate, the
single losses of validation records or projected records, it gets sealed: such a value can be sent under a release that
bounds and noises it, and nothing else can be done with it.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn

from torch import Tensor

Pool = Literal["training", "validation", "test"]
"""Pool of a client's records from which a value was computed. They are disjoint."""
Form = Literal["records", "batch", "sum"]
"""Rows of a sealed value: one for each record of its pool, one for each record of the batch that the question draws, or
one for each client, already summed over that batch."""
Asked = tuple[int, tuple[int, ...]]
"""Number of a question within the run, and the clients whose records a value was computed from."""


class SealedError(TypeError):
    """A step tried to compute with values of raw records."""


class Sealed:
    """Values of records of a pool, to be sent as they are; any other use raises."""

    __slots__ = ("__value", "asked", "form", "kind", "pool")

    def __init__(
        self, value: Tensor, pool: Pool, kind: str, form: Form = "records", asked: Asked | None = None
    ) -> None:
        """`kind` says what it is, in words: `losses`, `projected records`. `asked` is the question for which it was
        computed and whose records it is of, None outside of a run: it answers no other question, and for nobody
        else."""
        self.__value, self.pool, self.kind, self.form, self.asked = value, pool, kind, form, asked

    def __repr__(self) -> str:
        return f"<sealed {self.kind} of {self.pool} records>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SealedError(
            f"The {self.kind} of {self.pool} records are raw data: send them as they are under a release that "
            "bounds and noises them; a step cannot look at them or compute with them."
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python itself asks for when it copies, prints or compares
            raise AttributeError(name)
        self._refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = __float__ = __int__ = __bool__ = __len__ = _refuse
    __iter__ = __getitem__ = __lt__ = __le__ = __gt__ = __ge__ = __array__ = __reduce_ex__ = _refuse

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> NoReturn:
        held = next((one for one in arguments if isinstance(one, Sealed)), None)
        if held is None:
            raise SealedError("Sealed values of raw records cannot be computed with: send them as they are.")
        held._refuse()


def open_sealed(sealed: Sealed) -> Tensor:
    """Open a sealed value. For the gate only."""
    value: Tensor = sealed._Sealed__value  # type: ignore[attr-defined]
    return value
