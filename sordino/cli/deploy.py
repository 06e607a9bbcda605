"""Commands of a deployment: `deploy` (a trial on this machine), `serve` (the server) and `join` (a site takes part)."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import Features, Json, StoreOrNone
from sordino.cli.run import RunStoppedError, progress_display, show_result
from sordino.cli.site import SiteFolder
from sordino.errors import Stopped, UserError
from sordino.experiment.defaults import DEFAULT_STORE

if TYPE_CHECKING:
    from sordino.deploy.protocol.roster import Member
    from sordino.util.display import Display
    from sordino.util.json_lines import JsonLines

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class _WithDefault(typer.core.TyperGroup):
    """Group of commands with a default command."""

    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """`serve EXPERIMENT.toml` is `serve run EXPERIMENT.toml`."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write usage with and without a command's name."""
        self.commands[self.default].format_usage(self._in_place(ctx), formatter)
        super().format_usage(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options of the default command, then the commands."""
        self.commands[self.default].format_options(self._in_place(ctx), formatter)
        self.format_commands(ctx, formatter)

    def _in_place(self, ctx: Any) -> Any:
        """Context of the default command, called by the group's name."""
        return type(ctx)(self.commands[self.default], info_name=ctx.info_name, parent=ctx.parent)


serve_commands = typer.Typer(
    rich_markup_mode=None,
    help="Be the server of a deployment: `serve init`, `serve add`, `serve roster`, then `serve EXPERIMENT.toml`.",
    no_args_is_help=True,
    add_completion=False,
    cls=_WithDefault,
)
ExperimentFile = Annotated[Path | None, typer.Argument(help="The experiment (TOML), with shape and labels declared.")]
ServerFolder = Annotated[Path, typer.Option("--folder", help="The server's folder: its keys and sites.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Take up a stopped run.")]
SERVER_FOLDER = Path("server")
MonitorAddress = Annotated[
    str | None,
    typer.Option("--monitor", metavar="HOST:PORT", help="Where /health and /metrics are answered. [default: nowhere]"),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines of JSON on standard error, for a service.")]


def deploy(
    experiment: ExperimentFile = None,
    local: Annotated[
        int | None, typer.Option("--local", help="Number of sites of a trial on this machine.", min=2, max=1000)
    ] = None,
    resume: Resume = None,
    features: Features = None,
    store: StoreOrNone = None,
    as_json: Json = False,
) -> None:
    """Try a deployment on this machine: a server and sites, each a process, over TLS. Ends like `sordino run`."""
    from sordino.flower import check_installed

    check_installed()
    if (experiment is None) == (resume is None) or (resume is None and local is None):
        raise UserError(
            "Give an experiment and how many sites to try it with, `sordino deploy EXPERIMENT.toml --local 5`; on "
            "several machines `sordino serve` and `sordino join` do the work. `--resume RUN` takes a trial up."
        )
    from sordino.experiment.config import Experiment
    from sordino.flower import trial
    from sordino.util.processes import single_threaded

    if resume is not None and features is not None:
        raise UserError("A trial that is taken up has the features that it was begun with: leave out --features.")
    chosen = None if experiment is None else Experiment.read(experiment, _store_key(store), {"features": features})
    folder = store or (DEFAULT_STORE if chosen is None else chosen.store)
    tell = _teller(as_json)
    if chosen is not None and chosen.unnamed:
        from sordino.experiment.prepare import choose_method

        chosen, told = choose_method(chosen.model_copy(update={"clients": local}))
        tell(told or f"No method named: {chosen.method}.")
    with single_threaded():
        if chosen is not None:
            assert local is not None
            tell(f"Starting a server and {local} sites on this machine.")
            ready = trial.open_trial(chosen, local, folder)
        else:
            assert resume is not None
            ready = trial.resume_trial(resume, folder)
        # Sites are forked before the progress starts its thread.
        with ready as found, progress_display(as_json) as display, _naming_command("deploy"):
            result = found.run(display.run(None, found.rounds), tell)
    show_result(result, found.store, as_json)
    tell(f"The trial's sites are in {found.folders[0].parent}; sordino site status '{found.folders[0]}' shows one.")


@serve_commands.command()
def init(
    host: Annotated[list[str], typer.Option("--host", help="A name or address of the server; repeatable.")],
    folder: ServerFolder = SERVER_FOLDER,
    as_json: Json = False,
) -> None:
    """Make a server's keys: an authority and a certificate for its names."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.flower import keys, serving

    serving.create_server(folder, host)
    authority = folder / keys.AUTHORITY
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "ca": str(authority), "hosts": host}))
        return
    typer.echo(f"The server's keys are in {folder}. Give {authority} to the owner of each site; keep the rest secret.")


@serve_commands.command()
def renew(
    host: Annotated[
        list[str] | None, typer.Option("--host", help="A further name or address of the server; repeatable.")
    ] = None,
    folder: ServerFolder = SERVER_FOLDER,
    as_json: Json = False,
) -> None:
    """Make a new certificate under the same authority: sites need nothing new."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.flower import serving

    until = serving.renew_certificate(folder, host or [])
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "hosts": host or [], "until": until.isoformat()}))
        return
    typer.echo(f"The certificate in {folder} holds until {until:%d %B %Y}. Sites need nothing new; a server that is")
    typer.echo("running takes it up when it is started again: `sordino serve --resume RUN`, or, for a service,")
    typer.echo("`systemctl restart` (with `--user` where it is this user's).")


