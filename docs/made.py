"""The pages that are made from the code: one for each method, the commands, the words, and the pictures of epsilon."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import typer

from sordino.cli import app
from sordino.experiment.config import Experiment
from sordino.methods import find, names
from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of, mu_of
from sordino.report.glossary import WORDS
from sordino.report.html import charts
from sordino.report.html.charts import Line
from sordino.report.terminal.catalogue import describe_methods, field_docs, hyperparameters, methods_markdown
from sordino.report.wording import epsilon_words, neighbour_words

DELTA = 1e-5


def make(folder: Path) -> None:
    """Write all of them."""
    pages = {"methods.md": methods_page(), "commands.md": commands_page()}
    pages |= {"experiment.md": experiment_page(), "words.md": words_page()}
    pages |= {f"methods/{told['name']}.md": method_page(told) for told in describe_methods()}
    pages |= {f"pictures/{name}.html": str(picture) for name, picture in pictures().items()}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:  # Sphinx builds what has changed
            path.write_text(text, "utf-8")
    for path in folder.rglob("*.*"):
        if path.is_file() and str(path.relative_to(folder)) not in pages:
            path.unlink()


def methods_page() -> str:
    """The table of all methods, each linked to its page."""
    table = re.sub(r"^\| `([^`]+)` \|", r"| [`\1`](methods/\1.md) |", methods_markdown(), flags=re.MULTILINE)
    table = re.sub(r"^(\w[^|\n]*):$", r"## \1", table, flags=re.MULTILINE)
    listed = "\n".join(f"methods/{name}" for name in names())
    return f"# Methods\n\n{table}\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def method_page(told: dict[str, Any]) -> str:
    """A method: its header, what leaves a client, and its hyper-parameters."""
    name = told["name"]
    kind = find(name)
    header = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
    parts = [f"# {name}", f"{kind.title[0].upper()}{kind.title[1:]}.", f"*{kind.paper}.* {_protects(name)}"]
    parts += ["## The method", _apart(header)]
    parts += ["## What leaves a client", _leaving(told)]
    caveats = [f"- `{variant}`: {text}." for variant, text in kind.caveats.items()]
    if caveats:
        parts += ["What to know of its epsilon:", "\n".join(caveats)]
    parts += ["## Hyper-parameters", _hyperparameters(kind)]
    parts += [f"The code: `{kind.__module__.replace('.', '/')}.py`."]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands", "Every option of an experiment is also a key of an experiment file."]
    for path, command in _commands(typer.main.get_command(app), ("sordino",)):
        about = inspect.cleandoc(command.help or "").replace("\f", "")
        parts += [f"## {' '.join(path)}", about]
        rows = [_parameter(one) for one in command.params if one.name != "help"]
        if rows:
            parts.append("\n".join(["| | | default |", "|---|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part) + "\n"


def experiment_page() -> str:
    """Every key of an experiment."""
    docs = field_docs(Experiment)
    rows = []
    for name, field in Experiment.model_fields.items():
        default = "" if name == "set" or field.default is None else f"`{field.default}`"
        rows.append(f"| `{name}` | {_cell(docs[name])} | {default} |")
    about = (
        "An experiment file is TOML. Its keys are these; the options of the command line are the same, with dashes for "
        "underscores, and win over the file. Hyper-parameters stand in the table `set`."
    )
    return (
        "\n\n".join(["# Experiment files", about, "\n".join(["| key | meaning | default |", "|---|---|---|", *rows])])
        + "\n"
    )


def words_page() -> str:
    """The glossary of `sordino explain`."""
    words = "\n\n".join(f"**{word}**: {meaning}" for word, meaning in sorted(WORDS.items()))
    return f"# Words\n\n`sordino explain WORD` tells the same.\n\n{words}\n"


def pictures() -> dict[str, Any]:
    """What an epsilon means, in pictures."""
    budgets = np.geomspace(0.1, 20, 80)
    attack = [attack_accuracy(mu_of(float(budget), DELTA)) for budget in budgets]
    caught = Line("", budgets.tolist(), attack)
    drawn = {
        "attack": charts.lines(
            [caught],
            "How often the best attack is right, at delta = 1e-5",
            "epsilon",
            charts.percent,
            lambda value: f"{100 * value:.1f}%",
            marks=[(0.5, "guessing")],
        )
    }
    alarms = np.linspace(0, 1, 101)
    tradeoffs = [Line(f"epsilon {budget:g}", alarms.tolist(), _misses(budget, alarms)) for budget in (0.5, 1, 2, 4, 8)]
    drawn["tradeoff"] = charts.lines(
        tradeoffs,
        "False alarms and misses of the best attack",
        "false alarms (share)",
        charts.percent,
        lambda value: "",
    )
    runs = list(range(1, 11))
    together = [Line(f"epsilon {one:g} each", runs, _together(one, runs)) for one in (1, 2, 8)]
    drawn["runs"] = charts.lines(
        together, "Epsilon of several runs on the same people", "runs", end_words=epsilon_words, logarithmic=True
    )
    clients = np.geomspace(10, 10_000, 60)
    lines = [Line(f"epsilon {budget:g}", clients.tolist(), _share(budget, clients)) for budget in (1, 2, 8)]
    drawn["cohort"] = charts.lines(
        lines,
        "Noise that one client adds, 30 rounds, over its threshold",
        "clients that share the noise",
        logarithmic=True,
        across_logarithmic=True,
    )
    return drawn


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    for name, one in command.commands.items():
        yield from _commands(one, (*path, name))


def _parameter(one: Any) -> str:
    """An argument or option as a row of a table."""
    about = getattr(one, "help", None) or ""
    named = one.name.upper() if one.param_type_name == "argument" else ", ".join(one.opts)
    said = re.search(r"\[default: (.*)\]$", about)
    default = said[1] if said else "" if one.default in (None, False, ()) or callable(one.default) else str(one.default)
    about = about[: said.start()].strip() if said else about
    return f"| `{named}` | {_cell(about)} | {_cell(default)} |"


def _protects(name: str) -> str:
    method = find(name)()
    return (
        f"Protects one {method.unit}. {' '.join(neighbour_words(method.unit))}"
        if method.is_private()
        else "Nothing that leaves is protected, or nothing leaves."
    )


def _leaving(told: dict[str, Any]) -> str:
    rows = [f"| `{name}` | {_cell(about)} |" for name, about in told["releases"].items()]
    return "\n".join(["| what | how |", "|---|---|", *rows]) if rows else "Nothing."


def _hyperparameters(kind: Any) -> str:
    rows = []
    for one in hyperparameters(kind):
        words = " | ".join(_cell(one[key]) for key in ("range", "meaning", "paper"))
        rows.append(f"| `{one['name']}` | `{one['default']}` | {words} |")
    return "\n".join(["| name | default | may be | meaning | published |", "|---|---|---|---|---|", *rows])


def _apart(header: str) -> str:
    """A header as Markdown: a list or table that follows a paragraph without a gap gets one."""
    return re.sub(r"(?m)^(?![-|\s])(.+)\n(?=- )", r"\1\n\n", header)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _misses(budget: float, alarms: np.ndarray) -> list[float]:
    """The share of targets that the best attack misses at each rate of false alarms: Phi(Phi^-1(1 - a) - mu)."""
    from scipy.special import ndtr, ndtri

    return [float(value) for value in ndtr(ndtri(1 - alarms) - mu_of(budget, DELTA))]


def _together(budget: float, runs: list[int]) -> list[float]:
    return [epsilon_of(mu_of(budget, DELTA) * number**0.5, DELTA) for number in runs]


def _share(budget: float, clients: np.ndarray) -> list[float]:
    """The deviation over the threshold with which each of so many clients noises its message in each of 30 rounds."""
    multiplier = 30**0.5 / mu_of(budget, DELTA)
    return [float(multiplier / number**0.5) for number in clients]
