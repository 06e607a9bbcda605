"""Hyper-parameters by name: whose they are, what they may be, and the method that they make.

A key is a field of the method (`tau`, `method.tau`, `feddpa.tau`), or a setting of a field whose value is one of
several small dataclasses (`clipping=quantile`, `clipping.quantile=0.7`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sordino.errors import FAILURES, UserError, explain_invalid, quoted, unknown
from sordino.method import Method, Privacy, Variant
from sordino.methods import find, names
from sordino.parts.record_thresholds import RecordThreshold
from sordino.parts.thresholds import Threshold
from sordino.util.import_by_name import is_dotted, user_code_error
from sordino.util.selectable import Named, choices_of, settings

GROUP = "sordino.methods"
"""The entry points under which methods are installed."""
OWN = ("", "method")
"""Scopes that mean the experiment's own method."""
NAMED = 3
"""Most other methods that a sentence names."""
RULE = "rule"
"""The setting that names a field's kind in a table of its own: `[set.clipping]` with `rule = "quantile"`."""


@dataclass(frozen=True)
class Address:
    """Hyper-parameter that a key of the table `set` stands for."""

    owner: str
    """The method; empty for the experiment's own."""
    field: str
    setting: str | None
    """The setting of that field, where its value has settings of its own."""


def address(key: str) -> Address | None:
    """Find the hyper-parameter that a key of the table `set` stands for; None for an option of the network."""
    if key.startswith("model."):
        return None
    parts = key.split(".")
    for depth in (1, 2):
        scope, tail = ".".join(parts[:-depth]), parts[-depth:]
        if len(tail) == depth and (scope in OWN or is_method(scope)):
            return Address("" if scope in OWN else scope, tail[0], tail[1] if depth == 2 else None)
    raise unknown("setting", key, [f"{scope}.{parts[-1]}" for scope in ("method", "model", *names())])


def is_method(name: str) -> bool:
    """Whether there is a method called `name`."""
    try:
        find(name)
    except UserError:
        return False
    return True


def field_names(kind: type[Method]) -> set[str]:
    """The hyper-parameters of a method."""
    return {field.name for field in dataclasses.fields(kind)} - {"variant", "privacy"}


def check_known(key: str, methods: typing.Sequence[str], keys: typing.Sequence[str] = ()) -> None:
    """Refuse a key that none of the methods knows; `keys` are the experiment's own, one of which may be meant."""
    found = address(key)
    fields = set().union(*(field_names(find(name)) for name in methods))
    if found is not None and not found.owner and found.field not in fields:
        near = _near(found.field, keys)
        raise unknown("hyper-parameter of these methods called", found.field, {*fields, *near})


def concerns(key: str, method: str) -> bool:
    """Whether a key is for a method: it names the method or nobody, or is for the network."""
    found = address(key)
    return found is None or bool(found.owner) or found.field in field_names(find(method))


def make_method(
    method: str, variant: Variant, privacy: Privacy, table: Mapping[str, Any], keys: typing.Sequence[str] = ()
) -> Method:
    """The method with the hyper-parameters of `table`; those of other methods are checked, and left out.

    `keys` are the experiment's own, which stand in the same table: a name that is misspelt may be one of them.
    """
    by_owner: dict[str, dict[str, Any]] = {method: {}}
    for key, value in table.items():
        found = address(key)
        if found is None:
            continue
        owner = found.owner or method
        fields = field_names(find(owner))
        if found.field not in fields:
            raise _unknown(found, owner, fields, keys)
        place = by_owner.setdefault(owner, {})
        if found.setting is None:
            place[found.field] = value
        else:
            place.setdefault(f"{found.field}.", {})[found.setting] = value
    made = {owner: _converted(find(owner), chosen) for owner, chosen in by_owner.items()}
    try:
        done = find(method)(variant=variant, privacy=privacy, **made[method])
    except FAILURES as error:
        if not is_dotted(method):
            raise
        raise user_code_error(f"The method {method!r} cannot be made", error) from error
    rule = getattr(done, "clipping", None) if "clipping" in field_names(type(done)) else None
    if privacy == "none" and isinstance(rule, Threshold | RecordThreshold):
        return dataclasses.replace(done, clipping=rule.unprotected())  # type: ignore[call-arg]
    return done


def bracketed(name: str, settings: Mapping[str, Any]) -> str:
    """A method's name with settings in brackets, as comparisons take it: `feddpa[tau=2]`."""
    pairs = [f"{key}={value}" for key, value in settings.items()]
    return f"{name}[{','.join(pairs)}]" if pairs else name


