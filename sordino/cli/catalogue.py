"""Commands that list methods (`methods`) and networks (`models`), and explain the program's terms (`explain`)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from sordino.cli.options import Json


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One method, with all its hyper-parameters. [default: all]")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the README's table of methods.")] = False,
    as_json: Json = False,
) -> None:
    """List methods: what each is, what leaves a client, and for whom its epsilon holds."""
    from sordino.report.terminal.catalogue import describe_method, describe_methods, methods_markdown

    if name is not None:
        one = describe_method(name)
        typer.echo(json.dumps(one)) if as_json else _show_method(one)
        return
    if markdown:
        typer.echo(methods_markdown())
        return
    found = describe_methods()
    if as_json:
        typer.echo(json.dumps(found))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(markup=False)
    for item in found:
        console.print(Text.assemble((item["name"], "bold"), f": {item['title']}"), highlight=False)
        console.print(Text(f"  {item['paper']}", style="dim"), highlight=False)
        for line in _leaving(item):
            console.print(f"  {line}", highlight=False)
    console.print("`sordino methods NAME` lists a method's hyper-parameters.", style="dim", highlight=False)


def _leaving(item: dict[str, Any]) -> list[str]:
    """Lines on what leaves a client and for whom epsilon holds."""
    leaves = "; ".join(f"{key}: {what}" for key, what in item["releases"].items()) or "nothing"
    if not any(about["views"] for about in item["variants"].values()):
        return [f"leaves a client: {leaves}", "protects nothing: epsilon is infinite for every observer"]
    views = {variant: ", ".join(about["views"]) or "nobody" for variant, about in item["variants"].items()}
    holds = "; ".join(f"{variant}: {who}" for variant, who in views.items())
    if len(set(views.values())) == 1:
        holds = next(iter(views.values()))
    return [f"leaves a client: {leaves}", f"protects one {item['unit']}; epsilon holds for: {holds}"]


def _show_method(item: dict[str, Any]) -> None:
    """Print one method for people."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(markup=False)
    console.print(Text.assemble((item["name"], "bold"), f": {item['title']}"), highlight=False)
    if item["paper"] not in ("", "none"):
        console.print(item["paper"], style="dim", highlight=False)
    for line in _leaving(item):
        console.print(line, highlight=False)
    for variant, about in item["variants"].items():
        if about["caveat"]:
            console.print(f"variant {variant}: {about['caveat']}.", style="yellow", highlight=False)
    console.print("\nhyper-parameters, as --set NAME=VALUE takes them:", style="bold", highlight=False)
    for one in item["hyperparameters"]:
        head = Text.assemble((one["name"], "bold"), f" = {one['default']}  ({one['range']})")
        console.print(Padding(head, (0, 0, 0, 2)), highlight=False)
        if one["meaning"]:
            console.print(Padding(Text(one["meaning"]), (0, 0, 0, 6)), highlight=False)
        if one["paper"]:
            console.print(Padding(Text(f"published: {one['paper']}", style="dim"), (0, 0, 0, 6)), highlight=False)


def models(as_json: Json = False) -> None:
    """List the networks that are known by name, with their sizes and options."""
    from sordino.report.terminal.catalogue import describe_models

    found = describe_models()
    if as_json:
        typer.echo(json.dumps(found))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(markup=False)
    for item in found:
        console.print(Text.assemble((item["name"], "bold"), f": {item['about']}"), highlight=False)
        size = "x".join(map(str, item["shape"]))
        console.print(
            f"  {item['parameters']:,} parameters for {size} inputs and {item['classes']} classes", highlight=False
        )
        for option, default in item["options"].items():
            console.print(f"  --set model.{option}={default}", style="dim", highlight=False)
    console.print("Your own: --model package.module:Class.", style="dim", highlight=False)


def explain(
    word: Annotated[
        str | None, typer.Argument(metavar="[WORD]", help="Word to explain. [default: the list of words]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a word as the program uses it: epsilon, views, personal, blend, ..."""
    from sordino.report.glossary import WORDS, meaning

    if word is None:
        text = json.dumps(WORDS) if as_json else f"`sordino explain WORD` knows: {', '.join(WORDS)}."
    else:
        found, text = meaning(word)
        text = json.dumps({"word": found, "meaning": text}) if as_json else f"{found}: {text}"
    if as_json:
        typer.echo(text)
        return
    from rich.console import Console

    Console(markup=False).print(text, highlight=False)
