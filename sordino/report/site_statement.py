"""Privacy statement on a site, over all its runs: what its owner can show, from the site's own ledger alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sordino.deploy.site.judging import run_name
from sordino.deploy.site.ledger import Entry, SiteLedger, row_from
from sordino.deploy.site.rules import Rules, SitePolicy, read_rules
from sordino.deploy.site.spending import SiteSpending
from sordino.deploy.site.status import status as status_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.methods.bases import SIZES
from sordino.privacy.accounting.gaussian import attack_accuracy
from sordino.privacy.accounting.sampled_gaussian import record_attack_accuracy
from sordino.privacy.accounting.tradeoff import presumed
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.report.registry import RegistryEntry, blank_fields
from sordino.report.run_facts import audit_command, stand_ins
from sordino.report.site_page import page_of
from sordino.report.statement_blocks import StatementPage
from sordino.report.statement_facts import (
    NO_SUBGROUPS,
    WITHDRAWAL,
    AnnexRow,
    Fact,
    Observer,
    Recipient,
    annex_rows,
    observe,
    risk,
)
from sordino.report.unit_words import plain_words, words_for
from sordino.report.wording import with_full_stop
from sordino.store.spending import Spent, hits_of
from sordino.util.formatting import finite_or_none, join_names
from sordino.util.package import package_hash
from sordino.version import VERSION

WHO: dict[View, str] = {
    "outsider": "anybody who gets the models; also the server by itself, under the secure sum",
    "peer": "another site, which also knows its own part of the noise",
    "server": "the server together with all other sites; also a server that sees single messages",
}
OWN_MODEL = "This site's personal model stays here. Anybody who is given it may learn more about this site's records."
FOLDER = "Whoever has this site's machine or folder has everything: the figures are about what left."
TRAFFIC = "That this site took part, when, and how long its answers took, is not hidden."


@dataclass(frozen=True)
class SiteRun:
    """A run in which the site took part."""

    name: str
    method: str
    state: str
    """`open` or `done`."""
    rounds: int
    """Rounds for which something left."""
    left: dict[str, int]
    """Number of times that each release left."""
    epsilon: float | None
    """Cost of this run alone for the observer whom the site's limit is about; None where it is infinite."""
    metrics: dict[str, float | None] | None
    """Metrics of the site's model after this run, on its own test records."""


@dataclass(frozen=True)
class SiteStatement:
    """Content of the page."""

    site: str
    folder: str
    """The site's folder, as it was named."""
    identity: str
    fingerprint: str
    date: str
    started: str
    """The day on which the statement was written, in ISO 8601."""
    version: str
    package: str
    unit: Unit
    protects: str
    neighbours: str
    rows_not_persons: str
    delta: float
    limit: float | None
    """Largest epsilon of all runs together that the site's rules allow; None where there is no limit."""
    planned_for: View
    """Observer whom the limit is about."""
    spent: float | None
    """Epsilon that is spent or reserved for this observer."""
    observers: list[Observer]
    runs: list[SiteRun]
    mechanism: list[str]
    roster: list[str] | None
    """Sites whose noise counts; None where no roster is pinned."""
    min_cohort: int
    colluders: int
    trust: list[str]
    public: list[Fact]
    not_covered: list[str]
    warnings: list[str]
    """Sentences on what is wrong with the site or its ledger."""
    utility: list[str]
    recipients: list[Recipient]
    audit_command: str
    annex: list[AnnexRow]
    head: str
    rows: int

    def page(self) -> StatementPage:
        """Page for people."""
        return page_of(self)

    def document(self) -> dict[str, Any]:
        """Document for machines: all of the above, and the fields of the Deployments Registry, bound to the ledger."""
        registry = _registry(self)
        ledger = {"head": self.head, "rows": self.rows}
        return dataclasses.asdict(self) | {"ledger": ledger, "registry": registry, "blank": blank_fields(registry)}