def unusual_settings(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of a stored configuration that are not its method's defaults; all of them where the method
    is not here any more."""

    def made(table: Mapping[str, Any]) -> Method | None:
        with contextlib.suppress(UserError):
            return make_method(configuration["method"], configuration["variant"], configuration["privacy"], table)
        return None

    given = {key: value for key, value in configuration["set"].items() if not key.startswith("model.")}
    usual = made({})
    return {key: value for key, value in sorted(given.items()) if usual is None or made({key: value}) != usual}


def called(configuration: Mapping[str, Any], apart: Mapping[str, Any] | None = None) -> str:
    """Name of a run: its method, and in brackets the hyper-parameters that are not the method's defaults. `apart` are
    further settings that set it apart from runs beside it."""
    return bracketed(configuration["method"], {**(apart or {}), **unusual_settings(configuration)})


def _unknown(found: Address, owner: str, fields: typing.Collection[str], keys: typing.Sequence[str]) -> UserError:
    """The error for a hyper-parameter that a method does not have; its name may be a misspelt part of a longer key."""
    if found.setting is not None and not found.owner:  # perhaps no field was meant, but a method or the model
        places = ("method", "model", *names(), *fields)
        return unknown("setting", f"{found.field}.{found.setting}", [f"{place}.{found.setting}" for place in places])
    if found.owner:
        return unknown(f"hyper-parameter of {owner}", found.field, fields)
    others = [point.name for point in entry_points(group=GROUP) if found.field in field_names(point.load())]
    if others:
        shown = ", ".join(others[:NAMED]) + (" and others" if len(others) > NAMED else "")
        return UserError(
            f"{owner} has no hyper-parameter {found.field!r}; {shown} {'has' if len(others) == 1 else 'have'} one: "
            f"choose the method with --method, or leave {found.field} out."
        )
    return unknown(f"hyper-parameter of {owner}", found.field, {*fields, *_near(found.field, keys)})


def _near(given: str, keys: typing.Sequence[str]) -> list[str]:
    """Those keys of an experiment that somebody may have meant who wrote `given`."""
    return difflib.get_close_matches(given.lower(), keys, cutoff=0.75)


def _converted(kind: type[Method], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters in their declared types."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise user_code_error(
            f"The hyper-parameters of {kind.__name__} have types that are not known", error
        ) from error
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    made = {}
    for name in dict.fromkeys(key.removesuffix(".") for key in chosen):
        choice = choices_of(hints[name])
        if choice is not None:
            made[name] = _rule(name, choice, chosen.get(name), chosen.get(f"{name}.", {}), defaults[name])
        elif f"{name}." in chosen:
            raise UserError(f"The hyper-parameter {name} has no settings: leave {name}.{min(chosen[f'{name}.'])} out.")
        else:
            made[name] = _valid(name, hints[name], chosen[name])
    return made


def _rule(name: str, choice: Named, given: Any, table: Mapping[str, Any], default: Any) -> Any:
    """The value of a field that is one of several dataclasses, with settings of its own."""
    given = table.get(RULE, given)
    if given is not None and not isinstance(given, str):
        raise UserError(
            f"The hyper-parameter {name} cannot be {quoted(given)}: write one of {', '.join(choice.kinds)}."
        )
    chosen = choice.name(default) if given is None else given
    kind = choice.kind(chosen, name)
    own = settings(kind)
    for key in table:
        if key != RULE and key not in own:
            raise unknown(f"setting of {name} = {chosen}", key, own)
    values = {key: _valid(f"{name}.{key}", own[key], value) for key, value in table.items() if key != RULE}
    made = dataclasses.replace(default, **values) if given is None else kind(**values)
    if {"low", "high"} <= set(own) and not made.low < made.high:
        raise UserError(
            f"{name}.low is {made.low:g} and {name}.high is {made.high:g}: the first must be below the second."
        )
    return made


def _valid(name: str, hint: Any, value: Any) -> Any:
    try:
        found = TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        problem = explain_invalid(error.errors()[0])
        raise UserError(f"The hyper-parameter {name} cannot be {quoted(value)}: {problem}.") from error
    if isinstance(value, bool) and not isinstance(found, bool):  # Python takes True for 1
        raise UserError(f"The hyper-parameter {name} cannot be {quoted(value)}: it must be a number.")
    return found
