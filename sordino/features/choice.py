"""Parser and validator of the experiment key `features`: `FeatureChoice` names a frozen feature extractor and its
settings; nothing is loaded here (`sordino.features.extractor` builds it)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sordino.errors import UserError, explain_invalid, quoted, unknown

SCATTERING = "scattering"
"""The extractor that comes with Sordino."""
NONE = "none"
"""Value of `features` where networks see the records themselves."""
PROGRAM = ".pt2"
"""Ending of a torch.export program."""
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".onnx")
"""Endings of files of weights, which make no network by themselves."""
EXAMPLE = 'features = "scattering", or "backbone.py:factory" for one of your own'


class FeatureChoice(BaseModel):
    """An extractor of features with its settings: a public function of one record, which nothing trains."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    extractor: str = Field(default=SCATTERING, min_length=1)
    """`scattering`, `package.module:factory` (or `backbone.py:factory`) for a network of your own, or a torch.export
    program `NAME.pt2`."""
    weights: Path | None = None
    """File of weights (safetensors): of your own network, or of a projection of scattering coefficients (`python -m
    sordino.features.projection`)."""
    digest: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the file of weights or of the program: another file is refused. A run writes it down."""
    trained_on: str | None = Field(default=None, pattern=r"\S")
    """Public data that weights were trained on, for the statement; `nothing` where they are random."""
    public: str | None = Field(default=None, min_length=1)
    """Public data set, of which the projection of scattering coefficients is made."""
    scales: int = Field(default=2, ge=1, le=6)
    """J: scattering coefficients are averages over 2^J pixels."""
    angles: int = Field(default=8, ge=1, le=16)
    """L: number of orientations of the wavelets."""
    pool: int = Field(default=3, ge=1, le=64)
    """Side to which maps of scattering coefficients are averaged, where they are larger."""
    width: int | None = Field(default=None, ge=1, le=65536)
    """Number of projected coefficients; by default 128 where clients are protected and 256 where records are."""
    projection: Literal["public", "random", "none"] | None = None
    """Projection of scattering coefficients: by principal components of `public` data, by random numbers, or none. By
    default `public`, with that of Fashion-MNIST which comes with Sordino, where it fits, else `random`."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of a random projection."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of your own factory."""

    @property
    def is_own(self) -> bool:
        """Whether the extractor is the user's own."""
        return self.extractor != SCATTERING

    @property
    def is_program(self) -> bool:
        """Whether the extractor is a torch.export program."""
        return self.extractor.endswith(PROGRAM)

    def document(self) -> dict[str, Any]:
        """The choice without the place of its file, as identities and models hold it."""
        return self.model_dump(mode="json", exclude={"weights"}, exclude_none=True)

    def describe(self) -> str:
        """The choice in one line, as the command line takes it."""
        chosen = self.model_dump(mode="json", exclude_defaults=True, exclude={"extractor", "digest", "options"})
        pairs = ",".join(f"{key}={value}" for key, value in {**chosen, **self.options}.items())
        return f"{self.extractor}:{pairs}" if pairs else self.extractor


SCATTERING_KEYS = ("public", "scales", "angles", "pool", "width", "projection", "seed")
"""Settings of scattering alone."""
COMMON = ("extractor", "weights", "digest", "trained_on")
"""Settings of all extractors."""
OWN_KEYS = ("options",)
"""Settings of the user's own extractors alone."""


def read_choice(value: Any) -> FeatureChoice | None:
    """Read the key `features`: a text such as `scattering:pool=3,width=128`, or a table; None for `none`."""
    if value is None or isinstance(value, FeatureChoice):
        return value
    if isinstance(value, str):
        value = parse(value)
    if not isinstance(value, Mapping):
        raise UserError(f"features cannot be {quoted(value)}: write {EXAMPLE}.")
    table = {key.replace("-", "_"): one for key, one in value.items() if one is not None}
    if table.get("extractor") == NONE:
        return None
    named = str(table.get("extractor", SCATTERING))
    if named != SCATTERING:
        if "options" not in table:  # settings stand beside the others: those of scattering may be arguments here
            table["options"] = {key: table.pop(key) for key in list(table) if key not in COMMON}
        _check_own_name(named)
        table["extractor"] = _module_name(named)
    try:
        choice = FeatureChoice(**table)
    except ValidationError as error:
        problem = error.errors()[0]
        key = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            raise unknown("setting of features =", key, FeatureChoice.model_fields) from error
        raise UserError(f"features.{key} cannot be {quoted(table.get(key))}: {explain_invalid(problem)}.") from error
    _check_settings(choice)
    return choice


