"""Page of all papers: their claims, what Sordino measures, and the commands that repeat it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from sordino.errors import UserError, writing
from sordino.papers.claims import LOWER, ClaimVerdict, Kind, TableRow, in_words, judge_claim, rivals, rows_of
from sordino.papers.description import SCALES, Paper
from sordino.papers.formulas import repeat_figure
from sordino.papers.pages import Document, epsilon_text, folder_of, interval, measured_text, printed_text
from sordino.papers.sources import changed_methods
from sordino.papers.table_runs import TUNING_SEEDS
from sordino.report.wording import markdown_table
from sordino.study.sweep import contender
from sordino.study.tuning import idle_keys
from sordino.util.files import read_text, write_whole

Documents = dict[tuple[str, str], Document]
"""Documents of reproduced tables, by paper and table."""
BEGIN, END = "<!-- index -->", "<!-- end of index -->"
"""Marks in a page between which the index stands."""
PREFIX = "sordino reproduce "
TOO_SMALL, AS_PUBLISHED = SCALES[0], SCALES[-1]
"""Scale that shows that a table can be repeated, but is too small to judge a claim by; and that of the paper itself,
whose settings need no tuning."""


def documents(stores: Sequence[Path]) -> Documents:
    """Documents of each paper's tables in some stores: those of the largest scale that was run, and of equal ones that
    of the last store."""
    found: Documents = {}
    for scale in SCALES:  # larger ones win
        for path in [path for store in stores for path in sorted((store / "papers").glob(f"*/*-{scale}.json"))]:
            try:
                document = json.loads(read_text(path))
                # All that the page tells of it, so that a damaged document is named here and not met halfway.
                _table([], [[*_line(document, ""), _verdict(document), _epsilons(document), why_not_judged(document)]])
                found[document["paper"], document["table"]] = document
            except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                raise UserError(f"{path} cannot be read: delete it and repeat the table.") from error
    return found


def keep(found: Documents, place: Path) -> None:
    """Write documents to a folder that `documents` reads like a store."""
    for document in found.values():
        path = folder_of(place, document["paper"]) / f"{document['table']}-{document['scale']}.json"
        with writing(path):
            write_whole(path, json.dumps(document, indent=1) + "\n")


def index(papers: Mapping[str, Paper], found: Documents) -> str:
    """Write the page: the papers' main tables in short, each paper's tables, and the printed numbers that formulas
    give."""
    parts = ["### In short", _summary(papers, found)]
    for name, paper in papers.items():
        parts += [
            f"### {paper.title}",
            paper.citation,
            *([paper.epsilon_note] if paper.epsilon_note else []),
            *_paper(paper, [found.get((name, one)) for one in paper.tables]),
        ]
        lacking = [table for table in paper.tables if (name, table) not in found]
        parts += [f"Not run yet: {', '.join(lacking)}."] if lacking else []
    return "\n\n".join([*parts, "### Printed numbers that follow from formulas", _figures(papers)]) + "\n"


def insert_index(text: str, written: str) -> str:
    """Insert the index into a page between its marks; a page without marks becomes the index alone."""
    before, begin, rest = written.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{text}\n{end}{after}" if begin and end else text


def _summary(papers: Mapping[str, Paper], found: Documents) -> str:
    """Main table of each paper, in one line each."""
    head = ["paper", "its claim", "verdict at equal true epsilon", "epsilon as published", "`sordino reproduce`"]
    body = []
    for name, paper in papers.items():
        document = found.get((name, paper.main))
        if document is None:
            body.append([paper.title, paper.tables[paper.main].claim, "Not run yet.", "-", f"`{name} {paper.main}`"])
        else:
            claim = _claim(paper, document)
            why = why_not_judged(document)
            told = f"Not judged: {why}." if why else _verdict(document)
            body.append([paper.title, claim, told, _epsilons(document), _command(document)])
    return _table(head, body)


def _paper(paper: Paper, tables: Sequence[Document | None]) -> list[str]:
    """Tables of a paper: those that judge its claims, then those that only show that they can be repeated."""
    there = [(document, _line(document, _claim(paper, document))) for document in tables if document]
    large = [[*line, _verdict(document)] for document, line in there if _judges(document)]
    small = [[*line, f"Not judged: {why}."] for document, line in there if (why := why_not_judged(document))]
    head = [f"`{PREFIX}{paper.name}`", "claim", "published", "as published (true epsilon)", "at equal true epsilon"]
    parts = []
    if large:
        parts.append(_table([*head, "verdict"], large))
    if small:
        lines = _table([*head, ""], small)
        summary = f"{len(small)} of its tables and figures that judge nothing, and why"
        parts.append(f"<details>\n<summary>{summary}</summary>\n\n{lines}\n\n</details>")
    return parts


def _claim(paper: Paper, document: Document) -> str:
    """Claim that a document tests, in today's words."""
    return paper.tables[document["table"]].claim_at(document["scale"])


