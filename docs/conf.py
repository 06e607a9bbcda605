"""Settings of `make docs`, which builds the site from the pages of this folder and pages made of the code (made.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from made import make  # noqa: E402
from sphinx.ext.napoleon import Config, GoogleDocstring  # noqa: E402

from sordino.version import VERSION  # noqa: E402

project, author, release = "Sordino", "the authors of Sordino", VERSION
copyright = "Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["build"]
suppress_warnings = ["myst.strikethrough"]

html_theme = "furo"
html_title = f"Sordino {VERSION}"
html_static_path = ["static", "../sordino/report/html/style"]
html_css_files = ["site.css", "pictures.css"]
html_copy_source = html_show_sphinx = False

myst_heading_anchors = 3
default_role = "code"  # what docstrings have between backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True


def format_arguments(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Format `Args:` of functions. Not by loading napoleon as an extension: of attributes it takes the words before a
    colon for a type."""
    if what in ("class", "function", "method"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, value, options).lines()


def setup(app: Any) -> None:
    """Make the pages that come from the code before Sphinx looks for pages."""
    make(HERE / "made")
    app.connect("autodoc-process-docstring", format_arguments)
