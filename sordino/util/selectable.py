"""Hyper-parameters whose value is one of several small dataclasses, chosen by name, each with settings of its own."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino.errors import unknown


@dataclass(frozen=True)
class Named:
    """The dataclasses among which a hyper-parameter chooses, by name; stands in its `Annotated` type."""

    kinds: Mapping[str, type]
    """The dataclasses by name."""

    def kind(self, name: str, what: str) -> type:
        """Return the dataclass called `name`; `what` names the hyper-parameter in the error if there is none."""
        if name not in self.kinds:
            raise unknown(what, name, self.kinds)
        return self.kinds[name]

    def name(self, value: object) -> str:
        """Return the name of a value's dataclass."""
        return next(name for name, kind in self.kinds.items() if type(value) is kind)


def choices_of(annotation: Any) -> Named | None:
    """Return the choices of an annotated type; None where it has none."""
    return next((part for part in typing.get_args(annotation)[1:] if isinstance(part, Named)), None)


def settings(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass that can be set, with their annotated types."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
