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
    """What a hyper-parameter may be: the metadata of its annotated type."""

    kinds: Mapping[str, type]
    """The dataclasses by name."""

    def kind(self, name: str, what: str) -> type:
        """The dataclass called `name`; `what` is the hyper-parameter, for the sentence when there is none."""
        if name not in self.kinds:
            raise unknown(what, name, self.kinds)
        return self.kinds[name]

    def name(self, value: object) -> str:
        """The name of a value's kind."""
        return next(name for name, kind in self.kinds.items() if type(value) is kind)


def named(annotation: Any) -> Named | None:
    """The choice that an annotated type carries; None where it carries none."""
    return next((part for part in typing.get_args(annotation)[1:] if isinstance(part, Named)), None)


def settings(kind: type) -> dict[str, Any]:
    """The settings of a dataclass, each with its annotated type."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
