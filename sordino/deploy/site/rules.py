"""What a site's owner allows: `site.toml`, and the checks that every message has to pass before anything is computed.

A site takes nobody's word: it works out noise and cost with its own code from the enrolled experiment, and refuses with
one of a few fixed sentences. Why in detail stands in its own log, because the text of an error may tell of its data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from sordino.deploy.protocol.keys import package_hash
from sordino.deploy.protocol.roster import Member, read_roster
from sordino.deploy.terms import CARRIED, DeployedTerms
from sordino.errors import UserError, quoted
from sordino.experiment.config import SCHEMA, Experiment
from sordino.federation.message import Each
from sordino.models.networks import NETWORKS
from sordino.privacy.gate import Gate
from sordino.privacy.release import Public, Releases
from sordino.util.toml import read_toml

FILE = "site.toml"
MEGABYTE = 2**20

SENTENCES = {
    "message": "The message is not one that this site understands.",
    "protocol": "The site and the server speak different versions of the protocol.",
    "run": "The site does not know this run, or it is over.",
    "experiment": "The site's rules do not allow this experiment.",
    "code": "The site's version of Sordino makes something else of this experiment than the server's.",
    "data": "The site's data do not fit what the experiment declares.",
    "roster": "The cohort names somebody whom the site does not know, or names somebody twice.",
    "cohort": "The cohort is smaller than the site's rules or the experiment allow, or larger than it says.",
    "bounds": "The question is outside of the site's rules: a bound, a shape or a number is not acceptable.",
    "old": "The question is older than one that the site has answered.",
    "other": "The site has answered this question with another content.",
    "survivors": "The site has been told of other survivors of this sum, or these are not acceptable.",
    "share": "A share was altered on its way, or is missing.",
    "unconfirmed": "The site waits until the other sites confirm where its ledger ends.",
    "budget": "The site's budget does not pay for this question.",
    "restored": "The site's ledger is behind what is known of it: it was restored from a copy, or there are two of it.",
    "closed": "The site is closed: its ledger was altered, or it was restored from a copy.",
    "witness": "The witness of the site's ledger is missing, or knows a newer one: its owner has to decide.",
    "disk": "The site cannot write down what it would spend.",
    "failed": "The site could not work on this question; its log says why.",
    "misfits": "The site has said too often that something does not fit its data: its owner has to decide.",
}
"""Everything that a site says when it does not answer, by a short name."""


class RefusedError(Exception):
    """A message that a site does not answer."""

    def __init__(self, code: str, detail: object = "", **more: Any) -> None:
        """`detail` stays at the site; `more` goes with the sentence."""
        self.code, self.detail, self.more = code, str(detail), more
        super().__init__(f"{SENTENCES[code]} {self.detail}")


RULES_CHANGED = (
    "The rules in site.toml, or the roster that it names, are not those under which this site was last open: read them "
    "before it takes part."
)
LIMITS = {
    "unit": 'unit = "client", or "record"',
    "max_epsilon": "max_epsilon = 4.0",
    "max_delta": "max_delta = 1e-5",
    "min_cohort": "min_cohort = 3",
    "methods": 'methods = ["dp-fedavg"]',
}
"""Keys without which a site does not open, each with an example: a truncated file must not allow more."""


class Rules(BaseModel):
    """The keys of `site.toml`. Those in `LIMITS` have no defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=100)
    """What others call this site."""
    data: Path
    """The file with the site's records: CSV, Parquet or NPZ; relative to the site's folder."""
    label: str | None = None
    """The label column of a table."""
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """The share of the records that is kept for testing, where the file has no test records of its own."""
    unit: Literal["client", "record"]
    """What is to be protected: this site as a whole, or each of its records."""
    max_epsilon: float = Field(gt=0)
    """What all runs on these data may cost together."""
    max_delta: float = Field(gt=0, lt=1)
    """At this delta."""
    min_cohort: int = Field(ge=1)
    """The fewest sites with which this one lets itself be added up."""
    colluders: int = Field(default=0, ge=0)
    """How many other sites may work together with the server, for all that this one knows."""
    methods: tuple[str, ...] = Field(min_length=1)
    """The methods that may be run here."""
    package: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the code that the owner has looked at (`sordino site status`): with another the site does not open."""
    models: tuple[str, ...] | None = None
    """The networks that may be trained here; without it, all that come with Sordino."""
    clip: tuple[float, float] = (1e-6, 1e6)
    """Between which clipping thresholds must lie."""
    roster: Path | None = None
    """The file with the sites that may be in a cohort. Without it nobody else's noise is counted on: the server could
    have invented them."""
    witness: Path | None = None
    """The folder with the site's witness, outside of the site's own; without it, the user's state directory."""
    witnesses: int | None = Field(default=None, ge=1)
    """Number of other sites of the roster that must confirm the ledger before a run and after a restart; by default
    all."""
    allow_trusted_server: bool = False
    """Whether experiments are accepted that take the server to follow the protocol: `active_server = false`."""
    max_message_mb: int = Field(default=512, ge=1, le=65536)
    """The largest message that is read."""
    max_misfits: int = Field(default=5, ge=1)
    """How often a server is told that an experiment does not fit the data, or that a question fails on them. Each time
    tells it something of them, without noise: by asking often enough it could find out which values occur."""


