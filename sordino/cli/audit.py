"""The command that attacks every epsilon which the program prints."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sordino.cli.options import (
    DATA,
    NOISE,
    SCHEDULE,
    Json,
    Keys,
    OnCluster,
    PartOfNode,
    experiment_from,
    given_keys,
    taking,
)
from sordino.cli.run import check_cluster, crew_of
from sordino.errors import check_writable

if TYPE_CHECKING:
    from sordino.experiment.config import Experiment

REFUTED = 1
"""Exit code where a claim is false."""


@taking(*DATA, "features", "model", "method", "variant", *SCHEDULE, "epsilon", *NOISE, "seed", "store", "set")
def audit(
    keys: Keys,
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="[EXPERIMENT|RUN]",
            help="An experiment file (TOML), or a stored simulation, whose keys and data are attacked; options "
            "override its keys. [default: the built-in example]",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Number of attempts to find one client, or one record.", min=1000, max=10_000_000)
    ] = 100_000,
    tiers: Annotated[
        str, typer.Option(help="Which attacks: 0 conformance, 1 mechanism, 2 one real run, 3 side channels.")
    ] = "0,1,2,3",
    cluster: OnCluster = None,
    per_run: PartOfNode = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the findings there too, as JSON with pictures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Attack what a method claims, through the code that really runs; exit code 1 where a claim is false."""
    check_cluster(cluster)
    chosen = _chosen(experiment, keys)
    from sordino.auditing.suite import audit as attack

    wanted = _tiers(tiers)
    check_writable(output)
    with _own_failures(chosen), crew_of(cluster, per_run, None) as crew:
        tell = functools.partial(_tell, quiet=as_json)
        if crew is None:
            report = attack(chosen, trials, wanted, tell)
        else:
            from sordino.auditing.suite import audit_on

            report = audit_on(crew.cluster, crew.per_run, chosen, trials, wanted, tell)
    document = report.asdict(pictures=True) | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    place = _store_document(document, output, chosen.store)
    if as_json:
        typer.echo(json.dumps(report.asdict()))
    else:
        from rich.console import Console

        from sordino.report.terminal.details import audit_report

        console = Console(markup=False)
        console.print(audit_report(report), highlight=False)
        console.print(f"Findings, with numbers for pictures: {place}", style="dim", highlight=False)
    if report.refuted:
        raise typer.Exit(REFUTED)


def _chosen(named: str | None, keys: Keys) -> Experiment:
    """Experiment of a file or of a stored simulation, with options."""
    if named is None or Path(named).exists() or named.endswith(".toml"):
        return cast("Experiment", experiment_from(None if named is None else Path(named), keys))
    from sordino.errors import UserError
    from sordino.experiment.config import Experiment
    from sordino.experiment.defaults import AT_SITES, DEFAULT_STORE
    from sordino.store.store import Store

    configuration = Store(keys.get("store") or DEFAULT_STORE, must_exist=True).get(named).configuration
    if configuration["data"] == AT_SITES and keys.get("data") is None:
        raise UserError(
            f"The records of {named} are at its sites: attack its experiment on other data, as in `sordino audit "
            "EXPERIMENT.toml --data FOLDER`."
        )
    return Experiment.make(configuration, given_keys(keys))


@contextlib.contextmanager
def _own_failures(experiment: Experiment) -> Iterator[None]:
    """Turn an error of a user's own method into a sentence: exit code 1 is for claims that are refuted."""
    from sordino.errors import UserError
    from sordino.experiment.identity import is_own

    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not is_own(experiment.build_method()):
            raise
        what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".rstrip(": ")
        raise UserError(
            f"The method's own code failed before it could be attacked ({what}): make it run with `sordino run` first."
        ) from error


def _tell(sentence: str, quiet: bool) -> None:
    """Print progress for people."""
    if not quiet:
        typer.echo(sentence, err=True)


def _tiers(text: str) -> list[int]:
    from sordino.auditing.suite import ALL_TIERS
    from sordino.errors import UserError

    parts = [part.strip() for part in text.split(",")]
    known = {str(tier): tier for tier in ALL_TIERS}
    if not set(parts) <= known.keys():
        raise UserError(f"--tiers wants some of {', '.join(known)}, separated by commas, not {text!r}.")
    return sorted({known[part] for part in parts})


def _store_document(document: dict[str, Any], output: Path | None, store: Path) -> Path:
    """Write an audit's findings: into the store, or where the user wants them."""
    from sordino.errors import writing
    from sordino.util.files import write_whole

    place = output
    if place is None:
        folder, name = store / "audits", f"{document['method'].rpartition(':')[2]}-{document['variant']}"
        places = (folder / f"{name}-{number}.json" for number in itertools.count(1))
        place = next(one for one in places if not one.exists())
    with writing(place):
        write_whole(place, json.dumps(document))
    return place
