"""Statements in the fields of the Differential Privacy Deployments Registry, tiers 2 and 3.

The registry (https://registry.opendp.org, proposed to be hosted by NIST) describes deployments of differential privacy
by a common schema: `schemas/deployments-schema.yaml` of https://github.com/opendp/deployments-registry-data, commit
057e5d8, after Ghazi, Nanayakkara and Vadhan (arXiv 2509.13509). The names of fields and the values of enumerations here
are theirs. What only the controller of the data knows stays empty (`blank_fields`), the tier 1 fields among it: the
registry's own check then names what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sordino.report.statement_facts import SHORT, Fact, Observer, Recipient, of_thousand
from sordino.report.unit_words import words_for
from sordino.report.wording import attack_words, epsilon_words
from sordino.util.formatting import delta_text
from sordino.version import VERSION

if TYPE_CHECKING:
    from sordino.report.statement import Statement

FILL_IN = ""
"""Value of a field that only the controller can fill in."""
COMMENT = "only the controller knows"


def registry_of_run(found: Statement) -> dict[str, Any]:
    """Statement on a run in the registry's fields."""
    where = "simulated on one machine; nothing was deployed" if found.simulated else "each client on its own machine"
    if found.trial:
        where = "a trial on one machine"
    settings = [
        f"Columns: {', '.join(f'{one.name} ({one.kind}, {one.source})' for one in found.columns)}."
        if found.columns
        else "",
        found.features or "",
        found.tuning,
    ]
    return RegistryEntry(
        slug=found.run,
        name=f"Model of the run {found.run}",
        description=f"A network of the kind {found.network} with {found.parameters:,} parameters, trained "
        f"{found.wish} by {len(found.clients) + found.others} clients ({where}), with the method "
        f"{found.method}.",
        date=found.started.split("T")[0],
        unit=found.unit,
        unit_details=f"{found.neighbours}. {found.rows_not_persons}".strip(),
        units=found.covered_units,
        domain=f"Everything that clients' tables may hold: {', '.join(one.name for one in found.columns)}."
        if found.columns
        else f"Arrays of shape {' x '.join(map(str, found.shape))}, with labels.",
        public=found.public,
        not_covered=found.not_covered,
        observers=found.observers,
        planned_for=found.planned_for,
        delta=found.delta,
        model_details=where,
        trust=found.trust,
        recipients=found.recipients,
        releases=("One release", f"One run of {found.rounds_planned} rounds. {found.together or ''}".strip()),
        tuning=" ".join(filter(None, settings)),
        mechanism=found.mechanism,
        composition=found.together or "One run; its rounds are composed as said under mechanisms.",
        utility=found.utility,
        audit=_audit_words(found),
        ledger=(f"sordino ledger {found.run} --verify", found.head, found.rows),
        package=found.package,
    ).document()


def _audit_words(found: Statement) -> str:
    """Sentences on the audit, or on the lack of one."""
    if found.audit is None:
        return f"Not audited with these settings; {found.audit_command} does it."
    return " ".join(found.audit.sentences())