@dataclass(frozen=True)
class Allowed:
    """A site's rules as they were read, with its roster."""

    rules: Rules
    roster: tuple[Member, ...] | None

    @property
    def view(self) -> Literal["outsider", "server"]:
        """Whose epsilon is promised: without a roster that the owner pinned, others' noise is not counted on."""
        return "server" if self.roster is None else "outsider"

    def digest(self, secret: bytes) -> str:
        """A digest of the rules and the roster that tells nothing to whoever does not know the secret."""
        members = None if self.roster is None else [[one.name, one.identity.hex()] for one in self.roster]
        stated = json.dumps([self.rules.model_dump(mode="json"), members], sort_keys=True)
        return hmac.new(secret, b"rules" + stated.encode(), hashlib.sha256).hexdigest()

    def check_experiment(self, carried: Mapping[str, Any]) -> None:
        """Refuse what must not even be looked at closely: names that would load code which nobody allowed."""
        method, model, settings = carried.get("method"), carried.get("model"), carried.get("set", {})
        networks = list(NETWORKS) if self.rules.models is None else self.rules.models
        if method not in self.rules.methods:
            raise RefusedError("experiment", f"the method {quoted(method)} is not among `methods`")
        if model not in networks:
            raise RefusedError("experiment", f"the network {quoted(model)} is not among `models`")
        if not isinstance(settings, Mapping):
            raise RefusedError("message", "its settings are no table")
        strange = [key for key in settings if not isinstance(key, str) or ":" in key or _is_key(key)]
        if strange:
            raise RefusedError("experiment", f"the setting {quoted(strange[0])} names code or a file")
        if not set(carried) <= set(CARRIED):
            raise RefusedError("experiment", "it has keys that mean nothing here")

    def check_terms(self, terms: DeployedTerms) -> None:
        """Refuse an experiment that is outside of the rules."""
        rules, experiment = self.rules, terms.experiment
        if terms.method.unit == "record" and rules.unit == "client":
            raise RefusedError("experiment", "it protects records, but this site as a whole is to be protected")
        models = 2 if experiment.personal == "blend" else 1  # at the end: the server's, and its mean over the rounds
        if models * terms.initial.nbytes > rules.max_message_mb * MEGABYTE:
            raise RefusedError("experiment", f"its messages are larger than max_message_mb, {rules.max_message_mb}")
        if terms.method.unit == "client":
            if terms.minimum < rules.min_cohort:
                raise RefusedError("cohort", f"minimum_cohort is {terms.minimum}, but min_cohort {rules.min_cohort}")
            if experiment.colluders < rules.colluders and experiment.protect_from == "outsider":
                raise RefusedError("experiment", f"it counts on {experiment.colluders} colluders at the most")
            if not experiment.active_server and not rules.allow_trusted_server:
                raise RefusedError("experiment", "it trusts the server to follow the protocol")

    def check_members(self, identities: Sequence[bytes]) -> None:
        """Refuse a cohort with somebody whom the owner did not pin."""
        if self.roster is None:
            return
        known = {member.identity for member in self.roster}
        if not set(identities) <= known:
            raise RefusedError("roster", "a site of the cohort is not in the roster")

    def check_question(self, terms: DeployedTerms, releases: Releases, public: Public, gate: Gate) -> None:
        """Refuse bounds that are not numbers within the rules, and messages that hold anything but finite numbers."""
        check_finite(public.message)
        model = public.message.get("global")
        if model is not None and (not isinstance(model, Tensor) or model.shape != terms.initial.shape):
            raise RefusedError("bounds", "the model is not of this network's size")
        try:
            for release in releases.values():
                width = release.width(public)
                cover = None if width is None else release.cover(width, gate.allowance, public)
                bounds = release.thresholds(public) if cover is None else cover.bounds
                if release.unit == "client" and cover is None:
                    raise RefusedError("bounds", "nothing covers a release")
                if bounds is not None and release.bounded_by() + (("",) if release.made_of_gradients else ()):
                    self._check_bounds(bounds)
            gate.check(releases, public)
        except (UserError, TypeError, ValueError, RuntimeError, KeyError) as error:  # a bound that is no number at all
            raise RefusedError("bounds", error) from error

    def _check_bounds(self, bounds: Tensor) -> None:
        low, high = self.rules.clip
        if not bool((torch.isfinite(bounds) & (bounds >= low) & (bounds <= high)).all()):
            raise RefusedError("bounds", f"a threshold is not between {low:g} and {high:g}")


