"""A site's rules (`site.toml`) and the checks that every message must pass before anything is computed.

A site trusts nobody: it derives noise and cost with its own code from the enrolled experiment, and refuses with one of
a few fixed sentences. Details go into the site's own log only, because the text of an error may reveal its data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from sordino.data.schema import Schema
from sordino.deploy.protocol.roster import Member, read_roster
from sordino.deploy.terms import CARRIED, DeployedTerms
from sordino.errors import UserError, explain_invalid, quoted
from sordino.experiment.config import FEATURES, SCHEMA, Experiment
from sordino.features.choice import SCATTERING
from sordino.features.projection import SHIPPED_DATA
from sordino.federation.message import Each
from sordino.models.networks import NETWORKS
from sordino.privacy.gate import Gate
from sordino.privacy.release import Public, Releases
from sordino.privacy.unit import Unit
from sordino.util.package import package_hash
from sordino.util.toml import read_toml
from sordino.version import VERSION

FILE = "site.toml"
MEGABYTE = 2**20

SENTENCES = {
    "message": "The site does not understand the message.",
    "protocol": "The site and the server speak different versions of the protocol.",
    "run": "The site does not know this run, or the run is over.",
    "experiment": "The site's rules do not allow this experiment.",
    "code": "The site's version of Sordino derives other terms from this experiment than the server's.",
    "data": "The site's data do not fit what the experiment declares.",
    "roster": "The cohort names a site that is not in this site's roster, or names a site twice.",
    "cohort": "The cohort is smaller or larger than the site's rules or the experiment allow.",
    "bounds": "The question is outside the site's rules: a bound, a shape or a number is not acceptable.",
    "old": "The question is older than one that the site has answered already.",
    "other": "The site has answered this question already, but then its content was different.",
    "survivors": "The site was given another list of survivors for this sum before, or the list is not acceptable.",
    "share": "A share of a mask was altered on its way, or is missing.",
    "unconfirmed": "The site waits until the other sites confirm its ledger.",
    "budget": "The site's privacy budget does not cover this question.",
    "restored": "The site's ledger lacks rows that others have seen: it was restored from a copy, or two of it exist.",
    "closed": "The site is closed: its ledger was altered, or it was restored from a copy.",
    "witness": "The witness of the site's ledger is missing, or has seen a newer ledger: its owner has to decide.",
    "disk": "The site cannot write to its ledger, so it spends nothing.",
    "failed": "The site failed on this question; its own log says why.",
    "misfits": "The site has refused too often because of its data: its owner has to raise `max_misfits`.",
}
"""Sentences with which a site refuses, by the code that is sent with each."""


class RefusedError(Exception):
    """A message that a site refuses."""

    def __init__(self, code: str, detail: object = "", **more: Any) -> None:
        """Refuse with a fixed sentence.

        Args:
            code: Key of `SENTENCES`; the server gets it with the sentence.
            detail: The reason in detail; it stays in the site's log.
            more: Further fields of the reply.
        """
        self.code, self.detail, self.more = code, str(detail), more
        super().__init__(f"{SENTENCES[code]} {self.detail}")


class MissingLimitsError(UserError):
    """Rules that lack limits."""

    def __init__(self, sentence: str, missing: Sequence[str]) -> None:
        """Say it in a `sentence`; `missing` are the keys."""
        super().__init__(sentence)
        self.missing = tuple(missing)


RULES_CHANGED = (
    "The rules in site.toml, or the roster that it names, have changed since this site was last open: check them "
    "before the site takes part."
)
LIMITS = {
    "unit": 'unit = "client", "record" or "person"',
    "max_epsilon": "max_epsilon = 4.0",
    "max_delta": "max_delta = 1e-5",
    "min_cohort": "min_cohort = 3",
    "methods": 'methods = ["dp-fedavg"]',
}
"""Limits that `site.toml` must set, each with an example. They have no defaults, so that a truncated file allows
nothing."""
WRITTEN = ("delimiter", "encoding", "decimal")
"""Keys that say how the site's table is written."""
NEWER_LIMITS = (
    "max_sampling",
    "max_rounds",
    "features",
    "feature_files",
    "person",
    "max_sites_per_person",
    "schema_file",
    *WRITTEN,
)
"""Keys that earlier versions did not know; where they are not set, the rules have the digest that these wrote."""


