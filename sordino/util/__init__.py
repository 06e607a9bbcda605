"""Helpers that know nothing of federated learning: files, TOML, processes, formatting, plotting."""

__all__ = [
    "display",
    "files",
    "formatting",
    "import_by_name",
    "json_lines",
    "moved",
    "package",
    "plotting",
    "processes",
    "selectable",
    "toml",
]
