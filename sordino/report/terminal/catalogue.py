"""Catalogue of methods, hyper-parameters and words, read from the code's own declarations."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
import typing
from typing import Any, Literal, TypedDict, get_args, get_origin

from pydantic.fields import FieldInfo

from sordino.method import Method, Variant
from sordino.methods import find, names
from sordino.models.networks import NETWORKS
from sordino.privacy.release import all_releases
from sordino.privacy.views import VIEWS
from sordino.util.selectable import Named, choices_of, settings


def field_docs(kind: type) -> dict[str, str]:
    """Docstring of each field of a dataclass or model, its bases included; empty where the source is not available."""
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        if dataclasses.is_dataclass(part) or hasattr(part, "model_fields"):
            found |= _own(part)
    return found


def _own(kind: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, below in itertools.pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = " ".join(below.value.value.split())
    return found


PUBLISHED = re.compile(r"(Paper|Code|Released|Not given|Usual|FedDPA|FedGLP|ACDP|AdaDP|PAC|pFedSD)\b")
"""Beginnings of sentences on the values of a paper or its code."""
SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z])")
KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "none"}


class Hyperparameter(TypedDict):
    """One hyper-parameter."""

    name: str
    default: Any
    range: str
    meaning: str
    paper: str
    """Values of the papers and their code; empty where nothing is known."""


def hyperparameters(kind: type[Method]) -> list[Hyperparameter]:
    """Hyper-parameters of a method, its own first, then those of its bases; one that has kinds is followed by the
    settings of each kind."""
    hints = typing.get_type_hints(kind, include_extras=True)
    docs = field_docs(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init and field.name not in ("variant", "privacy")]
    bases = reversed(list(enumerate(kind.__mro__)))
    distance = {name: place for place, part in bases for name in inspect.get_annotations(part)}
    found = []
    for field in sorted(fields, key=lambda field: distance[field.name]):
        hint = hints[field.name]
        found.append(_one(field.name, field.default, hint, docs.get(field.name, "")))
        choice = choices_of(hint)
        if choice is not None:
            found += _settings(field.name, choice)
    return found


def _settings(name: str, choice: Named) -> list[Hyperparameter]:
    """Settings of each kind that a hyper-parameter may be."""
    found = []
    for kind_name, kind in choice.kinds.items():
        docs, hints = field_docs(kind), settings(kind)
        for field in dataclasses.fields(kind):
            if field.init:
                told = f"With {name}={kind_name}: {docs.get(field.name, '')}"
                found.append(_one(f"{name}.{field.name}", field.default, hints[field.name], told))
    return found


def _one(name: str, default: Any, hint: Any, text: str) -> Hyperparameter:
    choice = choices_of(hint)
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
    """Values that an annotated type admits, in words."""
    choice = choices_of(hint)
    if choice is not None:
        return f"one of {', '.join(choice.kinds)}"
    origin = get_origin(hint)
    if origin is Literal:
        return f"one of {', '.join(str(one) for one in get_args(hint))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(range_of(part) for part in get_args(hint))
    if origin is typing.Annotated:
        return _number_range(hint)
    return KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def _number_range(hint: Any) -> str:
    """Kind of a number with its bounds, in words."""
    kind, *rest = get_args(hint)
    bounds = [bound for part in rest for bound in (part.metadata if isinstance(part, FieldInfo) else [part])]
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [f"{word} {getattr(b, key):g}" for b in bounds for key, word in words.items() if hasattr(b, key)]
    return ", ".join([range_of(kind), *limits])


def describe_methods() -> list[dict[str, Any]]:
    """Describe each method: name, paper, unit, what leaves a client, and for whom each variant's epsilon holds."""
    return [_description(name) for name in names()]


def describe_method(name: str) -> dict[str, Any]:
    """Describe one method, with its hyper-parameters; a user's own is known by its dotted name."""
    return _description(name) | {"hyperparameters": hyperparameters(find(name))}


def _description(name: str) -> dict[str, Any]:
    kind = find(name)
    variants = {}
    for variant in get_args(Variant):
        covered = all(release.private for release in all_releases(kind(variant=variant).steps()))
        variants[variant] = {"views": list(VIEWS) if covered else [], "caveat": kind.caveats.get(variant, "")}
    sent = {key: release.describe() for step in kind().steps().values() for key, release in step.items()}
    about = {"name": name, "title": getattr(kind, "title", name), "paper": getattr(kind, "paper", "")}
    return {**about, "unit": kind.unit, "releases": sent, "variants": variants}


def describe_models() -> list[dict[str, Any]]:
    """Describe each network: what it is, its size for the inputs of its paper, and its options with their defaults."""
    return [
        {
            "name": name,
            "about": network.about,
            "shape": list(network.shape),
            "classes": network.classes,
            "parameters": network.parameters,
            "options": {
                option.name: option.default
                for option in inspect.signature(network.make).parameters.values()
                if option.kind is option.KEYWORD_ONLY
            },
        }
        for name, network in NETWORKS.items()
    ]


LEVELS = {
    "client": "One whole client is protected",
    "record": "One record of a client is protected",
    "none": "Nothing is protected, or nothing leaves",
}
"""Headings by the unit that a method's default variant protects, in the order of the table."""
TABLE = re.compile(r"(<!-- methods -->\n).*?(<!-- end of methods -->)", re.DOTALL)
"""Marks around the table of methods in a text."""


def methods_markdown() -> str:
    """Markdown table of all methods, one part for each level."""
    parts = []
    for level, heading in LEVELS.items():
        rows = [_markdown_row(name) for name in names() if _level(name) == level]
        head = ["| name | what it does | published | what leaves a client |", "|---|---|---|---|"]
        parts += [f"{heading}:", "", *head, *rows, ""]
    return "\n".join(parts)


def methods_in_short() -> str:
    """Markdown table of the methods' names, those of a level in one row."""
    rows = [
        f"| {heading} | {', '.join(f'`{name}`' for name in names() if _level(name) == level)} |"
        for level, heading in LEVELS.items()
    ]
    return "\n".join(["| | methods |", "|---|---|", *rows, ""])


def with_table(text: str) -> str:
    """Replace the short table of methods in a text by a new one."""
    return TABLE.sub(lambda found: f"{found[1]}{methods_in_short()}{found[2]}", text)


def _level(name: str) -> str:
    method = find(name)()
    return method.unit if method.is_private() else "none"


def _markdown_row(name: str) -> str:
    kind = find(name)
    sound, paper = (_leaving(name, variant) for variant in get_args(Variant))
    leaves = sound if paper == sound else f"{sound}<br>`paper`: {paper}"
    return f"| `{name}` | {kind.title} | {kind.paper} | {leaves} |"


def _leaving(name: str, variant: Variant) -> str:
    """Names of the releases of a variant; those without noise are named apart."""
    sent = {key: r.private for step in find(name)(variant=variant).steps().values() for key, r in step.items()}
    noised, bare = (", ".join(key for key, private in sent.items() if private == kind) for kind in (True, False))
    return "; ".join(part for part in (noised, f"bare: {bare}" if bare else "") if part) or "nothing"