class Rules(BaseModel):
    """The keys of `site.toml`. Those in `LIMITS` have no defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str = Field(min_length=1, max_length=100)
    """Name of this site in rosters and messages."""
    data: Path
    """File with the site's records: CSV, Parquet or NPZ. The path may be relative to the site's folder."""
    label: str | None = None
    """Label column, where the file is a table."""
    schema_file: Path | None = Field(default=None, alias="schema")
    """File with the schema that this site's owner agreed to; an experiment with other columns is refused. The path may
    be relative to the site's folder."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    """Character between the cells of the table; by default as the experiment's schema says, or as the file looks."""
    encoding: str | None = None
    """Encoding of the table's text; by default likewise."""
    decimal: Literal[".", ","] | None = None
    """Character before the decimals of the table's numbers; by default likewise."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Fraction of the records kept for testing, where the file has no test records of its own."""
    unit: Unit
    """Unit of the guarantee: this site as a whole, each of its records, or each person with all of its records."""
    person: str | None = Field(default=None, min_length=1)
    """Column of the site's table, or array of its file, with codes of persons. An experiment that protects persons must
    name the same; needed where `unit` is `person`."""
    max_sites_per_person: int | None = Field(default=None, ge=1)
    """Largest number of sites that know one of this site's persons; one where this is missing. An experiment must
    declare at least as many."""
    max_epsilon: float = Field(gt=0)
    """Most that all runs on these data may cost together, as epsilon at `max_delta`."""
    max_delta: float = Field(gt=0, lt=1)
    """Delta at which `max_epsilon` holds."""
    min_cohort: int = Field(ge=1)
    """Smallest cohort with which this site lets its message be summed."""
    colluders: int = Field(default=0, ge=0)
    """Number of other sites assumed to work together with the server."""
    methods: tuple[str, ...] = Field(min_length=1)
    """Methods that may run here."""
    package: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the code that may run here (`sordino site status` shows it). Any code may where this is missing."""
    models: tuple[str, ...] | None = None
    """Networks that may be trained here; by default all that come with Sordino."""
    features: tuple[str, ...] | None = None
    """Extractors of features that may run here; by default those that come with Sordino."""
    feature_files: tuple[Path, ...] | None = None
    """Files with weights of extractors, or programs. An experiment names them by their SHA-256: one that is not here is
    refused. Paths may be relative to the site's folder."""
    clip: tuple[float, float] = (1e-6, 1e6)
    """Smallest and largest clipping threshold that is accepted."""
    max_sampling: float | None = Field(default=None, gt=0, le=1)
    """Largest probability with which a record may enter a sum over the sites' records; any where this is missing."""
    max_rounds: int | None = Field(default=None, ge=1)
    """Most rounds in which a run may ask this site, spare ones included; any number where this is missing."""
    roster: Path | None = None
    """File with the sites that may be in a cohort. Without it other sites' noise is not counted, since the server could
    have invented them."""
    witness: Path | None = None
    """Folder for the site's witness, outside the site's own; by default the user's state directory."""
    witnesses: int | None = Field(default=None, ge=1)
    """Number of other sites of the roster that must confirm the ledger before a run and after a restart; by default
    all."""
    allow_trusted_server: bool = False
    """Whether to accept experiments that trust the server to follow the protocol (`active_server = false`)."""
    max_message_mb: int = Field(default=512, ge=1, le=65536)
    """Size of the largest message that is read, in MiB."""
    max_misfits: int = Field(default=5, ge=1)
    """Number of refusals that may depend on the data, over all runs. Each tells the server something about them without
    noise: asking often enough would reveal which values occur."""

    @model_validator(mode="after")
    def _names_persons(self) -> Rules:
        if self.unit is Unit.PERSON and self.person is None:
            raise ValueError('unit = "person" needs `person`, the column with the codes of persons')
        return self