@serve_commands.command()
def add(
    files: Annotated[list[Path], typer.Argument(help="Sites' public lines, NAME.pub.")],
    folder: ServerFolder = SERVER_FOLDER,
    as_json: Json = False,
) -> None:
    """Admit sites to the deployment."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.deploy.protocol.roster import fingerprint
    from sordino.flower import serving

    found = serving.add_sites(folder, files)
    if as_json:
        rows = [{"name": site.name, "fingerprint": fingerprint(site.identity)} for site in found]
        typer.echo(json.dumps({"sites": rows}))
        return
    for site in found:
        typer.echo(f"{site.name}  {fingerprint(site.identity)}")
    many = "1 site" if len(found) == 1 else f"{len(found)} sites"
    typer.echo(f"{many} may take part. `sordino serve roster` prints the roster for their owners.")


@serve_commands.command()
def roster(folder: ServerFolder = SERVER_FOLDER) -> None:
    """Print the roster, which owners compare and pin."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.flower import serving

    typer.echo(serving.roster_file(folder), nl=False)


@serve_commands.command(name="run", hidden=True)
def serve(
    experiment: ExperimentFile = None,
    address: Annotated[str, typer.Option(help="Where sites reach the server.")] = "0.0.0.0:8000",
    folder: ServerFolder = SERVER_FOLDER,
    resume: Resume = None,
    take_up: Annotated[
        bool,
        typer.Option("--take-up", help="Take up this experiment's newest run in the store, where there is one."),
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites.", min=1)] = 600.0,
    store: StoreOrNone = None,
    monitor: MonitorAddress = None,
    log_json: LogJson = False,
    as_json: Json = False,
) -> None:
    """Run an experiment with the sites that join."""
    from sordino.flower import check_installed

    check_installed()
    log = _json_log("server") if log_json else None
    with _ending(log):
        _serve(experiment, address, folder, resume, take_up, wait, store, monitor, log, as_json)


def _serve(
    experiment: Path | None,
    address: str,
    folder: Path,
    resume: str | None,
    take_up: bool,
    wait: float,
    store: Path | None,
    monitor: str | None,
    log: JsonLines | None,
    as_json: bool,
) -> None:
    from sordino.deploy.declarations import shape_of
    from sordino.deploy.monitor import Monitor, WatchedCarrier, answering
    from sordino.deploy.server import coordinator
    from sordino.deploy.terms import terms_of
    from sordino.experiment.config import Experiment
    from sordino.flower import keys, serving
    from sordino.store.store import Store
    from sordino.util.processes import single_threaded

    if experiment is None and resume is None:
        raise UserError("Give an experiment, `sordino serve EXPERIMENT.toml`, or a run to take up, `--resume RUN`.")
    chosen = None if experiment is None else Experiment.read(experiment, _store_key(store))
    kept = store or (DEFAULT_STORE if chosen is None else chosen.store)
    members = serving.read_sites(folder)
    where = serving.parse_address(address)
    watched_at = None if monitor is None else serving.parse_address(monitor)
    deadlines = coordinator.Deadlines(hello=wait)
    tell = _teller(as_json) if log is None else log.say
    if chosen is not None and chosen.unnamed:
        chosen, told = chosen.for_data(shape_of(chosen), chosen.clients or 0, chosen.records_each)
        tell(told or f"No method named: {chosen.method}.")
    with single_threaded(), progress_display(as_json or log is not None) as screen, _naming_command("serve"):
        display: Display = screen if log is None else log
        runs = Store(kept, must_exist=resume is not None)
        rows = [site.member for site in members]
        if resume is not None:
            asked = coordinator.deployed_experiment(resume, runs)
        else:
            assert chosen is not None
            coordinator.check_deployable(chosen)
            asked, resume = chosen, coordinator.newest_run(chosen, rows, runs) if take_up else None
            if resume is not None:
                tell(f"Taking up the run {resume}.")
        if not members:
            raise UserError(f"No site has been added to {folder}: `sordino serve add NAME.pub` does.")
        node_keys, largest = [site.node_key for site in members], terms_of(asked).largest_answer
        with (
            contextlib.ExitStack() as answers,
            serving.serve(folder, where, node_keys, largest, refused=_teller_of_refused(rows, tell)) as link,
        ):
            watched = Monitor.of_server(link.is_alive, len(members), asked.rounds, keys.server_expiry(folder))
            answers.enter_context(answering(watched, watched_at))
            carrier, watch = WatchedCarrier(link, watched), watched.watching(display.run(None, asked.rounds))
            for sentence in keys.check_server_keys(folder):
                tell(sentence)
            tell(f"Waiting for sites at {address}.")
            if resume is not None:
                result = coordinator.resume(resume, carrier, runs, watch, tell, deadlines)
            else:
                result = coordinator.start(asked, rows, carrier, runs, watch, tell, deadlines)
            watched.set("sordino_server_run_over", 1)
    if log is not None:
        log.write("over", run=result.run, rounds=result.rounds_done)
    if log is None or as_json:
        show_result(result, runs, as_json)


def _teller_of_refused(members: Sequence[Member], tell: Callable[[str], None]) -> Callable[[int, str], None]:
    """Function that tells of a site, by its place among `members`, whose version cannot connect."""
    return lambda place, sentence: tell(f"{members[place].name} cannot connect: {sentence}")


def join(
    folder: SiteFolder,
    server: Annotated[str, typer.Option(envvar="SORDINO_SERVER", help="Where the server is: HOST:PORT.")],
    ca: Annotated[Path, typer.Option("--ca", envvar="SORDINO_CA", help="The server's ca.pem.")],
    threads: Annotated[int, typer.Option(help="Threads of the training; results may depend on them.", min=1)] = 1,
    monitor: MonitorAddress = None,
    log_json: LogJson = False,
) -> None:
    """Take part in a deployment, until Ctrl-C: answer what the server asks, as far as the site's rules permit."""
    from sordino.flower import check_installed

    check_installed()
    from sordino.flower import node, serving

    log = _json_log("site") if log_json else None
    with _ending(log):
        watched_at = None if monitor is None else serving.parse_address(monitor)
        node.join(folder, server, ca, threads, _say_with_time if log is None else log.say, watched_at)


def _say_with_time(sentence: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {sentence}", err=True)


def _json_log(service: str) -> JsonLines:
    """Log of a service on standard error."""
    from sordino.util.json_lines import JsonLines

    return JsonLines(service)


@contextlib.contextmanager
def _ending(log: JsonLines | None) -> Iterator[None]:
    """Write the sentence with which a command ends into a log of JSON lines, where there is one, and nowhere else."""
    try:
        yield
    except (UserError, RunStoppedError) as end:
        if log is None:
            raise
        stopped = isinstance(end, RunStoppedError)
        log.write("stopped" if stopped else "ended", "info" if stopped else "error", text=str(end))
        raise typer.Exit(INTERRUPTED if stopped else 2) from end


def _store_key(store: Path | None) -> dict[str, Any]:
    return {} if store is None else {"store": store}


def _teller(quiet: bool) -> Callable[[str], None]:
    """Function that prints sentences on standard error, above the progress; it prints nothing if `quiet`."""
    from sordino.report.terminal.progress import error_console

    console = error_console()
    return (lambda sentence: None) if quiet else (lambda sentence: console.print(sentence, highlight=False))


@contextlib.contextmanager
def _naming_command(command: str) -> Iterator[None]:
    """Name the command that resumes the run in the sentence after Ctrl-C."""
    try:
        yield
    except Stopped as stop:
        raise Stopped(str(stop).replace("sordino serve", f"sordino {command}")) from stop