def _figures(papers: Mapping[str, Paper]) -> str:
    """Table of every printed number that a formula gives, beside ours."""
    found = [
        (paper.title, repeat_figure(one))
        for paper in papers.values()
        for table in paper.tables.values()
        for one in table.figures
    ]
    body = [
        [title, one["name"], f"{one['published']:g}", f"{one['ours']:.6g}", "holds" if one["holds"] else "**differs**"]
        for title, one in found
    ]
    return _table(["paper", "what", "printed", "ours", ""], body)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return markdown_table(head, [[cell.replace("|", r"\|") for cell in line] for line in body])


def _judges(document: Document) -> bool:
    return not why_not_judged(document)


def why_not_judged(document: Document) -> str:
    """Reason why a document's figures judge no claim; empty where they do."""
    if document["scale"] == TOO_SMALL:
        return f"`{TOO_SMALL}` is too small for that"
    if "sources" not in document:
        return f"measured with version {document['version']}, before verdicts had rules; repeat it"
    changed = changed_methods(document["sources"])
    if changed:
        return f"measured before {', '.join(changed)} changed; repeat it"
    if document["scale"] != AS_PUBLISHED and document["tuning_seeds"] < TUNING_SEEDS:
        return f"settings were not tuned on {TUNING_SEEDS} seeds for each column; repeat it with `--tune paper`"
    return _why_tuned_badly(document["tuned"])


def _why_tuned_badly(tuned: Sequence[Document]) -> str:
    """Reason why settings were not chosen alike for all rows; empty where they were."""
    edges = [f"{key} of {one['method']}" for one in tuned for key in one["on_edge"]]
    if edges:
        return f"the best {', '.join(dict.fromkeys(edges))} lies on the edge of its grid"
    for one in tuned:
        idle = idle_keys(one["chosen"]) & (set(contender(one["chosen"])[1]) - set(contender(one["method"])[1]))
        if idle:
            return f"tries of {one['method']} went over {min(idle)}, which changes nothing there; repeat it"
    for column in dict.fromkeys(one.get("column", "") for one in tuned):  # earlier documents have one column each
        tries = {one["method"]: one["tries"] for one in tuned if one.get("column", "") == column}
        least, most = (choose(tries, key=lambda name: tries[name]) for choose in (min, max))
        if tries[least] < tries[most]:
            return f"{most} had {tries[most]} tries at {column}, {least} {tries[least]}; repeat it"
    return ""


def _command(document: Document) -> str:
    return f"`{document['command'].removeprefix(PREFIX)}`, {_seeds(document)}"


def _seeds(document: Document) -> str:
    return f"{document['seeds']} seed{'s' if document['seeds'] != 1 else ''}"


def _line(document: Document, claim: str) -> list[str]:
    """Line of a reproduced table: how it is run, its claim, and the figures of one column."""
    run = _command(document).replace(f"`{document['paper']} ", "`", 1)
    return [run, claim, *(_best_rows(document, kind) for kind in get_args(Kind))]


def _rows(document: Document, column: str) -> list[TableRow]:
    return [row for row in rows_of(document) if row.column == column]


def _columns(document: Document) -> list[ClaimVerdict]:
    """Claim in each column, judged from the figures of its seeds."""
    names = dict.fromkeys(row.column for row in rows_of(document))
    return [judge_claim(name, _rows(document, name)) for name in names]


def _headline(document: Document) -> ClaimVerdict:
    """Column by which a table is told."""
    return next(one for one in _columns(document) if one.column == document["headline"])