@dataclass(frozen=True)
class SitePolicy:
    """A site's rules and its roster, with the checks that follow from them."""

    rules: Rules
    roster: tuple[Member, ...] | None
    schema: Schema | None = None
    """The schema that the owner agreed to."""

    @property
    def view(self) -> Literal["outsider", "server"]:
        """View whose epsilon counts against the budget. Without a pinned roster other sites' noise is not counted."""
        return "server" if self.roster is None else "outsider"

    def digest(self, secret: bytes) -> str:
        """Digest of the rules and the roster, keyed with the site's `secret` so that it reveals nothing about them."""
        members = None if self.roster is None else [[one.name, one.identity.hex()] for one in self.roster]
        unset = {name for name in NEWER_LIMITS if getattr(self.rules, name) is None}
        told = [self.rules.model_dump(mode="json", exclude=unset), members]
        told += [] if self.schema is None else [self.schema.document()]
        stated = json.dumps(told, sort_keys=True)
        return hmac.new(secret, b"rules" + stated.encode(), hashlib.sha256).hexdigest()

    def check_experiment(self, carried: Mapping[str, Any]) -> None:
        """Refuse an experiment whose names would load code that the owner did not allow.

        `carried` is the experiment as the server sent it. It is checked before anything is built from it.
        """
        method, model, settings = carried.get("method"), carried.get("model"), carried.get("set", {})
        networks = list(NETWORKS) if self.rules.models is None else self.rules.models
        if method not in self.rules.methods:
            raise RefusedError("experiment", f"the method {quoted(method)} is not among `methods`")
        if model not in networks:
            raise RefusedError("experiment", f"the network {quoted(model)} is not among `models`")
        self._check_features(carried.get("features"))
        if not isinstance(settings, Mapping):
            raise RefusedError("message", "its settings are not a table")
        strange = [key for key in settings if not isinstance(key, str) or ":" in key or _is_key(key)]
        if strange:
            raise RefusedError("experiment", f"the setting {quoted(strange[0])} names code or a file")
        if not set(carried) <= set(CARRIED):
            raise RefusedError("experiment", "it has keys that a deployed experiment does not have")

    def _check_features(self, given: Any) -> None:
        """Refuse an extractor that the owner did not allow, or one that names a file of the server's."""
        if given is None:
            return
        if not isinstance(given, Mapping) or not isinstance(given.get("extractor"), str):
            raise RefusedError("message", "its features are not a table")
        allowed = (SCATTERING,) if self.rules.features is None else self.rules.features
        if given["extractor"] not in allowed:
            raise RefusedError("experiment", f"the features {quoted(given['extractor'])} are not among `features`")
        if given.get("weights") is not None or given.get("public") not in (None, SHIPPED_DATA):
            raise RefusedError("experiment", "its features name a file or data, but a site opens none that others name")

    def _check_unit(self, terms: DeployedTerms) -> None:
        """Refuse an experiment that protects something else than the rules say."""
        unit, rules = terms.unit, self.rules
        if not unit.record_level:
            return
        if not rules.unit.record_level:
            raise RefusedError(
                "experiment", "it protects records, but `unit` says that this site as a whole is to be protected"
            )
        if unit is not rules.unit:
            raise RefusedError("experiment", f"it protects one {unit}, but `unit` says {rules.unit}")
        if terms.persons is None:
            return
        if terms.persons.column != rules.person:
            named = f"{terms.persons.column!r}, but `person` says {rules.person!r}"
            raise RefusedError("experiment", f"it tells persons apart by {named}")
        known = rules.max_sites_per_person or 1
        if terms.sites < known:
            raise RefusedError(
                "experiment",
                f"it presumes that a person is known to {terms.sites} of the sites, but a person of this one may be "
                f"known to {known} (max_sites_per_person)",
            )

    def check_terms(self, terms: DeployedTerms, number: int) -> None:
        """Refuse an experiment whose terms are outside the rules; `number` is this site's client number."""
        rules, experiment = self.rules, terms.experiment
        if self.schema is not None:
            _check_schema(self.schema, experiment.table)
        sums = terms.allowance.record_sums
        self._check_unit(terms)
        models = 2 if experiment.personal == "blend" else 1  # at the end: the server's, and its mean over the rounds
        if models * terms.initial.nbytes > rules.max_message_mb * MEGABYTE:
            raise RefusedError("experiment", f"its messages are larger than max_message_mb, {rules.max_message_mb}")
        if rules.max_rounds is not None and terms.turns > rules.max_rounds:
            raise RefusedError(
                "experiment", f"it asks this site in up to {terms.turns} rounds, but max_rounds is {rules.max_rounds}"
            )
        if sums is not None:
            rate = float(sums.sampling[number])
            if rules.max_sampling is not None and rate > rules.max_sampling:
                raise RefusedError(
                    "experiment",
                    f"it samples records with probability {rate:g}, but max_sampling is {rules.max_sampling:g}",
                )
        if terms.allowance.records is None or sums is not None:  # others' noise adds to this site's
            if terms.minimum < rules.min_cohort:
                raise RefusedError("cohort", f"minimum_cohort is {terms.minimum}, but min_cohort is {rules.min_cohort}")
            if experiment.colluders < rules.colluders and experiment.protect_from == "outsider":
                raise RefusedError(
                    "experiment",
                    f"it assumes at most {experiment.colluders} colluders, but `colluders` is {rules.colluders}",
                )
            if not experiment.active_server and not rules.allow_trusted_server:
                raise RefusedError(
                    "experiment", "it trusts the server to follow the protocol, but allow_trusted_server is false"
                )

    def check_members(self, identities: Sequence[bytes]) -> None:
        """Refuse a cohort with a site that is not in the pinned roster; `identities` are its sites' public keys."""
        if self.roster is None:
            return
        known = {member.identity for member in self.roster}
        if not set(identities) <= known:
            raise RefusedError("roster", "a site of the cohort is not in the roster")

    def check_question(self, terms: DeployedTerms, releases: Releases, public: Public, gate: Gate) -> None:
        """Refuse a question whose bounds are outside the rules or whose message holds numbers that are not finite.

        Args:
            terms: The run's terms.
            releases: Releases of the question's step.
            public: The message and the other public values that bounds depend on.
            gate: The site's gate, which would release the answer.
        """
        check_finite(public.message)
        model = public.message.get("global")
        if model is not None and (not isinstance(model, Tensor) or model.shape != terms.initial.shape):
            raise RefusedError("bounds", "the model does not have as many parameters as this network")
        try:
            for release in releases.values():
                width = release.width(public)
                cover = None if width is None else release.cover(width, gate.allowance, public)
                taken = release.thresholds(public)
                if release.summed and cover is None:
                    raise RefusedError("bounds", "a release has no bound")
                of_records = cover is not None and cover.unit.record_level
                if of_records and release.summed and not 0 < (width or 0) <= terms.widest:
                    raise RefusedError("bounds", f"a sum over records has {width} entries, not 1 to {terms.widest}")
                if taken is not None:
                    self._check_bounds(taken.rows)
                elif cover is not None and not of_records and release.bounded_by():
                    self._check_bounds(cover.bounds)
            gate.check(releases, public)
        except (UserError, TypeError, ValueError, RuntimeError, KeyError) as error:  # a bound may be of any type
            raise RefusedError("bounds", error) from error

    def _check_bounds(self, bounds: Tensor) -> None:
        low, high = self.rules.clip
        outside = bounds[~(torch.isfinite(bounds) & (bounds >= low) & (bounds <= high))]
        if len(outside):
            raise RefusedError(
                "bounds",
                f"a clipping threshold is {float(outside[0]):g}, not between {low:g} and {high:g} as `clip` demands",
            )


