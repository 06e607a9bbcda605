"""HTML pages: one self-contained file each, which opens from disk and asks the network for nothing."""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sordino.version import VERSION

__all__ = ["answers", "audits", "charts", "gather", "make", "page", "pictures", "runs", "sentences"]


def page(title: str, body: Markup) -> str:
    """Wrap a body, which is HTML already, into a whole page: light or dark as its reader prefers, and fit to print."""
    return render("shell.html", title=title, body=body)


def render(template: str, package: str = "sordino.report.html", **values: Any) -> str:
    """Render a template of this folder, or of another `package` whose templates may extend those here; values that are
    not `Markup` are escaped."""
    return _environment(package).get_template(template).render(style=_style(), version=VERSION, **values)


@functools.cache
def _environment(package: str) -> Environment:
    made = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, "sordino.report.html"))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breakable"] = _breakable
    return made


def _breakable(name: str) -> Markup:
    """A method's name that may be broken behind its brackets' parts, where a column is narrow."""
    return Markup(re.sub(r"([\[=,;])", r"\1<wbr>", str(escape(name))))


def _style() -> Markup:
    folder = resources.files("sordino.report.html") / "style"
    return Markup("".join(folder.joinpath(f"{name}.css").read_text("utf-8") for name in ("pictures", "page")))
