"""Commands on a finished run: `show` (result and metrics), `predict` (on new records), `export` (a client's model)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import Json, StoreFolder
from sordino.experiment.defaults import DEFAULT_STORE

if TYPE_CHECKING:
    from sordino.trained.models import Models

Run = Annotated[str, typer.Argument(help="The run's name (`sordino runs`).")]
RunOrSite = Annotated[str, typer.Argument(help="The run's name (`sordino runs`), or a site's folder.")]
Client = Annotated[
    str | None,
    typer.Option(help="Whose model: a client's name (`sordino show RUN --clients`); a site's folder has its own only."),
]


def show(
    run: Run,
    clients: Annotated[bool, typer.Option("--clients", help="One line for each client.")] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Show the result of a run, and how well models predict, over all clients or for each."""
    from sordino.store.store import Store, unfinished

    found = Store(store, must_exist=True).get(run)
    result = found.result
    if result is None:
        raise unfinished(found, store)
    rows = _client_rows(run, store) if clients else None
    if as_json:
        typer.echo(json.dumps({**(found.summary or {}), **({} if rows is None else {"client_metrics": rows})}))
        return
    from rich.console import Console

    from sordino.report.terminal.metrics import clients_table
    from sordino.report.terminal.results import run_report

    console = Console(markup=False)
    console.print(
        run_report(result, str(store)) if rows is None else clients_table(rows, result.positive),
        highlight=False,
    )


def _client_rows(run: str, store: Path) -> list[dict[str, Any]]:
    """Metrics of each client by its name; None where it has none."""
    from sordino.trained.models import load_models
    from sordino.util.formatting import finite_or_none

    models = load_models(run, store)
    metrics = models.about.meaning.task.metrics
    return [
        {"client": name, **{key: finite_or_none(value) for key, value in zip(metrics, row, strict=True)}}
        for name, row in zip(models.about.clients, models.metrics, strict=True)
    ]


def is_site(run: str) -> bool:
    """Whether a run's name is the folder of a site; a name that is surely a folder's, but no site's, is refused."""
    if (Path(run) / "site.toml").is_file():
        return True
    if run.endswith("/") or (Path(run) / "site.db").exists():
        from sordino.errors import UserError

        raise UserError(f"There is no site in {run}: it has no file site.toml. `sordino site init` makes a site.")
    return False


def _models(run: str, store: Path) -> Models:
    """Models of a run in a store, or of the site in a folder."""
    if is_site(run):
        from sordino.deploy.site.status import models_at

        return models_at(Path(run))
    from sordino.trained.models import load_models

    return load_models(run, store)


def predict(
    run: RunOrSite,
    file: Annotated[Path, typer.Argument(help="New records: a CSV, Parquet or NPZ file.")],
    client: Client = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the predictions go (CSV).")] = Path(
        "predictions.csv"
    ),
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Predict with a client's model: one line per record, with its class and the probability of each class."""
    from sordino.trained.predict import predict as predict_on

    if output.exists() and file.exists() and output.samefile(file):
        from sordino.errors import UserError

        raise UserError(f"The predictions would take the place of the records in {file}: name another file with -o.")
    models = _models(run, store)
    found = predict_on(models, client or models.only_client(), file)
    found.write(output)
    labels = found.labels()
    counts = found.counts()
    unusable = len(labels) - int(found.records.usable.sum())
    if as_json:
        told = {"records": len(labels), "predicted": counts, "without_prediction": unusable}
        typer.echo(json.dumps({"file": str(output), **told}))
        return
    shares = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    typer.echo(f"{output}: {len(labels)} records; predicted: {shares or 'nothing'}")
    if unusable:
        typer.echo(f"{unusable} records have no prediction: they lack a value that the schema requires.")


def export(
    run: RunOrSite,
    client: Client = None,
    kind: Annotated[
        str, typer.Option("--format", help="onnx, torch (a program) or safetensors (the numbers).")
    ] = "onnx",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where it goes. [default: CLIENT.onnx, .pt2, .safetensors]")
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Write a client's model for other programs, with its schema inside."""
    from sordino.trained.export import ENDINGS, FORMATS, check_installed
    from sordino.trained.export import export as export_model

    if kind not in FORMATS:
        from sordino.errors import unknown

        raise unknown("format", kind, FORMATS)
    check_installed(kind)
    models = _models(run, store)
    client = client or models.only_client()
    path = output or Path(f"{client}{ENDINGS[kind]}")
    export_model(models, client, kind, path)
    if as_json:
        typer.echo(json.dumps({"file": str(path), "format": kind, "client": client}))
        return
    typer.echo(f"{path}: what {client} predicts with. Its description (schema, classes) is inside.")
    typer.echo(
        f"It stays with {client}: whoever else is given it may learn more of {client}'s records than epsilon says."
    )
