"""Content of the privacy statement on a run: a summary to be read in half a minute, and the sections below it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sordino.methods.bases import SIZES, SIZES_IN_SUMS
from sordino.privacy.unit import Unit
from sordino.report.statement_blocks import Attacks, Block, Bullets, Section, StatementPage, Table, Tradeoff
from sordino.report.statement_facts import (
    ABOVE_ALL,
    AUDIT_HEAD,
    OBSERVER_HEAD,
    PERSONAL,
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
from sordino.report.unit_words import words_for
from sordino.report.wording import UNPROTECTED, epsilon_words, observer_of_figures, protects_nothing, replacement_words
from sordino.util.formatting import delta_text

if TYPE_CHECKING:
    from sordino.report.statement import Statement

COLUMNS = ["column", "kind", "values", "without a value", "source"]
"""Head of the table of a record's columns."""


def page_of(found: Statement) -> StatementPage:
    """Page on a run."""
    words = words_for(found.unit)
    told = sentences(found)
    head = ["what", "how it is made", "per client, at most", "clients", "covered by noise"]
    leaving = [
        [one.name, one.what, _times(one.most), str(one.clients), "yes" if one.covered else "no"]
        for one in found.leaving
    ]
    done, held, left, learned = told.values()
    record: list[Block] = [*held]
    if found.columns:
        record.append(Table(COLUMNS, [list(dataclasses.astuple(one)) for one in found.columns]))
    learning: list[Block] = [
        *learned,
        Table(OBSERVER_HEAD, [observer_cells(one) for one in found.observers]),
        Tradeoff(found.observers),
        *tradeoff_sentences(found.observers, words),
        tradeoff_table(found.observers, words),
    ]
    utility: list[Block] = [*found.utility]
    if found.utility_of_outcomes:
        utility.insert(
            -1, Table(list(found.utility_of_outcomes[0]), [list(one.values()) for one in found.utility_of_outcomes])
        )
    if found.utility_of_clients:
        score = found.score if found.outcomes == 1 else f"{found.score}, mean of the outcomes"
        utility.insert(-1, Table(["client", score], found.utility_of_clients))
    audit: list[Block] = [
        f"Nobody has attacked this method with these settings yet. This command does: `{found.audit_command}`",
        *([STAND_INS] if "FOLDER" in found.audit_command else []),
    ]
    if found.audit is not None:
        audit = [
            *found.audit.sentences(),
            Table(AUDIT_HEAD, found.audit.rows()),
            f"`{found.audit_command}` repeats it.",
        ]
    sections = [
        Section("What was done", done),
        Section("What a record holds", record),
        Section("What left each client", [*left, *([Table(head, leaving)] if leaving else []), *found.mechanism]),
        Section("What somebody could learn from it", learning),
        Section("All runs on the same data", [*([found.together] if found.together else []), found.tuning]),
        Section("Who has to be trusted", [Bullets(found.trust)]),
        Section("What is public, and who says so", [facts_table(found.public)]),
        Section("What these figures do not cover", [Bullets(found.not_covered + _always(found))]),
        Section("Who may get what", [recipients_table(found.recipients)]),
        Section("How well the models predict", utility),
        Section("Was it attacked?", audit),
        *([Section("Notes", [Bullets(found.notes)])] if found.notes else []),
        Section("How to check it", _check(found)),
    ]
    title = f"Privacy statement: {found.run}"
    annex = [annex_section(found.annex)]
    return StatementPage(
        title, _about(found), _glance(found), Attacks(found.observers, legend(found.observers)), sections, annex
    )


def _times(most: int) -> str:
    return f"{most} times" if most != 1 else "once"


def _about(found: Statement) -> str:
    """Line below the title: date, version, ledger, and the figure for experts."""
    planned = next(one for one in found.observers if one.name == found.planned_for)
    figure = f"epsilon {epsilon_words(planned.epsilon, UNBOUNDED)} ({found.planned_for})"
    delta = "" if planned.epsilon is None else f" at delta {delta_text(found.delta)}"
    return f"{found.date}; Sordino {found.version}; for experts: {figure}{delta}; ledger `{found.head[:16]}`"


