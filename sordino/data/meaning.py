"""What the numbers of a data set stand for: the names of its classes, and how a record is made of a table's row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino.data.schema import Schema


@dataclass(frozen=True)
class Meaning:
    """What classes and features are called, so that a model can say what it means."""

    classes: tuple[str, ...]
    """The names of the classes, in the order of their numbers."""
    positive: int | None = None
    """The class that is looked for; None where no class is more wanted than others."""
    schema: Schema | None = None
    """How a record is made of a table's row; None for arrays and images."""

    def document(self) -> dict[str, Any]:
        """As JSON can carry it."""
        schema = None if self.schema is None else self.schema.document()
        return {"classes": list(self.classes), "positive": self.positive, "schema": schema}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Meaning:
        """What `document` gave."""
        schema = None if document["schema"] is None else Schema.parse(document["schema"])
        return cls(tuple(document["classes"]), document["positive"], schema)

    @property
    def positive_name(self) -> str | None:
        """The name of the class that is looked for."""
        return None if self.positive is None else self.classes[self.positive]

    @classmethod
    def of_classes(cls, names: tuple[str, ...], positive: str | None = None, schema: Schema | None = None) -> Meaning:
        """Classes by name; of two the second is looked for unless another is named."""
        usual = 1 if len(names) == 2 else None
        return cls(names, usual if positive is None else names.index(positive), schema)

    @classmethod
    def numbered(cls, classes: int) -> Meaning:
        """Classes that have numbers only."""
        return cls.of_classes(tuple(str(number) for number in range(classes)))
