"""Commands on a finished run: `show` (result and metrics), `predict` (on new records), `export` (a model)."""

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
    typer.Option(
        help="Whose model: a client's name (`sordino show RUN --clients`). [default: the shared model of a run, the "
        "site's own in a site's folder]"
    ),
]
Shared = Annotated[
    bool, typer.Option("--shared", help="The shared model, also in a site's folder: the one that may be given away.")
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


def _chosen(models: Models, run: str, client: str | None, shared: bool) -> str | None:
    """Client whose model is meant; None for the server's, which a run's name alone means."""
    if client is not None and shared:
        from sordino.errors import UserError

        raise UserError("Give --client for a client's model or --shared for the server's, not both.")
    return models.only_client() if client is None and not shared and is_site(run) else client


def predict(
    run: RunOrSite,
    file: Annotated[Path, typer.Argument(help="New records: a CSV, Parquet or NPZ file.")],
    client: Client = None,
    shared: Shared = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the predictions go (CSV).")] = Path(
        "predictions.csv"
    ),
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Predict with the shared model or a client's: one line per record, with its class and the probability of each, its
    number with a 90 % interval, or its survival curve."""
    from sordino.trained.predict import predict as predict_on

    if output.exists() and file.exists() and output.samefile(file):
        from sordino.errors import UserError

        raise UserError(f"The predictions would take the place of the records in {file}: name another file with -o.")
    models = _models(run, store)
    client = _chosen(models, run, client, shared)
    found = predict_on(models, client, file)
    found.write(output)
    labels = found.labels()
    counts = found.counts()
    judged = found.judged(models.about.meaning.schema)
    unusable = len(labels) - int(found.records.usable.sum())
    if as_json:
        told = {"records": len(labels), "predicted": counts, "without_prediction": unusable}
        told |= {} if judged is None else {"judgement": judged.to_dict()}
        told |= {} if found.threshold is None else {"threshold": found.threshold}
        if found.records.outside is not None:
            columns = {name: one.to_dict() for name, one in found.records.outside.items()}
            told["outside_range"] = {"records": found.records.rows_outside(), "columns": columns}
        typer.echo(json.dumps({"file": str(output), "client": client, **told}))
        return
    shares = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    typer.echo(f"{output}: {len(labels)} records; predicted: {shares or 'nothing'}")
    if unusable:
        typer.echo(f"{unusable} records have no prediction: they lack a value that the schema requires.")
    note = found.records.note_outside()
    if note is not None:
        typer.echo(f"Note: {note}", err=True)
    if found.threshold is not None:
        typer.echo(f"{found.task.positive_name!r} is predicted from a probability of {found.threshold:.3f} on.")
    for sentence in _untrained(run, store) if client is None else ():
        typer.echo(sentence)
    if judged is not None:
        from rich.console import Console

        from sordino.report.terminal.metrics import confusion_table, judged_table

        console = Console(markup=False)
        document = judged.to_dict()
        over = f"on {judged.records} records whose {'class' if judged.classes else 'outcome'} the file says"
        confusion = ["", confusion_table(document)] if judged.classes else []
        for part in ("", judged_table({"figure": document}, over), *confusion, *judged.notes):
            console.print(part, highlight=False)


def export(
    run: RunOrSite,
    client: Client = None,
    shared: Shared = False,
    kind: Annotated[
        str, typer.Option("--format", help="onnx, torch (a program) or safetensors (the numbers).")
    ] = "onnx",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where it goes. [default: CLIENT or RUN, and .onnx, .pt2 or .safetensors]"),
    ] = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Write the shared model, or a client's, for other programs, with its schema inside."""
    from sordino.trained.export import ENDINGS, FORMATS, check_installed
    from sordino.trained.export import export as export_model

    if kind not in FORMATS:
        from sordino.errors import unknown

        raise unknown("format", kind, FORMATS)
    check_installed(kind)
    models = _models(run, store)
    client = _chosen(models, run, client, shared)
    path = output or Path(f"{models.about.run if client is None else client}{ENDINGS[kind]}")
    export_model(models, client, kind, path)
    cover = None if client is not None or is_site(run) else _cover(run, store)
    if as_json:
        told = {"file": str(path), "format": kind, "client": client}
        typer.echo(json.dumps(told if client is not None else {**told, "epsilon": cover}))
        return
    if client is None:
        typer.echo(f"{path}: the shared model of {models.about.run}. Its description (schema, classes) is inside.")
        for sentence in (_given_away(run, cover), *_untrained(run, store)):
            typer.echo(sentence)
        return
    typer.echo(f"{path}: what {client} predicts with. Its description (schema, classes) is inside.")
    typer.echo(
        f"It stays with {client}: whoever else is given it may learn more of {client}'s records than epsilon says."
    )


def _cover(run: str, store: Path) -> float | None:
    """Epsilon of a run for whoever sees its shared model; None where it is infinite."""
    from sordino.store.store import Store

    result = Store(store, must_exist=True).get(run).result
    return None if result is None else result.epsilon["outsider"]


def _given_away(run: str, epsilon: float | None) -> str:
    """Sentence on who may have a shared model."""
    if is_site(run):
        return "It may be given away as far as the epsilon of its run says (`sordino site status`)."
    if epsilon is None:
        return "No epsilon covers it: whoever is given it may learn more of the clients' records than anybody should."
    from sordino.report.terminal.results import epsilon_text

    return (
        f"It may be given away: the run's epsilon for outsiders, {epsilon_text(epsilon)}, covers whatever is read from "
        "it. What clients predict with themselves stays with them (--client)."
    )


def _untrained(run: str, store: Path) -> list[str]:
    """Sentence on layers of a run's shared model that its method leaves to the clients."""
    if is_site(run):
        return []
    from sordino.errors import UserError
    from sordino.experiment.config import Experiment
    from sordino.parts.masks import PersonalHead
    from sordino.store.store import Store

    try:
        method = Experiment.make(Store(store, must_exist=True).get(run).configuration).build_method()
    except UserError:  # the method is not here any more
        return []
    if not isinstance(method, PersonalHead) or not method.personal_layers:
        return []
    return [
        f"Its last layers ({method.personal_layers}) were never trained: the method leaves them to its clients, and "
        "nobody predicts with the shared model alone. Take a client's model (--client)."
    ]
