"""The command line. Heavy imports stay inside commands, so that `sordino --help` answers at once."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn, TextIO

import typer

from sordino.cli.audit import audit
from sordino.cli.board import board
from sordino.cli.catalogue import explain, methods, models
from sordino.cli.compare import compare
from sordino.cli.curve import curve_commands
from sordino.cli.data import data_commands
from sordino.cli.deploy import INTERRUPTED, deploy, join, serve_commands
from sordino.cli.plain import plain_help
from sordino.cli.planning import advise, plan
from sordino.cli.reports import ledger, report, statement
from sordino.cli.reproduce import reproduce
from sordino.cli.run import RunStoppedError, resume, run
from sordino.cli.runs import rm, runs
from sordino.cli.services import install_server, install_site, migrate
from sordino.cli.site import site_commands
from sordino.cli.trained import export, predict, show
from sordino.errors import ProblemsError, UserError, quoted
from sordino.report.terminal import degrade
from sordino.version import VERSION

__all__ = ["COMMANDS", "app", "main"]

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Error numbers of a full or broken disk, which are nobody's mistake."""
UsageError: Any = typer.BadParameter.__base__
"""Exception for options that typer does not understand, found by its base class, because typer brings its own click."""

plain_help()
app = typer.Typer(
    help="Personalized federated learning under adaptive differential privacy, with epsilons that are true.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in a text are no markup, and narrow terminals cut nothing
)
COMMANDS: dict[Callable[..., Any], str] = {
    run: "Run an experiment.",
    resume: "Resume a stopped run.",
    compare: "Compare methods at equal epsilon.",
    reproduce: "Repeat the papers' tables.",
    plan: "Noise and cost of a run, beforehand.",
    advise: "Which method to use.",
    audit: "Attack a method's claims.",
    methods: "Methods and hyper-parameters.",
    models: "Networks by name.",
    explain: "Meaning of a word.",
    runs: "List the runs of a store.",
    rm: "Remove runs.",
    show: "Show a run's figures.",
    board: "Watch runs in a browser.",
    report: "Make a page of runs.",
    statement: "Make a privacy statement.",
    ledger: "List everything that left.",
    predict: "Predict with a run's models.",
    export: "Export a client's model.",
    deploy: "Try a deployment on this machine.",
    join: "Take part with this machine.",
}
"""Commands, each with a line that fits a narrow terminal."""
for command, line in COMMANDS.items():
    app.command(short_help=line)(command)
serve_commands.command(name="install")(install_server)
site_commands.command(name="install")(install_site)
site_commands.command()(migrate)
app.add_typer(data_commands, name="data", short_help="Data sets and partitions.")
app.add_typer(curve_commands, name="curve", short_help="PAC-DP's curves.")
app.add_typer(serve_commands, name="serve", short_help="The server's side of a deployment.")
app.add_typer(site_commands, name="site", short_help="A site of a deployment.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sordino {VERSION}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Personalized federated learning under adaptive differential privacy, with epsilons that are true."""


def main() -> NoReturn:
    """Entry point: mistakes of the user end with one sentence and exit code 2."""
    try:
        try:
            _run_command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where it can be told that nobody or nothing takes it
    except BrokenPipeError:  # who read has seen enough, as `head` does
        _silence(sys.stdout)
        sys.exit(1)
    except OSError as error:
        if error.errno not in FULL:
            raise
        _silence(sys.stdout)
        with contextlib.suppress(OSError):  # perhaps that is where there is no space
            print(f"Error: the output cannot be written: {error.strerror}.", file=sys.stderr, flush=True)
        _silence(sys.stderr)
        sys.exit(2)


def _silence(stream: TextIO) -> None:
    """Drop the buffered output of a stream, which Python would otherwise try to write again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run_command() -> NoReturn:
    degrade()
    try:
        code = app(standalone_mode=False) or 0
    except ProblemsError as error:
        _refuse(f"{str(error).splitlines()[0]}", error.sentences)
    except UserError as error:
        _refuse(" ".join([str(error), *getattr(error, "__notes__", ())]))
    except RunStoppedError as stop:
        _end(str(stop))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except SystemExit as error:  # no command ends so, but rich does where nobody reads on
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        _refuse(f"Code of your own ended the program (SystemExit: {error}): let it raise an error that says why.")
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(f"{quoted(error.filename)} cannot be used: {error.strerror}.")
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help of a command without arguments
            print(error.format_message())
            sys.exit(error.exit_code)
        _refuse(_usage(error))
    if code == INTERRUPTED:
        _end("Stopped: no run was under way.")
    sys.exit(code)


def _end(sentence: str) -> NoReturn:
    """Print a sentence and exit after Ctrl-C."""
    print(sentence, file=sys.stderr)
    sys.exit(INTERRUPTED)


def _refuse(sentence: str, more: Sequence[str] = ()) -> NoReturn:
    """Print an error and exit: one line per problem, even where a name or another program's message has several
    lines."""
    # Not by typer's echo, which writes UTF-8 even to a terminal that knows only ASCII.
    for line in (f"Error: {sentence}", *(f"- {one}" for one in more)):
        print(" ".join(line.split("\n")), file=sys.stderr)
    sys.exit(2)


def _usage(error: Any) -> str:
    """Sentence on a mistake in a command's options, with the command that lists them."""
    command = "sordino" if error.ctx is None else error.ctx.command_path
    said = re.split(r"(?<=\?) \(?Did you mean", error.format_message())[0]  # typer and click each ask that once
    told = f"{said} `" if said.endswith("?") else f"{said.rstrip('.')}; `"  # a question is a sentence of its own
    return f"{told}{command} --help` shows what can be given."