def _is_key(name: str) -> bool:
    """Whether a setting is really a key of the experiment, of which some name files."""
    return name.replace("-", "_") in {*Experiment.model_fields, SCHEMA}


def check_finite(value: Any) -> None:
    """Refuse a message in which any number is not finite."""
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


def read_rules(folder: Path) -> Allowed:
    """The rules of the site in a folder."""
    path = folder / FILE
    try:
        rules = Rules(**read_toml(path))
    except FileNotFoundError as error:
        raise UserError(f"There is no site in {folder}: `sordino site init` makes one.") from error
    except ValidationError as error:
        missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
        if missing:
            raise UserError(_lacking(path, missing)) from error
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"{path}: invalid value for {key or 'a key'}: {problem['msg'].lower()}.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    low, high = rules.clip
    if not 0 < low <= high < math.inf:
        raise UserError(f"{path}: clip must be two finite numbers above 0, the smaller one first.")
    if rules.package not in (None, package_hash()):
        raise UserError(
            f"{path} allows Sordino's code with the hash {rules.package} only, but {package_hash()} is installed: "
            "install that one, or look at this one and write its hash there."
        )
    roster = None if rules.roster is None else tuple(read_roster(folder / rules.roster))
    if rules.witnesses is not None:
        _check_witnesses(path, rules.witnesses, rules.colluders, roster)
    return Allowed(rules, roster)


def _lacking(path: Path, missing: Sequence[str]) -> str:
    examples = ", ".join(LIMITS.get(key, f"{key} = ...") for key in missing)
    return (
        f"{path} lacks {', '.join(missing)}: a site's limits have no defaults, so that a file that was cut short "
        f"allows nothing. Write what this site allows, as in: {examples}."
    )


def least_witnesses(sites: int, colluders: int) -> int:
    """Number of others that must confirm a ledger, so that any two such groups share a site that does not collude."""
    return -(-(sites + colluders) // 2)


def _check_witnesses(path: Path, witnesses: int, colluders: int, roster: Sequence[Member] | None) -> None:
    """Refuse a quorum so small that two of them need not share an honest site."""
    if roster is None:
        raise UserError(f"{path}: witnesses need a roster: without one the server could invent them.")
    sites = len(roster)
    least = least_witnesses(sites, colluders)
    if not least <= witnesses < sites:
        raise UserError(
            f"{path}: witnesses is {witnesses}, but of {sites} sites, {colluders} of them colluders, at least "
            f"{least} others must confirm a ledger, and there are {sites - 1}."
        )
