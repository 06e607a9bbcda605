"""Commands that look after services: `serve install`, `site install`, and `site migrate` after an upgrade."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.deploy import SERVER_FOLDER, MonitorAddress, ServerFolder
from sordino.cli.options import Json, StoreOrNone
from sordino.errors import UserError
from sordino.experiment.defaults import DEFAULT_STORE

if TYPE_CHECKING:
    from sordino.deploy.services import Service

Print = Annotated[bool, typer.Option("--print", help="Write the unit to standard output instead of installing it.")]
System = Annotated[
    bool, typer.Option("--system/--user", help="A service of the machine, as the folder's owner, or of this user.")
]
VARIABLES = "service.env"
"""File in a folder of a server or a site with variables of its service, such as proxies."""
PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")


def install_site(
    folder: Annotated[Path, typer.Argument(help="The site's folder (`sordino site init`).")] = Path(),
    server: Annotated[
        str | None, typer.Option(help=f"Where the server is: HOST:PORT. [default: SORDINO_SERVER in {VARIABLES}]")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", help=f"The server's ca.pem. [default: SORDINO_CA in {VARIABLES}]")
    ] = None,
    system: System = False,
    monitor: MonitorAddress = None,
    shown: Print = False,
    as_json: Json = False,
) -> None:
    """Write a systemd unit that keeps a site taking part (`sordino join`), also after a crash or a restart."""
    from sordino.deploy import services
    from sordino.deploy.site.rules import FILE

    where = folder.resolve()
    if not (where / FILE).is_file():
        raise UserError(f"There is no site in {folder}: `sordino site init` makes one.")
    if ca is not None and not ca.is_file():
        raise UserError(f"There is no certificate {ca}: the server's operator gives you its ca.pem.")
    command = ["join", str(where), "--log-json"]
    command += [] if server is None else ["--server", _checked(server)]
    command += [] if ca is None else ["--ca", str(ca.resolve())]
    command += [] if monitor is None else ["--monitor", _checked(monitor)]
    user = services.owner_of(where) if system else None
    _finish(
        services.Service(
            name=services.service_name("site", where.name),
            about=f"Sordino site {where.name}",
            command=command,
            folder=where,
            writable=[where, *_witness_folder(where, user)],
            environment=_environment(user),
            environment_file=where / VARIABLES,
            ports=[] if monitor is None else [_port(monitor)],
            user=user,
        ),
        shown,
        as_json,
        missing=[name for name, value in (("SORDINO_SERVER", server), ("SORDINO_CA", ca)) if value is None],
    )


def install_server(
    experiment: Annotated[Path, typer.Argument(help="The experiment (TOML) to serve.")],
    address: Annotated[str, typer.Option(help="Where sites reach the server.")] = "0.0.0.0:8000",
    folder: ServerFolder = SERVER_FOLDER,
    store: StoreOrNone = None,
    system: System = False,
    monitor: MonitorAddress = None,
    shown: Print = False,
    as_json: Json = False,
) -> None:
    """Write a systemd unit that serves an experiment to its end, also after a crash or a restart."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy import services
    from sordino.flower.keys import CERTIFICATE_KEY

    where, kept = folder.resolve(), (store or DEFAULT_STORE).resolve()
    if not experiment.is_file():
        raise UserError(f"There is no experiment {experiment}: name the TOML file that the server is to run.")
    if not (where / CERTIFICATE_KEY).is_file():
        raise UserError(f"There is no server in {folder}: `sordino serve init --host NAME` makes one.")
    command = ["serve", str(experiment.resolve()), "--take-up", "--log-json", "--address", _checked(address)]
    command += ["--folder", str(where), "--store", str(kept)]
    command += [] if monitor is None else ["--monitor", _checked(monitor)]
    user = services.owner_of(where) if system else None
    if not shown:
        kept.mkdir(parents=True, exist_ok=True)
    _finish(
        services.Service(
            name=services.service_name("server", experiment.stem),
            about=f"Sordino server of {experiment.name}",
            command=command,
            folder=where,
            writable=[where, kept],
            environment=_environment(user),
            environment_file=where / VARIABLES,
            ports=[_port(one) for one in (address, monitor) if one is not None],
            user=user,
            interrupted=True,
        ),
        shown,
        as_json,
    )


def migrate(
    folder: Annotated[Path, typer.Argument(help="The site's folder, made by an earlier version.")],
    as_json: Json = False,
) -> None:
    """Bring a site's folder that an earlier version made up to this one: rules, ledger, witness. Nothing that left is
    forgotten; a folder of this version stays as it is."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.site.migration import FORMER_RULES, migrate_site
    from sordino.deploy.site.rules import FILE
    from sordino.util.formatting import round_up

    done = migrate_site(folder)
    if as_json:
        typer.echo(json.dumps(done.to_dict()))
        return
    if done.limits:
        typer.echo(f"{folder / FILE} now says what version 0.4 took for granted: check {', '.join(done.limits)}.")
        typer.echo(f"The former file is {folder / FORMER_RULES}.")
    for sentence in done.notices:
        typer.echo(sentence)
    for run in done.open_runs:
        typer.echo(f"The run {run} is not over: it goes on only under the version that began it. What it paid, counts.")
    spent = ", ".join(f"{view} {'infinite' if one is None else round_up(one)}" for view, one in done.spent.items())
    typer.echo(f"The site in {folder} is of this version. Epsilon spent: {spent}.")


def _finish(service: Service, shown: bool, as_json: bool, missing: list[str] | None = None) -> None:
    """Print or install a service that can work; variables that are `missing` in the unit have to be in its file of
    variables."""
    written = service.environment_file
    assert written is not None
    known = written.read_text() if written.is_file() else ""
    lacking = [name for name in missing or () if f"{name}=" not in known]
    if lacking:
        options = " and ".join({"SORDINO_SERVER": "--server", "SORDINO_CA": "--ca"}[name] for name in lacking)
        raise UserError(f"Give {options}, or write {' and '.join(f'{name}=...' for name in lacking)} into {written}.")
    if shown:
        typer.echo(service.unit(), nl=False)
        return
    path = service.install()
    if as_json:
        typer.echo(json.dumps({"unit": str(path), "name": service.name, "next": service.next_steps()}))
        return
    typer.echo(f"The unit is {path}. Start it, now and with the machine:")
    for line in service.next_steps():
        typer.echo(f"  {line}")


def _environment(user: str | None) -> dict[str, str]:
    """Variables of a service: proxies as they are here, and the state folder in which witnesses are looked for."""
    import pwd

    found = {name: os.environ[name] for name in PROXIES if os.environ.get(name)}
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = (Path.home() if user is None else Path(pwd.getpwnam(user).pw_dir)) / ".local" / "state"
    return {"XDG_STATE_HOME": str(state), "PYTHONUNBUFFERED": "1", **found}


def _witness_folder(folder: Path, user: str | None) -> list[Path]:
    """Folder of the site's witness, to which its service writes."""
    from sordino.deploy.site.rules import read_rules

    named = read_rules(folder).rules.witness
    if named is not None:
        return [(folder / named).resolve()]
    return [Path(_environment(user)["XDG_STATE_HOME"]) / "sordino"]


def _checked(address: str) -> str:
    _port(address)
    return address


def _port(address: str) -> int:
    from sordino.flower import check_installed

    check_installed()
    from sordino.flower.serving import parse_address

    return parse_address(address)[1]