def site_statement_of(folder: Path) -> SiteStatement:
    """Write the statement on the site in `folder`, over all its runs. Nothing is written, and nothing leaves."""
    policy, found = read_rules(folder), status_of(folder)
    with SiteLedger(folder) as ledger, ledger.snapshot():
        entries = ledger.entries()
        experiments = {one["run"]: json.loads(one["experiment"]) for one in ledger.runs()}
    rules, words = policy.rules, words_for(policy.rules.unit)
    spent = {view: SiteSpending.of(entries, view) for view in VIEWS}
    unknown = found["unwitnessed"] is not None
    observers = [_observe(view, spent[view], rules, unknown) for view in VIEWS]
    now = datetime.now(UTC)
    recipients = _recipients()
    last = next(reversed(experiments.values()), None)
    return SiteStatement(
        site=rules.name,
        folder=str(folder),
        identity=found["identity"],
        fingerprint=found["fingerprint"],
        date=now.strftime("%d %B %Y, %H:%M UTC"),
        started=now.isoformat(timespec="seconds"),
        version=VERSION,
        package=package_hash(),
        unit=rules.unit,
        protects=plain_words(rules.unit, rules.max_sites_per_person or 1),
        neighbours=found["neighbours"],
        rows_not_persons=found.get("rows_not_persons", ""),
        delta=rules.max_delta,
        limit=finite_or_none(rules.max_epsilon),
        planned_for=policy.view,
        spent=found["spent"][policy.view],
        observers=observers,
        runs=[_run(one, entries, policy) for one in found["runs"]],
        mechanism=_mechanism(entries, rules.unit, experiments),
        roster=None if policy.roster is None else [one.name for one in policy.roster],
        min_cohort=rules.min_cohort,
        colluders=rules.colluders,
        trust=_trust(policy),
        public=_public(experiments, rules.unit),
        not_covered=_not_covered(entries, found, rules.unit, experiments),
        warnings=warnings_of(found),
        utility=[
            "The figures below are of this site's own test records, and no noise is on them: they must stay here.",
            NO_SUBGROUPS,
        ],
        recipients=recipients,
        audit_command="sordino audit EXPERIMENT.toml" if last is None else _audit_command(last, rules.unit),
        annex=annex_rows(
            records=_records(policy),
            measures="Records stay at this site. What leaves is limited in size, covered by noise and entered in the "
            "ledger first; the site refuses what its rules do not allow.",
            recipients=recipients,
            storage="This folder keeps the ledger, the rules and the models; answers are kept until their run is over. "
            "The ledger must not be deleted: it is what the limit rests on. The witness, outside of the folder, "
            "keeps its end.",
            withdrawal=WITHDRAWAL,
            risk=risk(observers, policy.view, words),
        ),
        head=found["ledger"]["head"],
        rows=found["ledger"]["rows"],
    )


def _records(policy: SitePolicy) -> str:
    """Sentence on the site's file, and on the columns that are predicted, as far as its rules name them."""
    rules, agreed = policy.rules, policy.schema
    named = agreed.label_names if agreed is not None else (rules.label,) if rules.label else ()
    file = f"The file `{rules.data.name}`"
    if not named:
        return f"{file}."
    columns = join_names([f"`{name}`" for name in named])
    return f"{file}; the column{'s' if len(named) > 1 else ''} {columns} {'are' if len(named) > 1 else 'is'} predicted."


def _observe(view: View, spent: SiteSpending, rules: Rules, unknown: bool) -> Observer:
    """Describe an observer by all that has left or is reserved; of an `unknown` ledger nothing can be said."""
    epsilon = math.inf if unknown else spent.by_rules(rules)
    if math.isinf(epsilon):
        return observe(view, WHO[view], None, 1.0, None, lambda _: 1.0)
    attack, mu, hits = attack_curve(spent, rules.unit, rules.max_sites_per_person or 1)
    return observe(view, WHO[view], epsilon, attack, mu, hits)


def attack_curve(
    spent: SiteSpending, unit: Unit, sites: int = 1
) -> tuple[float, float | None, Callable[[float], float]]:
    """Best attack, mu and hits by false alarms, where all is covered by noise.

    A release of the site as a whole moves by up to twice its bound when one record is replaced; a person known to so
    many `sites` may move it at each of them. Noise behind reserved
    epsilons is presumed to be Gaussian.
    """
    mu = math.sqrt(spent.squares)
    if not unit.record_level:
        whole: Spent = {"unit": unit, "mu": [mu] * len(VIEWS), "recipes": []}
        return attack_accuracy(mu), mu, lambda false_alarms: hits_of(whole, spent.view, false_alarms)
    moved = 2 * sites if unit is Unit.PERSON else 2
    recipes = [[[1.0, 1 / (moved * mu), 1]]] if mu else []
    promise = (sum(one for one, _ in spent.reserved.values()), sum(one for _, one in spent.reserved.values()))
    records: Spent = {"unit": unit, "mu": [], "recipes": recipes, "promised": list(promise)}
    steps = tuple((rate, multiplier, int(count)) for recipe in recipes for rate, multiplier, count in recipe)
    attack = record_attack_accuracy((*steps, *presumed(promise, 1.0)))
    return attack, None, lambda false_alarms: hits_of(records, spent.view, false_alarms)