def _check_schema(agreed: Schema, given: Schema | None) -> None:
    """Refuse columns that the owner did not agree to, before the records are looked at."""
    if given is None:
        raise RefusedError("experiment", "it declares no schema, but `schema` names the one that this site agreed to")
    names = [*agreed.columns, *(name for name in given.columns if name not in agreed.columns)]
    other = [name for name in names if agreed.columns.get(name) != given.columns.get(name)]
    if other:
        raise RefusedError("experiment", f"the column {other[0]!r} of its schema is not what `schema` says")
    if list(given.columns) != list(agreed.columns) or given.missing_cells != agreed.missing_cells:
        raise RefusedError(
            "experiment", "its schema has another order of columns, or other missing_cells, than the one in `schema`"
        )


def _is_key(name: str) -> bool:
    """Whether a setting has the name of an experiment's key, or of a part of one; some of these name files or code."""
    return name.replace("-", "_") in {*Experiment.model_fields, SCHEMA} or name.startswith(FEATURES)


def check_finite(value: Any) -> None:
    """Refuse a message that holds a number that is not finite, at any depth."""
    if isinstance(value, Each):
        value = value.values
    if isinstance(value, Tensor):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise RefusedError("bounds", "a tensor of the message is not finite")
    elif isinstance(value, Mapping):
        for one in value.values():
            check_finite(one)
    elif isinstance(value, list | tuple):
        for one in value:
            check_finite(one)
    elif isinstance(value, float) and not math.isfinite(value):
        raise RefusedError("bounds", "a number of the message is not finite")


