"""The command line. Heavy imports stay inside commands, so that `sordino --help` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from sordino.cli.accounts import ledger, statement
from sordino.cli.advise import advise
from sordino.cli.audit import audit
from sordino.cli.curve import curve_commands
from sordino.cli.data import data_commands
from sordino.cli.deploy import deploy, join, serve_commands, site_commands
from sordino.cli.models import export, predict, show
from sordino.cli.plan import methods, plan
from sordino.cli.report import report
from sordino.cli.run import RunStoppedError, compare, resume, run, runs
from sordino.errors import ProblemsError, UserError, quoted
from sordino.report.terminal import degrade

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
UsageError: Any = typer.BadParameter.__base__
"""What typer raises for options that it does not understand; by its base class, because typer brings its own click."""

app = typer.Typer(
    help="Personalized federated learning under adaptive differential privacy, with epsilons that are true.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    *(run, resume, compare, plan, advise, audit, methods, runs, show),
    *(report, statement, ledger, predict, export),
    *(deploy, join),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data_commands, name="data")
app.add_typer(curve_commands, name="curve")
app.add_typer(serve_commands, name="serve")
app.add_typer(site_commands, name="site")


def main() -> NoReturn:
    """Entry point: mistakes of the user end with one sentence and exit code 2."""
    degrade()
    try:
        code = app(standalone_mode=False) or 0
    except ProblemsError as error:
        _refuse(f"{str(error).splitlines()[0]}", error.sentences)
    except UserError as error:
        _refuse(str(error))
    except RunStoppedError as stop:
        typer.echo(str(stop), err=True)
        sys.exit(INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(f"{quoted(error.filename)} cannot be used: {error.strerror}.")
    except UsageError as error:
        if not error.format_message():  # a command without arguments has shown its help
            sys.exit(error.exit_code)
        _refuse(_usage(error))
    if code == INTERRUPTED:
        typer.echo("Stopped. `sordino runs` shows the run; `sordino resume RUN` takes it up.", err=True)
    sys.exit(code)


def _refuse(sentence: str, more: Sequence[str] = ()) -> NoReturn:
    """Tell what was wrong, each in one line even where a name or another's message has several."""
    # Not by typer's echo, which writes UTF-8 even to a terminal that knows only ASCII.
    for line in (f"Error: {sentence}", *(f"- {one}" for one in more)):
        print(" ".join(line.split("\n")), file=sys.stderr)
    sys.exit(2)


def _usage(error: Any) -> str:
    """What is wrong with a command's options, with the command that lists them."""
    command = "sordino" if error.ctx is None else error.ctx.command_path
    return f"{error.format_message().rstrip('.')}; `{command} --help` shows what can be given."