def _best(rows: Sequence[TableRow], kind: Kind) -> list[TableRow]:
    """Row with the best figure, if one has any."""
    known = [(figure, row) for row in rows if (figure := row.figure(kind)) is not None]
    ranked = sorted(known, key=lambda pair: pair[0] if pair[1].measure in LOWER else -pair[0])
    return [row for _, row in ranked[:1]]


def _ours(document: Document, kind: Kind) -> TableRow:
    """Row of the headline's column that the paper proposes: of several, the best one."""
    rows = _rows(document, document["headline"])
    proposed = [row for row in rows if row.ours] or rows
    return (_best(proposed, kind) or proposed)[0]


def _best_rows(document: Document, kind: Kind) -> str:
    """Cell with the proposed row and the best of its rivals: as printed, as published or at equal true epsilon."""
    ours = _ours(document, kind)
    if ours.figure(kind) is None:
        return "-" if kind == "published" else measured_text(ours, kind)
    best = _best(rivals(_rows(document, document["headline"]), ours), kind)
    told = "; ".join(_figure(row, kind) for row in (ours, *best))
    return f"{told}; {_terms(ours)}" if kind == "sound" else told


def _terms(row: TableRow) -> str:
    return "without privacy" if row.epsilon is None else f"epsilon {epsilon_text(row.epsilon)}"


def _figure(row: TableRow, kind: Kind) -> str:
    text = f"{row.row} {printed_text(row) if kind == 'published' else measured_text(row, kind)}"
    if kind == "paper":
        return f"{text} ({epsilon_text(row.paper_epsilon)})"
    known = kind == "sound" and row.sound_interval is not None
    return f"{text} ({interval(row.sound_interval, row.measure)})" if known else text


def _epsilons(document: Document) -> str:
    """Cell with the epsilon that a paper names, and the true one of its mechanism at its noise."""
    ours = _ours(document, "paper")
    named = f"{ours.nominal} named" if ours.nominal else "none named"
    if ours.not_as_published:
        return f"{named}; not run, as {ours.not_as_published}"
    return f"{named}, {epsilon_text(ours.paper_epsilon)} true"


def _verdict(document: Document) -> str:
    """Sentence on a claim: in how many columns it holds, the column by which it is told, and training alone."""
    columns = _columns(document)
    answers = _count_answers(columns)
    untested = [] if answers.startswith("**Not tested") else _untested(columns)
    told = [answers, *untested, _difference(_headline(document)), _left_out(columns), _against_alone(columns)]
    return " ".join(one for one in told if one)


def _count_answers(columns: Sequence[ClaimVerdict]) -> str:
    tested = [one for one in columns if one.answer != "not tested"]
    if not tested:
        return " ".join(["**Not tested**.", *_untested(columns)])
    counts = Counter(one.answer for one in tested)
    (first, many), *others = [(one, counts[one]) for one in ("holds", "refuted", "not shown") if counts[one]]  # type: ignore[index]
    lead = f"**{first.capitalize()}**"
    if not others:
        every = "any of" if first == "not shown" else "all"
        return f"{lead}." if len(tested) == 1 else f"{lead} in {every} {len(tested)} columns."
    rest = ", ".join(f"{name} in {count}" for name, count in others)
    return f"{lead} in {many} of {len(tested)} columns, {rest}."


def _untested(columns: Sequence[ClaimVerdict]) -> list[str]:
    return [f"Not tested at {one.column}: {one.why}." for one in columns if one.why]


def _difference(head: ClaimVerdict) -> str:
    """Clause on the proposed method against its strongest rival, with the interval that the answer rests on, and
    against rows that the paper does not have."""
    found = [head.nearest()] if head.differences else []
    told = [in_words(one, head.measure) for one in found]
    told += [f"{in_words(one, head.measure)}, which is not in the paper's table" for one in head.added]
    return f"{head.column}: {'; '.join(told)}." if told else ""


def _left_out(columns: Sequence[ClaimVerdict]) -> str:
    names = dict.fromkeys(name for one in columns for name in one.left_out)
    return f"Not compared: {', '.join(names)}." if names else ""


def _against_alone(columns: Sequence[ClaimVerdict]) -> str:
    found = [one.verdict for column in columns for one in column.alone]
    if not found:
        return ""
    counts = Counter(found)
    return f"Against training alone: better in {counts['better']} of {len(found)}, worse in {counts['worse']}."
