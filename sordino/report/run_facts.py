"""Facts of a run for its statement: noise, trust, what is public, what was tried out, how well models predict."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.schema import Target
from sordino.privacy.ledger import Ledger
from sordino.privacy.release import PROMISED
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.report.statement_facts import (
    NO_SUBGROUPS,
    WITHDRAWAL,
    AnnexRow,
    DataColumn,
    Fact,
    Observer,
    Recipient,
    annex_rows,
    risk,
)
from sordino.report.unit_words import words_for
from sordino.report.wording import accuracy_source, percent, protects_nothing
from sordino.store.ledger_rows import Account
from sordino.store.run_summary import Summary
from sordino.store.spending import OverRuns
from sordino.store.store import Store
from sordino.trained.models import Description, load_models
from sordino.util.formatting import NAMED, finite_or_none, join_names, of_part


def guaranteed_shares(ledger: Ledger) -> int:
    """Clients whose noise adds up in every sum that an outsider sees: its noise over that of one message, squared."""
    found = [
        np.square(noise[:, VIEWS.index("outsider")] / noise[:, VIEWS.index("server")]).min()
        for row in ledger.rows
        if not row.reason and not row.exposed and row.pool != PROMISED
        for noise in [np.frombuffer(row.noise, dtype="<f8").reshape(-1, len(VIEWS))]
        if len(noise) and (noise > 0).all() and np.isfinite(noise).all()
    ]
    return max(1, round(float(min(found)))) if found else 1


def mechanism_of(summary: Summary, account: Account, noised: bool) -> list[str]:
    """Sentences on limits, noise, sampling and the source of randomness; none is `noised` where nothing is covered."""
    if not noised:
        return ["Nothing was limited in size and no noise was added."]
    sampled = [row["sampling_rate"] for row in account.documents() if row["sampling_rate"] not in (None, 1.0)]
    multiplier = summary.noise_multiplier
    found = [
        "The mechanism is the Gaussian one: values are limited in length, then normally distributed noise is added."
    ]
    if multiplier:
        found.append(
            f"In each round the noise that the observer {summary.protect_from} meets has a standard deviation of "
            f"{multiplier:.4g} times the largest change that one {words_for(summary.unit).noun} can cause."
        )
    if sampled:
        found.append(
            f"A record enters a sum with a probability of at most {max(sampled):.3g}, by a secret coin of its own."
        )
    rest = (
        "The cost of all rounds together is computed in closed form (mu^2 adds up) or, where coins decide, from the "
        "distribution of the privacy loss."
    )
    if not summary.deployed:
        return [
            *found,
            rest,
            "Random source: a generator that is keyed by the run's seed, so that the run can be repeated. Whoever "
            "knows the seed can compute the noise. The figures are those of real machines, which draw it from the "
            "operating system.",
            "Numbers: noise is added in floating point. The proof is for exact numbers.",
        ]
    rounding = (
        "The gradients of records are added up in floating point before they are rounded; this one step lies outside "
        "the proof."
        if summary.unit.record_level
        else "What left was rounded to whole numbers and limited again before noise was added; the proof covers that."
    )
    return [
        *found,
        rest,
        "Random source: each site draws its noise from its operating system's cryptographic generator.",
        f"Numbers: noise is drawn in whole numbers, by an exact sampler. {rounding}",
    ]


def trust_of(summary: Summary, configuration: Mapping[str, Any], shares: int) -> list[str]:
    """Sentences on who has to be trusted with what, the most important one first."""
    if protects_nothing(summary.epsilon):
        return ["Everybody who sees what left has to be trusted with it: no noise protects it."]
    colluders = int(configuration.get("colluders") or 0)
    own = "Each client trusts its own machine and its own copy of Sordino."
    if shares == 1:
        first = [
            "Nobody but the client itself: it adds all of the noise before anything leaves.",
            own,
        ]
    else:
        rule = "The server and the other clients must not pool what they know"
        if colluders:
            rule = f"No more than {colluders} other clients may pool what they know with the server"
        first = [
            f"{rule}: they could take the noise away.",
            f"Each client adds a part of the noise. Every sum holds that of at least {shares} clients.",
            "If all other clients do so with the server, the figure of the server holds.",
            own,
        ]
    if not summary.deployed:
        return [
            *first,
            "This run was a simulation: whoever had the machine had all data. The sentences above are about real "
            "machines.",
        ]
    if not summary.summed_securely:
        return first
    return [
        *first,
        "A secure sum keeps single messages from the server, as long as AES, X25519 and HKDF hold. Outside "
        "cryptographers have not reviewed the protocol.",
        "A site that has pinned the list of participants (its roster) is safe from participants that the server "
        "invents. A site that has pinned none counts the figure of the server in its own ledger.",
    ]


def public_of(summary: Summary, about: Description, columns: list[DataColumn], simulated: bool) -> list[Fact]:
    """Facts that count as public, and who declares them so."""
    experiment = "the experiment, by whoever wrote it"
    labels = (
        "read from the records"
        if any(one.kind in OUTCOMES and one.source != "declared as public" for one in columns)
        else experiment
    )
    found = [
        Fact("which clients take part, and in which rounds", experiment),
        Fact("method, network, number of rounds, limits and noise", experiment),
        Fact(f"the possible outcomes: {about.meaning.task.outcomes}", labels),
    ]
    if summary.unit.record_level:
        who = "counted by the simulation" if simulated else f"{experiment}, about (`records_each`)"
        found.append(Fact(f"how many {summary.unit}s each client has", who))
    read = [one.name for one in columns if one.source == "read from the records" and one.kind not in OUTCOMES]
    declared = [one.name for one in columns if one.source == "declared as public" and one.kind not in OUTCOMES]
    if declared:
        found.append(Fact(f"kinds, ranges and values of the columns {join_names(declared)}", experiment))
    if read:
        found.append(
            Fact(f"ranges and values of the columns {join_names(read)}", "nobody: read from the records, not covered")
        )
    if about.features is not None:
        found.append(Fact("the function that makes features of a record, with its weights", experiment))
    return found


def tuning_of(total: OverRuns) -> str:
    """Sentences on the price of trying out settings."""
    others = total["runs"] - 1
    counted = (
        f"{others} other stored {'run' if others == 1 else 'runs'} on these data may have served to choose the "
        "settings; the sum above counts them."
        if others > 0
        else "No other run on these data is stored."
    )
    return (
        f"{counted} Whoever tries out settings on the same data elsewhere, or by looking at the raw records, pays for "
        "it with privacy that no figure here counts. Trying out on public or made-up data costs nothing."
    )


OUTCOMES = ("label", "target", "time", "event")
"""Kinds of the columns that say what is predicted."""
UTILITY = {
    "accuracy": "What clients predict with is right for {} of the test records, in the mean over clients; at the "
    "client that is worst off for {}.",
    "r2": "What clients predict with explains {} of the variance of the test records (R²), in the mean over clients; "
    "at the client that is worst off {}.",
    "concordance": "What clients predict with puts {} of the pairs of test records into the right order (concordance), "
    "in the mean over clients; at the client that is worst off {}.",
}
"""Sentence on how well models predict, by the metric that clients are compared by."""
UTILITY_OF_SEVERAL = {
    "accuracy": "What clients predict with is right about {} of the single outcomes of test records, in the mean over "
    "clients; at the client that is worst off about {}. How often all outcomes of a record are right at once was not "
    "measured.",
    "r2": "What clients predict with explains {} of the variance of the test records (R²), in the mean over the "
    "outcomes and over clients; at the client that is worst off {}.",
}
"""Sentence on how well models predict several outcomes of a record, by the metric that clients are compared by."""


def utility_of(summary: Summary, about: Description) -> list[str]:
    """Sentences on how well models predict."""
    figures = []
    several = about.meaning.task.together > 1
    over = "over the outcomes and over clients" if several else "over clients"
    if summary.accuracy.get("personal") is not None:
        personal, worst = (percent(summary.accuracy.get(name)) for name in ("personal", "personal_worst"))
        figures.append((UTILITY_OF_SEVERAL if several else UTILITY)[summary.score].format(personal, worst))
    metrics = summary.metrics or {}
    if "rmse" in metrics:
        told = [metrics[name].mean for name in ("rmse", "constant_rmse", "mae", "coverage")]
        unit = next((f" {one}" for one in _units(about).values() if one), "")  # of several numbers all have the same
        if None not in told:
            root, constant, absolute, covered = told
            figures.append(
                f"The root of the mean squared error is {root:.4g}{unit} in the mean {over} (always predicting a "
                f"client's own mean: {constant:.4g}{unit}), the mean absolute error {absolute:.4g}{unit}; "
                f"{percent(covered)} of the {'numbers' if several else 'records'} lie inside the 90 % intervals that "
                "clients predict."
            )
    if "integrated_brier" in metrics and metrics["integrated_brier"].mean is not None:
        score, constant = (metrics[name].mean or 0.0 for name in ("integrated_brier", "constant_brier"))
        figures.append(
            f"The integrated Brier score is {score:.3f} in the mean over clients (low is good; of each client's own "
            f"Kaplan-Meier curve, {constant:.3f})."
        )
    for name, word, tell in (
        ("auc", "the area under the curve (AUC)", _score),
        ("balanced_accuracy", "the balanced accuracy", percent),
    ):
        metric = (summary.metrics or {}).get(name)
        if metric is not None and metric.mean is not None:
            figures.append(
                f"In the mean {over} {word} is {tell(metric.mean)}, and {tell(metric.worst_tenth)} for the "
                "tenth of the clients that is worst off."
            )
    return [*figures, accuracy_source(summary), NO_SUBGROUPS]


def utility_of_outcomes(summary: Summary, about: Description) -> list[dict[str, str]]:
    """Figures of each of several outcomes, in the mean over clients, by what they are; none where one is predicted."""
    if about.meaning.task.together == 1 or summary.metrics is None:
        return []
    rows = []
    for name, unit in _units(about).items():
        figures = {
            words: tell(found.mean) + (f" {unit}" if unit and metric in IN_UNIT and found.mean is not None else "")
            for metric, (words, tell) in OF_OUTCOMES.items()
            if (found := summary.metrics.get(of_part(metric, name))) is not None
        }
        rows.append({"outcome": name} | figures)
    return rows


def _units(about: Description) -> dict[str, str | None]:
    """Unit of each outcome by its column; None where none is declared."""
    outcomes = {} if about.meaning.schema is None else about.meaning.schema.outcomes
    return {name: one.unit if isinstance(one, Target) else None for name, one in outcomes.items()}


def _score(value: float | None) -> str:
    """Area under the curve as tables have it."""
    return "–" if value is None else f"{value:.3f}"


def _digits(value: float | None) -> str:
    """A figure in the unit of what is predicted."""
    return "–" if value is None else f"{value:.4g}"


OF_OUTCOMES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "accuracy": ("accuracy", percent),
    "majority": ("always the more frequent value", percent),
    "auc": ("AUC", _score),
    "r2": ("R²", percent),
    "rmse": ("root mean squared error", _digits),
    "constant_rmse": ("always a client's own mean", _digits),
    "coverage": ("inside 90 % intervals", percent),
}
"""Metrics of each of several outcomes, with their words and how they are written."""
IN_UNIT = ("rmse", "constant_rmse")


def utility_of_clients(summary: Summary, store: Store) -> list[list[str]]:
    """Accuracies of the first clients, where a simulation has measured them."""
    if summary.deployed or summary.metrics is None:
        return []
    models = load_models(summary.run, store.folder)
    names, place = models.about.clients[:NAMED], models.about.meaning.task.metrics.index(summary.score)
    figures = [float(row[place]) for row in models.metrics[: len(names)]]
    return [[name, percent(finite_or_none(value))] for name, value in zip(names, figures, strict=True)]


def recipients_of(summary: Summary) -> list[Recipient]:
    """Who gets what, and what the figures say of it."""
    personal = Recipient("Personal models", "only the client that predicts with it", "nothing: they must stay there")
    raw = not summary.deployed or summary.trial_of is not None
    page = Recipient(
        "This page", "those who may see figures of raw test records", "nothing: its accuracies are not noised"
    )
    ledger = Recipient("The ledger and this page", "anybody", "no record is in them")
    papers = [Recipient("The ledger", "anybody", "no record is in it"), page] if raw else [ledger]
    if all(value == 0 for value in summary.epsilon.values()):
        return [personal, *papers]
    shared, trusted = "The shared model, of every round and at the end", "only those who are trusted with the records"
    if summary.epsilon["outsider"] is None:
        return [Recipient(shared, trusted, "nothing"), personal, *papers]
    reader = "nobody, under the secure sum" if summary.summed_securely else "the server"
    return [
        Recipient(shared, "anybody", "the figure of the outsider"),
        Recipient("Single messages of a client", reader, "the figure of the server"),
        personal,
        *papers,
    ]


def audit_command(configuration: Mapping[str, Any], data: str | None = None, store: Path | None = None) -> str:
    """Command that attacks a method with the settings of a run.

    Args:
        configuration: keys of the run's experiment.
        data: name of known data, or what stands for data of one's own; None for the built-in ones.
        store: folder in which statements look for the findings.
    """
    variant = configuration.get("variant")
    given = {"method": configuration["method"], "variant": None if variant == "sound" else variant, "data": data}
    given |= {key: configuration.get(key) for key in ("model", "clients", "rounds", "epsilon", "delta", "protect_from")}
    options = {key.replace("_", "-"): value for key, value in (given | {"store": store}).items() if value is not None}
    settings = [f"{key}={_plain(value)}" for key, value in (configuration.get("set") or {}).items()]
    words = [f"--{key} {shlex.quote(_plain(value))}" for key, value in options.items()]
    return " ".join(["sordino audit", *words, *(f"--set {shlex.quote(one)}" for one in settings)])


def stand_ins(configuration: Mapping[str, Any]) -> str:
    """Options of an audit that attacks a claim for persons on data other than those of the run."""
    column = configuration.get("person") or (configuration.get("table") or {}).get("person")
    return f" --data FOLDER --schema SCHEMA.toml --person {shlex.quote(str(column))}"


def _plain(value: Any) -> str:
    """Value of an option as it is typed."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def annex_of(
    summary: Summary, columns: list[DataColumn], recipients: list[Recipient], observers: list[Observer], unit: Unit
) -> list[AnnexRow]:
    """Annex for an impact assessment."""
    held = join_names([one.name for one in columns]) if columns else ""
    where = "The server's store keeps" if summary.deployed else "The store keeps"
    sites = " Each site keeps its records, its ledger and its models." if summary.deployed else ""
    return annex_rows(
        records=f"The columns of the clients' tables: {held}." if held else "Arrays of numbers, without names.",
        measures=(
            "Records stay where they are. What leaves is limited in size, covered by noise and entered in a ledger "
            "first; see above."
            if not protects_nothing(summary.epsilon)
            else "None by noise: what left is not protected."
        ),
        recipients=recipients,
        storage=f"{where} the ledger, the models and the result of the run until `sordino rm {summary.run}`; what was "
        f"spent is remembered after that.{sites}",
        withdrawal=WITHDRAWAL,
        risk=risk(observers, summary.protect_from, words_for(unit)),
    )