@dataclass(frozen=True, kw_only=True)
class RegistryEntry:
    """Content of an entry of the registry."""

    slug: str
    """Name in the entry's address."""
    name: str
    """Name of the data product."""
    description: str
    """Sentence on the data product."""
    date: str
    """Day of its publication, YYYY-MM-DD."""
    unit: str
    """Protected unit."""
    unit_details: str
    """Neighbouring data sets."""
    units: int | None
    """Number of units; None where it is not known."""
    domain: str
    """Data sets that are eligible for protection."""
    public: Sequence[Fact]
    """Facts that are taken to be public."""
    not_covered: Sequence[str]
    """Sentences on what no figure covers."""
    observers: Sequence[Observer]
    """Observers and their figures."""
    planned_for: str
    """Observer whose epsilon is the entry's."""
    delta: float
    """Delta of all epsilons."""
    model_details: str
    """Sentence on where the data were."""
    trust: Sequence[str]
    """Sentences on who is trusted."""
    recipients: Sequence[Recipient]
    """Who gets what."""
    releases: tuple[str, str]
    """Type of release and its details."""
    tuning: str
    """Sentences on columns, features and the choice of settings."""
    mechanism: Sequence[str]
    """Sentences on noise."""
    composition: str
    """Sentences on several runs."""
    utility: Sequence[str]
    """Sentences on how well models predict."""
    audit: str
    """Sentences on attacks."""
    ledger: tuple[str, str, int]
    """Command that checks the ledger, its head and its number of rows."""
    package: str
    """Hash of the code."""

    def document(self) -> dict[str, Any]:
        """Document of the registry's schema; a field that does not apply is left out."""
        return {
            "url_slug": self.slug,
            "deployment": {
                "basic": self._basic(),
                "dp_variant": self._variant(),
                "privacy_loss": self._privacy_loss(),
                "deployment_model": self._model(),
                "implementation": self._implementation(),
                "administrative": {"status": "Draft", "registry_authors": [FILL_IN], "tier": 3},
            },
        }

    @property
    def _chosen(self) -> Observer:
        """Observer whose epsilon is the entry's."""
        return next(one for one in self.observers if one.name == self.planned_for)

    def _basic(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "data_curators": [{"data_curator_name": FILL_IN, "data_curator_type": FILL_IN}],
            "description": self.description,
            "intended_use": FILL_IN,
            "data_product_type": "Machine learning model",
            "data_product_region": FILL_IN,
            "data_product_sector": FILL_IN,
            "publication_date": self.date,
        }

    def _variant(self) -> dict[str, Any]:
        variant = {"variant_name": "Approximate DP"} if self._chosen.epsilon is not None else {}
        public = "; ".join(f"{one.what} ({one.who})" for one in self.public)
        return variant | {
            "data_domain": self.domain,
            "unprotected_quantities": f"Taken to be public: {public}. {' '.join(self.not_covered)}".strip(),
        }

    def _privacy_loss(self) -> dict[str, Any]:
        chosen = self._chosen
        figures = "; ".join(
            f"{one.name} ({one.who}): epsilon {epsilon_words(one.epsilon, 'infinite')}, best attack "
            f"{attack_words(one.attack)}, {of_thousand(one.hits['0.001'])} of 1,000 found at 1 of 1,000 false positives"
            for one in self.observers
        )
        loss: dict[str, Any] = {
            "privacy_unit": words_for(self.unit).registry,
            "privacy_unit_details": self.unit_details,
        }
        if self.units is not None:
            loss["number_of_privacy_units"] = self.units
        if chosen.epsilon is not None:
            loss["privacy_parameters"] = {"epsilon": chosen.epsilon, "delta": self.delta}
        bound = "There is no finite epsilon" if chosen.epsilon is None else "Epsilon"
        loss["privacy_parameters_details"] = (
            f"{bound} for {SHORT[chosen.name]}, at delta = "  # type: ignore[index]
            f"{delta_text(self.delta)}. {figures}."
        )
        return loss

    def _model(self) -> dict[str, Any]:
        return {
            "model_name": "Federated",
            "model_name_details": self.model_details,
            "trust_assumptions": " ".join(self.trust),
            "actors": " ".join(f"{one.what}: {one.who} ({one.covered})." for one in self.recipients),
            "release_type": self.releases[0],
            "release_type_details": self.releases[1],
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        }

    def _implementation(self) -> dict[str, Any]:
        check, head, rows = self.ledger
        return {
            "preprocessing_and_hyperparameter_tuning": self.tuning,
            "mechanisms": f"{' '.join(self.mechanism)} Sordino {VERSION}, SHA-256 of its code {self.package}.",
            "composition": self.composition,
            "post_processing": "Everything that a server computes from what has left: averages, optimizers, "
            "checkpoints.",
            "justification": FILL_IN,
            "utility": " ".join(self.utility),
            "additional_information": f"Ledger: {rows} rows, head {head}; {check} checks it. Audit: {self.audit}",
        }


def blank_fields(document: Any, path: str = "") -> list[str]:
    """Paths of the fields that the controller has to fill in."""
    if isinstance(document, Mapping):
        return [one for key, value in document.items() for one in blank_fields(value, f"{path}.{key}".lstrip("."))]
    if isinstance(document, list):
        return [one for place, value in enumerate(document) for one in blank_fields(value, f"{path}[{place}]")]
    return [path] if document == FILL_IN else []


def registry_yaml(document: Mapping[str, Any]) -> str:
    """Document as YAML, as the registry takes it; texts are in JSON's quotes, which YAML reads too."""
    return "\n".join(_yaml_lines(document, "")) + "\n"


def _yaml_lines(document: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for key, value in document.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *_yaml_lines(value, f"{indent}  ")]
        elif isinstance(value, list):
            lines.append(f"{indent}{key}:")
            for one in value:
                inner = _yaml_lines(one, "") if isinstance(one, Mapping) else [_yaml_scalar(one)]
                lines += [f"{indent}  {'- ' if place == 0 else '  '}{line}" for place, line in enumerate(inner)]
        else:
            lines.append(f"{indent}{key}: {_yaml_scalar(value)}")
    return lines


def _yaml_scalar(value: Any) -> str:
    # YAML 1.1 reads 1e-05 as a text: a number needs a point before its exponent.
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return f"{text}  # {COMMENT}" if value == FILL_IN else text


REGISTRY_FORMATS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    ".yaml": registry_yaml,
    ".yml": registry_yaml,
    ".json": lambda document: json.dumps(document, indent=2) + "\n",
}
"""Writers of the registry's fields, by the suffix of the file."""
