"""Check of an experiment at a site alone, before anybody asks: would the site take part, and what would it cost?

Nothing leaves the site, nothing is paid, and a refusal because of the data is not counted: it tells nobody anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.deploy.protocol import keys
from sordino.deploy.site.data import encode_records, read_records
from sordino.deploy.site.enrol import check_first_questions
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.rules import SENTENCES, RefusedError, SitePolicy, read_rules
from sordino.deploy.site.session import reservation_entry
from sordino.deploy.site.spending import SiteSpending, check_reservation
from sordino.deploy.terms import DeployedTerms, terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.unit import Unit
from sordino.util.formatting import finite_or_none


@dataclass(frozen=True)
class SiteCheck:
    """Answer of a site to an experiment, for its owner."""

    site: str
    refusal: str | None
    """Sentences on why the site would refuse; None where it would take part."""
    records: dict[str, int]
    """Numbers of the site's records for training (`train`) and for testing (`test`), and, where persons are protected,
    of `persons` in training; empty where its data were not looked at."""
    terms: DeployedTerms
    number: int
    """Client number of the site: its place in the pinned roster, or 0."""
    max_epsilon: float
    spent: float
    """Epsilon that runs have spent or reserved so far, for the view that `max_epsilon` limits."""
    promised: str
    """That view."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the check."""
        sums = self.terms.allowance.record_sums
        cost = None if self.terms.allowance.records is None else self.terms.reserved(self.number)
        return {
            "site": self.site,
            "allowed": self.refusal is None,
            "refusal": self.refusal,
            "records": self.records,
            "records_declared": self.terms.experiment.records_each,
            "rounds": self.terms.turns,
            "sampling": None if sums is None else float(sums.sampling[self.number]),
            "unit": self.terms.unit,
            "epsilon": None if cost is None else {view: finite_or_none(value) for view, value in cost.items()},
            "delta": self.terms.budget.delta,
            "promised": self.promised,
            "max_epsilon": finite_or_none(self.max_epsilon),
            "spent": finite_or_none(self.spent),
        }


def check_experiment(folder: Path, experiment: Experiment) -> SiteCheck:
    """Check an experiment by the rules, the data and the budget of the site in `folder`."""
    policy, terms = read_rules(folder), terms_of(experiment)
    with SiteLedger(folder) as ledger, ledger.snapshot():
        identity, secret = keys.public_identity(ledger.fact("identity")), ledger.fact("secret")
        entries = ledger.entries()
    number, records = _place(policy, identity, terms), dict[str, int]()
    refusal = None
    try:
        policy.check_experiment(terms.carried())
        policy.check_terms(terms, number)
        check_first_questions(terms, number, policy)
        data = encode_records(read_records(folder, policy.rules), terms, policy.rules, secret)
        records = {"train": int(data.train.sizes[number]), "test": int(data.test.sizes[number])}
        if terms.unit is Unit.PERSON:
            records["persons"] = int(data.train.units[number])
        _check_data(terms, number, int(data.train.units[number]), data.people)
        if terms.allowance.records is not None:
            check_reservation(entries, reservation_entry("a run to come", terms, number), policy)
    except RefusedError as refused:
        refusal = explain(refused)
    spent = SiteSpending.of(entries, policy.view).by_rules(policy.rules)
    limits = (policy.rules.max_epsilon, spent, policy.view)
    return SiteCheck(policy.rules.name, refusal, records, terms, number, *limits)


def explain(refused: RefusedError) -> str:
    """Sentence with which a site refuses, and the reason in detail, for its owner alone."""
    detail = refused.detail[:1].upper() + refused.detail[1:]
    return f"{SENTENCES[refused.code]} {detail}{'' if detail.endswith('.') or not detail else '.'}".rstrip()


def _place(policy: SitePolicy, identity: bytes, terms: DeployedTerms) -> int:
    """Client number of the site: its place in the roster, as far as the experiment has so many clients."""
    known = [one.identity for one in policy.roster or ()]
    place = known.index(identity) if identity in known else 0
    return place if place < terms.schedule.clients else 0


def _check_data(terms: DeployedTerms, number: int, records: int, people: Any) -> None:
    """Refuse records that do not fit the experiment."""
    try:
        terms.method.check_data(people)
        terms.at_site(number, records)
    except UserError as error:
        raise RefusedError("data", error) from error
