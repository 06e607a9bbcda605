"""A method's hyper-parameters, told from its code: default, range, meaning and what was published."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from typing import Any, Literal, TypedDict, get_args, get_origin

from pydantic.fields import FieldInfo

from sordino.method import Method
from sordino.named import Named, named, settings
from sordino.report.fields import field_docs

PUBLISHED = re.compile(r"(Paper|Code|Released|Not given|Usual|FedDPA|FedGLP|ACDP|AdaDP|PAC|pFedSD)\b")
"""How a sentence begins that tells what a paper or its code has."""
SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z])")
KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "none"}


class Hyperparameter(TypedDict):
    """One hyper-parameter."""

    name: str
    default: Any
    range: str
    meaning: str
    paper: str
    """What the papers and their code have; empty where nothing is known."""


def hyperparameters(kind: type[Method]) -> list[Hyperparameter]:
    """All hyper-parameters of a method, its own ones first; behind one that has kinds, the settings of each kind."""
    hints = typing.get_type_hints(kind, include_extras=True)
    docs = field_docs(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init and field.name not in ("variant", "privacy")]
    inherited = {field.name for field in dataclasses.fields(Method)}
    found = []
    for field in sorted(fields, key=lambda field: field.name in inherited):
        hint = hints[field.name]
        found.append(_one(field.name, field.default, hint, docs.get(field.name, "")))
        choice = named(hint)
        if choice is not None:
            found += _settings(field.name, choice)
    return found


def _settings(name: str, choice: Named) -> list[Hyperparameter]:
    """The settings of each kind that a hyper-parameter may be."""
    found = []
    for kind_name, kind in choice.kinds.items():
        docs, hints = field_docs(kind), settings(kind)
        for field in dataclasses.fields(kind):
            if field.init:
                told = f"With {name}={kind_name}: {docs.get(field.name, '')}"
                found.append(_one(f"{name}.{field.name}", field.default, hints[field.name], told))
    return found


def _one(name: str, default: Any, hint: Any, text: str) -> Hyperparameter:
    choice = named(hint)
    shown = default if choice is None else choice.name(default)
    sentences = SENTENCE.split(text) if text else []
    published = [sentence for sentence in sentences[1:] if PUBLISHED.match(sentence)]
    meaning = [sentence for sentence in sentences if sentence not in published]
    return {
        "name": name,
        "default": None if shown is dataclasses.MISSING else shown,
        "range": range_of(hint),
        "meaning": " ".join(meaning),
        "paper": " ".join(published),
    }


def range_of(hint: Any) -> str:
    """What values an annotated type admits, in words."""
    choice = named(hint)
    if choice is not None:
        return f"one of {', '.join(choice.kinds)}"
    origin = get_origin(hint)
    if origin is Literal:
        return f"one of {', '.join(str(one) for one in get_args(hint))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(range_of(part) for part in get_args(hint))
    if origin is typing.Annotated:
        return _bounded(hint)
    return KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def _bounded(hint: Any) -> str:
    """A number's kind with its bounds."""
    kind, *rest = get_args(hint)
    bounds = [bound for part in rest for bound in (part.metadata if isinstance(part, FieldInfo) else [part])]
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [f"{word} {getattr(b, key):g}" for b in bounds for key, word in words.items() if hasattr(b, key)]
    return ", ".join([range_of(kind), *limits])