def read_rules(folder: Path) -> SitePolicy:
    """Read and check the rules of the site in a folder, and its roster."""
    path = folder / FILE
    try:
        rules = Rules(**read_toml(path))
    except FileNotFoundError as error:
        within = sorted(str(path.parent) for path in folder.glob(f"*/{FILE}"))
        if within:
            raise UserError(
                f"{folder} is no site, but has sites in it: name one, as in {quoted(within[0])}."
            ) from error
        raise UserError(f"There is no site in {folder}: `sordino site init` makes one.") from error
    except ValidationError as error:
        missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
        if missing:
            raise MissingLimitsError(_missing_limits(path, missing), missing) from error
        unknown_keys = [str(one["loc"][0]) for one in error.errors() if one["type"] == "extra_forbidden"]
        if unknown_keys:
            raise UserError(
                f"{path}: Sordino {VERSION} does not know {quoted(unknown_keys[0])}: correct the key, or install the "
                "newer version that wrote it."
            ) from error
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"{path}: invalid value for {key or 'a key'}: {explain_invalid(problem)}.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    low, high = rules.clip
    if not 0 < low <= high < math.inf:
        raise UserError(f"{path}: clip must be two finite numbers above 0, the smaller one first.")
    if rules.package not in (None, package_hash()):
        raise UserError(
            f"{path} allows only the version of Sordino's code with the hash {rules.package}, but {package_hash()} is "
            "installed: install the allowed version, or review the installed one and write its hash there."
        )
    roster = None if rules.roster is None else tuple(read_roster(folder / rules.roster))
    if rules.witnesses is not None:
        _check_witnesses(path, rules.witnesses, rules.colluders, roster)
    return SitePolicy(rules, roster, None if rules.schema_file is None else Schema.read(folder / rules.schema_file))


def _missing_limits(path: Path, missing: Sequence[str]) -> str:
    examples = ", ".join(LIMITS.get(key, f"{key} = ...") for key in missing)
    return (
        f"{path} lacks {', '.join(missing)}: a site's limits have no defaults, so that a truncated file "
        f"allows nothing. Write what this site allows, as in: {examples}. For a site that version 0.4 made, "
        f"`sordino site migrate {shlex.quote(str(path.parent))}` writes what that version took for granted."
    )


def min_witnesses(sites: int, colluders: int) -> int:
    """Smallest number of other sites that may confirm a ledger.

    Any two groups of that many, of `sites` sites, share a site that does not collude.
    """
    return -(-(sites + colluders) // 2)


def _check_witnesses(path: Path, witnesses: int, colluders: int, roster: Sequence[Member] | None) -> None:
    """Refuse a number of witnesses so small that two groups of them need not share an honest site."""
    if roster is None:
        raise UserError(
            f"{path}: `witnesses` need a roster, because without one the server could invent them: set `roster`."
        )
    sites = len(roster)
    least = min_witnesses(sites, colluders)
    if not least <= witnesses < sites:
        raise UserError(
            f"{path}: witnesses is {witnesses}, but of {sites} sites, {colluders} of them colluders, at least "
            f"{least} others must confirm a ledger, and there are {sites - 1}."
        )