def _glance(found: Statement) -> list[tuple[str, str]]:
    """Summary that is read in half a minute."""
    many = len(found.clients) + found.others
    where = " This was a simulation: one machine held all records." if found.simulated else ""
    where = " It was a trial: one machine played all of them." if found.trial else where
    bare = protects_nothing({one.name: one.epsilon for one in found.observers})
    sent = "what would leave is" if found.simulated else "what left was"
    blurred = "" if bare else f"; {sent} blurred with random noise"
    kept = "would leave its participant" if found.simulated else "left its participant"
    done = f"{many} participants trained a model together. No record {kept}{blurred}."
    if not found.leaving:
        done = f"{many} participants each trained a model of its own. Nothing left any of them."
    protected = "Nothing: what left carries no noise that would hide anybody." if bare else found.protects
    missing = len(found.not_covered) + len(_always(found))
    things = "One thing" if missing == 1 else f"{missing} things"
    attacked = "Not yet; the command is below."
    return [
        ("What was done.", done + where),
        ("What is protected.", protected),
        ("How well.", strength(found.observers, found.planned_for, words_for(found.unit))),
        *([("What it relies on.", found.trust[0])] if found.leaving else []),
        ("What is not covered.", f"{things}, listed below; {ABOVE_ALL}"),
        ("Was it attacked?", attacked if found.audit is None else found.audit.sentences()[0]),
        ("How to check.", f"`sordino ledger {found.run} --verify`"),
    ]


def _always(found: Statement) -> list[str]:
    """Sentences on what no epsilon covers in any run."""
    shown = (
        "In the simulation, accuracies were measured on the clients' raw test records, some notes follow from these "
        "records, and training records were counted. On real machines no client sends any of this."
    )
    return [
        PERSONAL,
        *([SIZES] if found.unit.record_level and {SIZES, SIZES_IN_SUMS}.isdisjoint(found.not_covered) else []),
        *([shown] if found.simulated else []),
    ]


def _check(found: Statement) -> list[Block]:
    return [
        f"The run was started on {found.date} with Sordino {found.version}. Its ledger has {found.rows} "
        f"{'row' if found.rows == 1 else 'rows'}; the chain of hashes ends with `{found.head}`.",
        f"`sordino ledger {found.run} --verify` checks that no row was altered or removed, and that the figures above "
        "follow from the rows. `--csv` prints them.",
        f"The code that wrote this page has the SHA-256 `{found.package}`. `sordino statement {found.run} --json` has "
        "all of this page for programs.",
    ]


def sentences(found: Statement) -> dict[str, list[str]]:
    """Paragraphs of the first sections by heading; tables and lists are not among them."""
    whom = ", ".join(found.clients) + (f" and {found.others} more" if found.others else "")
    records = f" Together the clients hold {found.records:,} training records." if found.records else ""
    if found.records and found.unit is Unit.PERSON:
        records = f" Together the clients hold {found.records:,} training records, of {found.covered_units:,} persons."
    # The columns of several outcomes are named where their values are.
    column = f" in the column {found.predicted}" if found.predicted and found.outcomes == 1 else ""
    return {
        "What was done": [
            f"A model was trained on {found.data}, the data of {len(found.clients) + found.others} clients: {whom}."
            f"{records}",
            f"The model is a network of the kind {found.network} with {found.parameters:,} parameters. It was trained "
            f"{found.wish}{column}, with the method {found.method}, in "
            f"{found.rounds_planned if found.stopped else found.rounds} rounds.",
            *([found.features] if found.features else []),
            *([_stop(found)] if found.stopped else []),
            _machines(found),
        ],
        "What a record holds": [_holds(found)],
        "What left each client": [_treatment(found)],
        "What somebody could learn from it": _protection(found),
    }


