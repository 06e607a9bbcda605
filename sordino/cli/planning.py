"""`sordino plan` and `sordino advise`: the cost of a run, and advice, before any budget is spent."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import DATA, NOISE, SCHEDULE, File, Json, Keys, experiment_from, taking
from sordino.cli.run import getting_ready
from sordino.errors import UserError

if TYPE_CHECKING:
    from sordino.planning.advise import Advice
    from sordino.privacy.budget.shared_noise import ProtectFrom
    from sordino.study.compare import Comparison
LOOKED_AT = {*DATA, "features", "model"} - {"clients"}
"""Options for which `plan` loads data and network; without them, and without a file, it only calculates."""


@taking(*DATA, "features", "model", "method", "variant", "privacy", *SCHEDULE, "epsilon", *NOISE, "seed", "set")
def plan(
    keys: Keys,
    experiment: File = None,
    parameters: Annotated[
        int | None,
        typer.Option(
            help="How many parameters would be shared. [default: the network's, where data or model are named]",
            min=1,
            max=1_000_000_000_000,
        ),
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="Training records of a client. [default: as in the data]", min=1, max=10**9)
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan a run before any budget is spent: noise, epsilon for every observer, feasibility, advice.

    Where records are protected, the noise of each client follows from its own budget and number of records.
    """
    from dataclasses import asdict

    with getting_ready(as_json):
        from sordino.planning.plan import plan_of

        chosen = experiment_from(experiment, keys)
        look = experiment is not None or any(keys[key] is not None for key in LOOKED_AT)
        found = plan_of(chosen, parameters, records, look)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    from rich.console import Console

    from sordino.report.terminal.details import plan_report

    Console(markup=False).print(plan_report(found, chosen.protect_from), highlight=False)


ABOUT_DATA = tuple(key for key in (*DATA, "features", "model") if key not in ("data", "clients"))
"""Options that matter only where there are data."""


@taking(*DATA, "features", "model", "epsilon", "delta", "protect_from", "allow_vacuous_delta", "store")
def advise(
    keys: Keys,
    experiment: File = None,
    records: Annotated[
        int | None, typer.Option(help="Training records of a client. [default: as in the data]", min=1, max=10**9)
    ] = None,
    parameters: Annotated[
        int | None,
        typer.Option(
            help="How many parameters would be shared. [default: the network's; 1,000 where no data are named]",
            min=1,
            max=10**12,
        ),
    ] = None,
    columns: Annotated[
        int | None,
        typer.Option(
            help="Columns of tables with two outcomes, in place of --parameters. [default: as in the data]", min=1
        ),
    ] = None,
    rare: Annotated[
        int | None,
        typer.Option(
            help="Training records of all clients with the rarer of two outcomes, for tables. [default: as in the "
            "data, else half of all]",
            min=1,
            max=10**12,
        ),
    ] = None,
    trying: Annotated[
        bool, typer.Option("--try", help="Run the most promising ones, on the data or on a public stand-in.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recommend a level, a method, the size of the shared model, and whether to federate at all."""
    from sordino.methods import names
    from sordino.planning.advise import advise as advise_on
    from sordino.planning.advise import spends, stand_in
    from sordino.planning.situation import situation_of

    known = keys["data"] is not None or experiment is not None
    if not known:
        _check_used(keys)
    chosen = experiment_from(experiment, keys, names())
    situation = situation_of(chosen, records, parameters, known, columns, rare)
    found = advise_on(situation)
    if not as_json:  # at once: whoever tries should know what, and may stop before it costs anything
        _show(found)
    tried = None
    if trying:
        from sordino.cli.run import progress_display
        from sordino.study.compare import compare

        chosen = chosen if known else stand_in(chosen, situation)
        with progress_display(as_json) as display:
            display.say(spends(chosen, found, known))
            tried = compare(chosen, found.candidates, 1, display)
    if as_json:
        typer.echo(json.dumps(asdict(found) | _for_machines(tried, known)))
    elif tried is not None:
        _show_tried(tried, chosen.protect_from, known)


def _show(found: Advice) -> None:
    """Print the advice with the options of `run`, and the reasons."""
    from rich.console import Console

    console = Console(markup=False)
    options = "".join(f" --set {setting}" for setting in found.settings)
    protects = "nothing leaves a client" if found.level == "none" else f"protects one {found.level}"
    console.print(f"{found.method}{options}: {protects}", style="bold", highlight=False)
    for sentence in found.advice:
        console.print(f"- {sentence}", highlight=False)


def _show_tried(tried: Comparison, protect_from: ProtectFrom, real: bool) -> None:
    """Print the results of the trial runs and, on `real` data, what they cost the people."""
    from rich.console import Console

    from sordino.cli.run import show_meaning
    from sordino.report.terminal.results import comparison_table

    console = Console(markup=False)
    console.print()
    console.print(comparison_table(tried.rows))
    show_meaning(tried.rows, console)
    for sentence in (*tried.verdict, *(tried.together(protect_from) if real else ())):
        console.print(sentence, highlight=False)


def _check_used(keys: Keys) -> None:
    """Refuse options that would be ignored where no data are named."""
    for key in ABOUT_DATA:
        if keys[key] is not None:
            instead = ", or give --parameters" if key == "model" else ""
            raise UserError(f"--{key.replace('_', '-')} needs data: name them with --data{instead}.")


def _for_machines(tried: Comparison | None, real: bool) -> dict[str, Any]:
    """JSON keys of the trial runs' results and, on `real` data, of what they cost the people."""
    if tried is None:
        return {}
    document = tried.document()
    found = {"tried": document["rows"], "verdict": document["verdict"]}
    return found | ({"over_runs": document["over_runs"]} if real else {})
