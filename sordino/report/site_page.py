"""Content of the privacy statement on a site: a summary to be read in half a minute, and the sections below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sordino.report.statement_blocks import Attacks, Block, Bullets, Section, StatementPage, Table, Tradeoff
from sordino.report.statement_facts import (
    OBSERVER_HEAD,
    STAND_INS,
    UNBOUNDED,
    annex_section,
    facts_table,
    legend,
    observer_cells,
    recipients_table,
    strength,
    tradeoff_sentences,
    tradeoff_table,
)
from sordino.report.terminal.metrics import metric_words
from sordino.report.unit_words import words_for
from sordino.report.wording import epsilon_words, percent
from sordino.util.formatting import delta_text, split_part

if TYPE_CHECKING:
    from sordino.report.site_statement import SiteRun, SiteStatement

STATES = {"open": "under way", "done": "over"}
METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auc": "AUC", "recall": "recall"} | {
    "r2": "R²",
    "coverage": "inside 90 % intervals",
    "concordance": "concordance",
}
"""Metrics that the page shows where runs have them, with their names."""


def page_of(found: SiteStatement) -> StatementPage:
    """Page on a site."""
    measured = [one for one in found.runs if one.metrics is not None]
    utility: list[Block] = [*found.utility]
    if measured:
        known = _metrics_of([one.metrics or {} for one in measured])
        rows = [[one.name, *(percent((one.metrics or {}).get(name)) for name in known)] for one in measured]
        utility.insert(1, Table(["since the run", *known.values()], rows))
    runs: list[Block] = ["This site has not taken part in a run yet."]
    if found.runs:
        head = ["run", "method", "state", "rounds", "what left", f"epsilon ({found.planned_for})"]
        runs = [
            "The site's records never left it. Everything that did leave was entered in the ledger first.",
            Table(head, [_run_cells(one) for one in found.runs]),
            *found.mechanism,
        ]
    sections = [
        *([Section("Attention", [Bullets(found.warnings)])] if found.warnings else []),
        Section("What left this site", runs),
        Section("What somebody could learn from all of it", _learning(found)),
        Section("Who has to be trusted", [Bullets(found.trust)]),
        Section("What is public, and who says so", [facts_table(found.public)]),
        Section("What these figures do not cover", [Bullets(found.not_covered)]),
        Section("Who may get what", [recipients_table(found.recipients)]),
        Section("How well the models predict here", utility),
        Section(
            "Was it attacked?",
            [
                "A site's records are not attacked. The method is, with the same settings on other data, on any "
                f"machine: `{found.audit_command}`",
                *([STAND_INS] if "FOLDER" in found.audit_command else []),
            ],
        ),
        Section("How to check it", _check(found)),
    ]
    about = f"{found.date}; Sordino {found.version}; for experts: {_limit(found)}; ledger `{found.head[:16]}`"
    title, annex = f"Privacy statement: {found.site}", [annex_section(found.annex)]
    return StatementPage(
        title, about, _glance(found), Attacks(found.observers, legend(found.observers)), sections, annex
    )


def _metrics_of(runs: Sequence[Mapping[str, float | None]]) -> dict[str, str]:
    """Words for the metrics that runs have; of several outcomes the means, and the first metric of each outcome."""
    words = metric_words(dict.fromkeys(name for one in runs for name in one), METRICS)
    parts = [name for name in words if split_part(name)[1] is not None]
    first = {name for name in parts if split_part(name)[0] == split_part(parts[0])[0]}
    mean = ", mean of the outcomes" if parts else ""
    return {
        name: told if name in parts else told + mean
        for name, told in words.items()
        if name in first or name not in parts
    }


def _run_cells(one: SiteRun) -> list[str]:
    left = ", ".join(f"{name} ({count} {'time' if count == 1 else 'times'})" for name, count in one.left.items())
    state = STATES.get(one.state, one.state)
    return [one.name, one.method, state, str(one.rounds), left or "nothing", epsilon_words(one.epsilon, UNBOUNDED)]


def _limit(found: SiteStatement) -> str:
    """Clause on what is spent of the site's limit."""
    limit = "no limit" if found.limit is None else f"a limit of {found.limit:g}"
    spent = epsilon_words(found.spent, UNBOUNDED)
    return f"epsilon {spent} of {limit} ({found.planned_for}) at delta {delta_text(found.delta)}"


def _glance(found: SiteStatement) -> list[tuple[str, str]]:
    """Summary that is read in half a minute."""
    many = len(found.runs)
    left = any(one.left for one in found.runs)
    part = f"{found.site} took part in {many} {'run' if many == 1 else 'runs'} with other sites."
    kept = " No record left it; what left was blurred with random noise." if left else " Nothing has left it."
    rules = "The rules of this site set no limit."
    if found.limit is not None:
        used = "An unknown part" if found.spent is None else f"{found.spent / found.limit:.0%}"
        rules = f"{used} of its owner's limit is used or reserved; the site refuses more."
    return [
        *([("Attention.", found.warnings[0])] if found.warnings else []),
        ("What was done.", part + kept),
        ("What is protected.", found.protects),
        ("How well.", strength(found.observers, found.planned_for, words_for(found.unit))),
        ("How much is left.", rules),
        ("What it relies on.", found.trust[0]),
        (
            "What is not covered.",
            f"{len(found.not_covered)} things, listed below; above all, its own (personal) model must stay here.",
        ),
        ("How to check.", f"`sordino ledger {found.folder} --verify`"),
    ]


def _learning(found: SiteStatement) -> list[Block]:
    words = words_for(found.unit)
    promised = "the server" if found.planned_for == "server" else "whoever sees the sums and the models"
    return [
        f"The figures protect {words.one}. They are about all runs together, and count what runs have reserved as if "
        f"it had been spent. A smaller epsilon means stronger protection. Delta is {delta_text(found.delta)}: roughly "
        f"the chance that more is revealed than epsilon allows. The site's limit is about {promised}.",
        f"The figures compare two worlds that differ in one {found.unit}. Neighbours: {found.neighbours}.",
        *([found.rows_not_persons] if found.rows_not_persons else []),
        Table(OBSERVER_HEAD, [observer_cells(one) for one in found.observers]),
        Tradeoff(found.observers),
        'The column "best attack" says how often the best possible attack guesses correctly whether '
        f"{words.guessed}, for the {words.noun} that is easiest to recognise. A coin is correct in 50 % of cases.",
        *tradeoff_sentences(found.observers, words),
        tradeoff_table(found.observers, words),
    ]


def _check(found: SiteStatement) -> list[Block]:
    return [
        f"The site's key has the fingerprint {found.fingerprint}. Its ledger has {found.rows} rows; the chain of "
        f"hashes ends with `{found.head}`.",
        f"`sordino ledger {found.folder} --verify` checks that no row was altered or removed, that the witness outside "
        "of the folder has seen the same end, and that the costs follow from the rows.",
        f"The code that wrote this page has the SHA-256 `{found.package}`. `sordino statement {found.folder} --json` "
        "has all of this page for programs.",
    ]