def _stop(found: Statement) -> str:
    """Sentences on a run that was stopped before its end."""
    return (
        f"The run was stopped after {found.rounds} of {found.rounds_planned} rounds, and has no models yet. The "
        "figures below are those of all planned rounds: the run may be resumed, and whoever stopped it may have seen "
        "what had left before."
    )


def _machines(found: Statement) -> str:
    """Sentences on where the data were."""
    if found.simulated:
        return (
            "This run was a simulation: one machine held all data. This page says what would have left each client on "
            "real machines."
        )
    if found.trial:
        return (
            "This run was a trial: the server and all sites were processes of one machine, which held all data. This "
            "page says what left each site."
        )
    return "The clients trained on their own machines. Their records never left those machines."


def _holds(found: Statement) -> str:
    """Sentences on what is known of the records, and who declared it."""
    by = "" if found.simulated else " The experiment declares this. Only sites whose data fit it took part."
    if found.columns:
        return f"The table lists all columns of the clients' tables. Columns of the kind id are not used.{by}"
    shape = " x ".join(str(size) for size in found.shape)
    return f"A record is an array of shape {shape}. Its numbers have no names.{by}"


def _treatment(found: Statement) -> str:
    """Sentences on how values were treated before they left."""
    if not found.leaving:
        return "Nothing left any client."
    covered = "Values that are covered by noise were limited in size at the client, and noise was added to them there."
    bare = "Nothing of it is covered by noise."
    return (
        "Records never leave a client. Everything that does leave passes one gate and is entered in a ledger before it "
        f"is sent. {covered if any(one.covered for one in found.leaving) else bare}"
    )


def _protection(found: Statement) -> list[str]:
    """Paragraphs on what the figures protect, and from what."""
    words = words_for(found.unit)
    whether = words.guessed
    attack = (
        f'The column "best attack" says how often the best possible attack guesses correctly whether {whether}, for '
        f"the {found.unit} that is easiest to recognise. A coin is correct in 50 % of cases."
    )
    epsilon = {one.name: one.epsilon for one in found.observers}
    if protects_nothing(epsilon):
        return [f"{UNPROTECTED}. {attack}"]
    planned = f"The noise was planned against the observer {found.planned_for}."
    if found.unit.record_level:
        planned = _whose_noise(found)
    return [
        f"The figures protect {words.one}. A smaller epsilon means stronger protection. Delta is "
        f"{delta_text(found.delta)}: roughly the chance that more is revealed than epsilon allows. Each observer is "
        f"assumed to know everything else about everybody. {planned}",
        attack,
        *_neighbours(found),
    ]


def _whose_noise(found: Statement) -> str:
    """Sentences on the noise that protects records, and on whom it holds against."""
    if _observer(found) is None:
        return "Each client adds noise of its own, which holds against every observer."
    shared = (
        "The clients share the noise: each message carries a part of it, and the sum over clients carries all of it. "
        f"It was planned against the observer {found.planned_for}."
    )
    if found.simulated:
        return shared
    return (
        f"{shared} A secure sum showed the server sums alone, so that for the server by itself the figure of the "
        "outsider holds. The figure of the server is for the case that all other sites work with it."
    )


def _neighbours(found: Statement) -> list[str]:
    """Paragraphs on the two worlds that the figures compare."""
    compared = f"The figures compare two worlds that differ in one {found.unit}. Neighbours: {found.neighbours}."
    if not found.unit.record_level:
        return [compared]
    exchanged, observer = replacement_words(found.replaced, found.replaced_at, found.delta, UNBOUNDED), _observer(found)
    whose = "" if observer is None else f" for the observer {observer}, and more for observers with a larger epsilon"
    return [
        f"{compared} Records are counted as they were read. If a record's contents are replaced by others, epsilon is "
        f"at most {exchanged}{whose}.",
        found.rows_not_persons,
    ]


def _observer(found: Statement) -> str | None:
    """Observer whom figures of which there is one alone are for; None where they hold for all."""
    return observer_of_figures({one.name: one.epsilon for one in found.observers}, found.planned_for)