def parse(text: str) -> dict[str, Any]:
    """Read `NAME:key=value,key=value`; NAME may hold a colon itself."""
    head, colon, tail = text.rpartition(":")
    if "=" not in tail:
        return {"extractor": text.strip()}
    if not colon:
        raise UserError(f"features = {quoted(text)} names no extractor: write {EXAMPLE}.")
    table: dict[str, Any] = {"extractor": head.strip()}
    for pair in tail.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise UserError(f"features = {quoted(text)}: settings are key=value, as in scattering:pool=3,width=128.")
        table[key.replace("-", "_")] = _value(value)
    return table


def merged(before: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key `features`, as a table of it alone, with some of its settings changed, as `--set
    features.width=64` does; nothing where nothing changes."""
    if not changes:
        return {}
    if isinstance(before, FeatureChoice):
        before = before.model_dump(exclude_none=True)
    table = parse(before) if isinstance(before, str) else dict(before or {})
    return {"features": {**table, **changes}}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def _module_name(name: str) -> str:
    """`folder/backbone.py:factory` as `folder.backbone:factory`."""
    where, colon, what = name.partition(":")
    if colon and where.endswith(".py"):
        where = where.removesuffix(".py").removeprefix("./").replace("/", ".")
    return f"{where}{colon}{what}"


def _check_own_name(name: str) -> None:
    if name.startswith(f"{SCATTERING}:"):
        raise UserError(f"features = {quoted(name)}: settings are key=value, as in scattering:pool=3,width=128.")
    where = name.partition(":")[0]
    if name.endswith(WEIGHTS):
        raise UserError(
            f"features = {quoted(name)} is a file of weights: name the code that makes the network, as in "
            "backbone.py:factory, and the file with features.weights."
        )
    if where.endswith(".py"):
        if ":" not in name:
            raise UserError(f"features = {quoted(name)} names no function of that file: write {name}:factory.")
        if where.startswith(("/", "~", "../")):
            raise UserError(
                f"features = {quoted(name)}: files of code are found from the current folder, as in "
                "backbone.py:factory or networks/backbone.py:factory. Start Sordino in the folder that holds the file."
            )
    if name.endswith(PROGRAM) or ":" in name or "." in name:
        return
    raise unknown("extractor of features called", name, [SCATTERING, NONE, "package.module:factory"])


def _check_settings(choice: FeatureChoice) -> None:
    """Refuse settings that the extractor does not have, or that contradict each other."""
    usual = FeatureChoice(extractor=choice.extractor)
    others = SCATTERING_KEYS if choice.is_own else OWN_KEYS
    for key in others:
        if getattr(choice, key) != getattr(usual, key):
            raise UserError(f"The extractor {choice.extractor!r} has no setting {key!r}: leave it out.")
    if choice.is_program and (choice.weights is not None or choice.options):
        raise UserError(f"The program {choice.extractor!r} holds its weights itself: leave out weights and options.")
    if choice.public is not None and choice.projection not in (None, "public"):
        raise UserError(
            f"features.public names data for a projection by principal components, and projection is "
            f"{choice.projection!r}: leave one of them out."
        )
    if (
        not choice.is_own
        and choice.weights is not None
        and (choice.public or choice.projection not in (None, "public"))
    ):
        raise UserError("features.weights is a projection already: leave out public and projection.")
    if choice.projection == "none" and choice.width is not None:
        raise UserError('features.projection = "none" keeps all coefficients: leave out width.')
