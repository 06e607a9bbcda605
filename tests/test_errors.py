"""Sentences of refusals are Sordino's own, not those of a library."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from sordino.data.schema import Schema
from sordino.errors import UserError, explain_invalid
from sordino.experiment.config import Experiment

OF_PYDANTIC = re.compile(
    r"input should|unable to|validation|field required|valid (integer|number|string|dict|tuple)", re.I
)


class Unit(StrEnum):
    SITE = "site"
    ROW = "row"


class Keys(BaseModel):
    """A key of each kind that experiments, schemas and rules have."""

    whole: int = Field(default=1, ge=1, le=2_000)
    part: float = Field(default=0.5, gt=0, lt=1)
    tiny: float = Field(default=1e-5, ge=1e-100, allow_inf_nan=False)
    yes: bool = True
    text: str = Field(default="a", min_length=1, max_length=3)
    choice: Literal["own", "blend", "Recalibrate"] = "own"
    unit: Unit = Unit.ROW
    names: tuple[str, ...] = Field(default=("a",), min_length=1)
    three: list[int] = Field(default=[1, 2, 3], min_length=3, max_length=3)
    pair: tuple[float, float] = (0, 1)
    table: dict[str, float] = {}
    file: Path = Path("a")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"whole": "many"}, "it must be a whole number"),
        ({"whole": 1.5}, "it must be a whole number"),
        ({"whole": 0}, "it must be at least 1"),
        ({"whole": 3_000}, "it must be at most 2,000"),
        ({"part": "half"}, "it must be a number"),
        ({"part": 0}, "it must be above 0"),
        ({"part": 1}, "it must be below 1"),
        ({"tiny": 0}, "it must be at least 1e-100"),
        ({"tiny": float("nan")}, "it must be a finite number"),
        ({"yes": "perhaps"}, "it must be true or false"),
        ({"text": 3}, "it must be a text, in quotes"),
        ({"text": ""}, "it must not be empty"),
        ({"text": "long"}, "it may have no more characters than 3"),
        ({"choice": "mine"}, "it must be 'own', 'blend' or 'Recalibrate'"),
        ({"unit": "all"}, "it must be 'site' or 'row'"),
        ({"names": "a"}, "it must be a list, in brackets"),
        ({"names": []}, "it must not be empty"),
        ({"three": [1]}, "it needs at least 3 entries"),
        ({"three": [1, 2, 3, 4]}, "it may have no more entries than 3"),
        ({"pair": [1]}, "it must be given"),
        ({"table": 3}, "it must be a table of names and values"),
        ({"file": 3}, "it must be the name of a file, in quotes"),
    ],
)
def test_a_wrong_value_is_told_by_what_it_must_be(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Keys(**given)
    assert explain_invalid(refusal.value.errors()[0]) == sentence


LABEL = {"y": {"kind": "label", "values": ["a", "b"]}}


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (
            {"kind": "number", "missing": "center"},
            "columns.x.missing: it must be 'refuse', 'drop', 'centre' or 'flag', or a number.",
        ),
        (
            {"kind": "category", "values": ["a"], "missing": 3},
            "columns.x.missing: it must be 'refuse', 'drop' or 'flag', or a text, in quotes.",
        ),
        ({"kind": "category", "values": [1, 2]}, "columns.x.values.0: it must be a text, in quotes."),
        ({"kind": "number", "range": "0-9"}, "columns.x.range: it must be a list, in brackets."),
    ],
)
def test_a_wrong_key_of_a_schema_is_told_by_its_place(column: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        Schema.parse({"columns": LABEL | {"x": column}})
    assert str(refusal.value) == f"The schema is wrong at {sentence}"


@pytest.mark.parametrize("value", [-1, "x", 1.5, [], {"a": 1}, float("nan")])
def test_no_key_of_an_experiment_is_refused_in_the_words_of_pydantic(value: Any) -> None:
    sentences = [told for key in Experiment.model_fields if (told := refusal_of({"method": "dp-fedavg", key: value}))]
    assert len(sentences) > len(Experiment.model_fields) // 2
    assert [told for told in sentences if OF_PYDANTIC.search(told)] == []


def refusal_of(keys: dict[str, Any]) -> str | None:
    """The sentence with which an experiment is refused; None where it is not."""
    try:
        Experiment.make(keys)
    except UserError as error:
        return str(error)
    return None