def _run(run: Mapping[str, Any], entries: Sequence[Entry], policy: SitePolicy) -> SiteRun:
    mine = [one for one in entries if _run_of(one) == run["run"]]
    rows = [row_from(one) for one in mine if one.kind == "release"]
    left = {name: sum(row.release == name for row in rows) for name in dict.fromkeys(row.release for row in rows)}
    cost = SiteSpending.of(mine, policy.view).by_rules(policy.rules)
    rounds = len({row.round for row in rows})
    return SiteRun(
        run_name(run["run"]), run["method"], run["state"], rounds, left, finite_or_none(cost), run["metrics"]
    )


def _run_of(entry: Entry) -> str | None:
    """Run that a row of the ledger charges."""
    if entry.kind == "release":
        return str(entry.content["ask"][0])
    return str(entry.content["run"]) if entry.kind == "reserve" else None


def _audited(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of an experiment at sites with which an audit attacks its method on other data."""
    made = Experiment.make(dict(experiment)).model_dump(mode="json")
    return {
        key: made[key] for key in ("method", "variant", "clients", "rounds", "epsilon", "delta", "protect_from", "set")
    }


def _audit_command(experiment: Mapping[str, Any], unit: Unit) -> str:
    """Command that attacks the method of an experiment at sites, on other data."""
    return audit_command(_audited(experiment)) + (stand_ins(experiment) if unit is Unit.PERSON else "")


def _mechanism(entries: Sequence[Entry], unit: Unit, experiments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sentences on limits, noise and the source of randomness."""
    rows = [row_from(one) for one in entries if one.kind == "release"]
    rates = [float(row.histories()[:, 0].max()) for row in rows if row.sampled and len(row.histories())]
    sampled = [rate for rate in rates if 0 < rate < 1]
    found = [
        "The mechanism is the Gaussian one: what leaves is limited in length, then normally distributed noise is added."
    ]
    if sampled:
        found.append(f"A {unit} enters a sum with a probability of at most {max(sampled):.3g}, by a secret coin.")
    if any(one.get("noise") == "integers" for one in experiments.values()):
        found.append("A run was a trial whose noise came from a seed that everybody knows: it protected nothing.")
    rounding = (
        "The gradients of records are added up in floating point before they are rounded; this one step lies outside "
        "the proof."
        if unit.record_level
        else "What left was rounded to whole numbers and limited again before noise was added; the proof covers that."
    )
    return [
        *found,
        "Random source: the cryptographic generator of this machine's operating system.",
        f"Numbers: noise is drawn in whole numbers, by an exact sampler. {rounding}",
        "Runs add up: whole-site releases by their mu^2, runs that protect rows or persons by the epsilon and delta "
        "that each reserved before its first answer.",
    ]


def _trust(policy: SitePolicy) -> list[str]:
    """Sentences on who has to be trusted with what, the most important one first."""
    rules = policy.rules
    own = "This site trusts its own machine, its copy of Sordino and the rules in its `site.toml`."
    if policy.roster is None:
        return [
            "Nobody but this site: no list of participants (roster) is pinned, so only its own noise is counted.",
            own,
        ]
    shared = "The server and the other sites must not pool what they know"
    if rules.colluders:
        shared = f"No more than {rules.colluders} other sites may pool what they know with the server"
    return [
        f"{shared}: they could take the noise away.",
        "If all other sites do so with the server, the figure of the server holds.",
        f"A message enters only sums of at least {rules.min_cohort} sites of the pinned roster: "
        f"{', '.join(one.name for one in policy.roster)}.",
        "A secure sum keeps single messages from the server, as long as AES, X25519 and HKDF hold. Outside "
        "cryptographers have not reviewed the protocol.",
        own,
    ]


def _public(experiments: Mapping[str, Mapping[str, Any]], unit: Unit) -> list[Fact]:
    """Facts that count as public, and who declares them so."""
    operator = "the experiments, by the server's operator"
    found = [
        Fact("which sites take part, and in which rounds", operator),
        Fact("methods, networks, numbers of rounds, limits and noise", operator),
        Fact("possible outcomes, columns, their ranges and values", operator),
    ]
    return (
        [*found, Fact(f"about how many {unit}s a site has", f"{operator} (`records_each`)")]
        if unit.record_level
        else found
    )


def _not_covered(
    entries: Sequence[Entry],
    found: Mapping[str, Any],
    unit: Unit,
    experiments: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Sentences on what no figure covers."""
    sizes = dict.fromkeys(one for made in experiments.values() for one in _discloses(made)) if unit.record_level else {}
    bare = dict.fromkeys(with_full_stop(row.reason) for row in map(row_from, _releases(entries)) if row.reason)
    count = found["misfits"]
    told = "time" if count == 1 else "times"
    misfits = (
        f"This site refused {count} {told} because of its data; each refusal told the server something without noise."
    )
    return [*bare, *([misfits] if count else []), OWN_MODEL, *sizes, TRAFFIC, FOLDER]


def _discloses(experiment: Mapping[str, Any]) -> list[str]:
    """Sentences on what the method of an experiment discloses; those of most methods where it is not here any more."""
    try:
        return Experiment.make(dict(experiment)).build_method().discloses()
    except UserError:
        return [SIZES]


def _releases(entries: Sequence[Entry]) -> list[Entry]:
    return [one for one in entries if one.kind == "release"]


def warnings_of(found: Mapping[str, Any]) -> list[str]:
    """Sentences on what is wrong with the site or its ledger."""
    told = []
    if found["unwitnessed"]:
        told.append(f"No figure can be given: the ledger does not agree with its witness. {found['unwitnessed']}")
    if found["spoiled"]:
        told.append(f"This site takes part no more: {with_full_stop(found['spoiled'])}")
    if found["doubtful"]:
        told.append("The ledger was accepted without a witness, and other sites have not confirmed it yet.")
    if found["rules_changed"]:
        told.append("The rules in site.toml, or the roster, have changed since this site was last open.")
    elif found["rules_changes"]:
        changes = found["rules_changes"]
        told.append(f"Its rules have changed {'once' if changes == 1 else f'{changes} times'} since it was made.")
    return told


def _recipients() -> list[Recipient]:
    """Who gets what, and what the figures say of it."""
    return [
        Recipient("What leaves this site", "the server", "the figures of this page"),
        Recipient("The shared models", "anybody", "the figure of the outsider"),
        Recipient("This site's personal model", "only this site", "nothing: it must stay here"),
        Recipient("This page", "those who may see figures of raw test records", "nothing: its metrics are not noised"),
    ]


def _registry(found: SiteStatement) -> dict[str, Any]:
    """Statement on a site in the registry's fields."""
    many = len(found.runs)
    names = ", ".join(f"{one.name} ({one.method})" for one in found.runs) or "none yet"
    return RegistryEntry(
        slug=found.site,
        name=f"Models that {found.site} took part in",
        description=f"Models trained by federated learning, seen from the site {found.site}. Runs: {names}.",
        date=found.started.split("T")[0],
        unit=found.unit,
        unit_details=f"{found.neighbours}. {found.rows_not_persons}".strip(),
        units=None,
        domain="Everything that the site's table may hold, as the experiments declare it.",
        public=found.public,
        not_covered=found.not_covered,
        observers=found.observers,
        planned_for=found.planned_for,
        delta=found.delta,
        model_details="The site trains on its own machine and adds its noise there.",
        trust=found.trust,
        recipients=found.recipients,
        releases=(
            "Many releases" if many > 1 else "One release",
            f"{many} {'run' if many == 1 else 'runs'}; all runs together may cost at most "
            f"{'any epsilon' if found.limit is None else f'epsilon {found.limit:g}'}, which the site enforces.",
        ),
        tuning="Settings come from the experiments. What the server's operator tried out on these data is in the "
        "ledger; what was tried out elsewhere is not counted.",
        mechanism=found.mechanism,
        composition=found.mechanism[-1],
        utility=["Accuracies stay at the site."],
        audit=f"Not audited here; {found.audit_command} attacks the method.",
        ledger=(f"sordino ledger {found.folder} --verify", found.head, found.rows),
        package=found.package,
    ).document()
