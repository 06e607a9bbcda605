"""Pages: one HTML file each, with everything in it, that opens from disk and asks the network for nothing."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sordino.version import VERSION

__all__ = ["page", "rendered"]


def page(title: str, body: Markup) -> str:
    """A whole page around a body that is HTML already: light or dark as its reader prefers, and made for paper too."""
    return rendered("shell.html", title=title, body=body)


def rendered(template: str, **values: Any) -> str:
    """A template of this folder with its values; what is not `Markup` is escaped."""
    return _environment().get_template(template).render(style=_style(), version=VERSION, **values)


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("sordino.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _style() -> Markup:
    folder = resources.files("sordino.report.html") / "style"
    return Markup("".join(folder.joinpath(f"{name}.css").read_text("utf-8") for name in ("pictures", "page")))
