"""Migration of a site's folder that an earlier version of Sordino made, as its owner calls it after an upgrade.

Version 0.4 took limits that `site.toml` lacks for granted, kept no witness, and its ledger knows fewer kinds of rows.
The limits are written down, the ledger is checked row by row, gets a witness, and is marked: from then on version 0.4
refuses it. All rows stay in the same chain, so that nothing that left is forgotten. There is no copy of the ledger,
since a copy that is restored would forget; the former `site.toml` is kept beside the new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.deploy.site.judging import run_name
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.rules import FILE, MissingLimitsError, read_rules
from sordino.deploy.site.site import DEFAULT_LIMITS, Site
from sordino.deploy.site.status import status
from sordino.deploy.site.witness import lock_site
from sordino.errors import UserError, writing
from sordino.methods import names
from sordino.util.files import read_file, write_whole
from sordino.util.toml import toml_value

FORMER_RULES = f"{FILE}.former"
"""Name of the copy of rules that a migration completed."""


@dataclass(frozen=True)
class Migration:
    """Outcome of a migration."""

    folder: Path
    limits: dict[str, Any]
    """Limits that were written into `site.toml`; empty where it had them all."""
    notices: tuple[str, ...]
    """Sentences for the owner, as at each start."""
    spent: dict[str, float | None]
    """Epsilon spent over all runs, for each observer; None where it is infinite."""
    open_runs: tuple[str, ...]
    """Runs that are not over: they go on only under the version that began them."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the migration."""
        return {
            "folder": str(self.folder),
            "limits": self.limits,
            "former_rules": str(self.folder / FORMER_RULES) if self.limits else None,
            "spent": self.spent,
            "open_runs": list(self.open_runs),
        }


def migrate_site(folder: Path) -> Migration:
    """Bring a site's folder up to this version. It may be killed at any moment and called again; a folder of this
    version stays as it is."""
    limits = _complete_rules(folder)
    site = Site.open(folder)
    site.close()
    found = status(folder)
    still_open = tuple(run_name(run["run"]) for run in found["runs"] if run["state"] == "open")
    return Migration(folder, limits, tuple(site.notices), found["spent"], still_open)


def _complete_rules(folder: Path) -> dict[str, Any]:
    """Write the limits that version 0.4 took for granted into `site.toml`, and return them.

    A site that has had a witness was opened by a later version, which demands all limits: its file was truncated.
    """
    try:
        read_rules(folder)
    except MissingLimitsError as lacking:
        with lock_site(folder), SiteLedger(folder) as ledger:
            if ledger.is_witnessed():
                raise UserError(
                    f"{folder / FILE} lacks {', '.join(lacking.missing)}, and no earlier version left it so: put the "
                    "whole file back, or write what this site allows."
                ) from lacking
            return _write_limits(folder, lacking.missing)
    return {}


def _write_limits(folder: Path, missing: tuple[str, ...]) -> dict[str, Any]:
    """Write the limits that version 0.4 presumed into `site.toml`, whose former content is kept beside it."""
    presumed = DEFAULT_LIMITS | {"methods": tuple(names())}
    limits = {key: presumed[key] for key in missing if key in presumed}
    if len(limits) < len(missing):
        raise UserError(f"{folder / FILE} lacks its name or the path of its data: put the whole file back.")
    path = folder / FILE
    former = read_file(path)
    added = "".join(f"{key} = {toml_value(value)}\n" for key, value in limits.items())
    with writing(path):
        write_whole(folder / FORMER_RULES, former)
        separator = "" if former.endswith(b"\n") else "\n"
        write_whole(path, former.decode() + f"{separator}\n# what version 0.4 presumed: check it\n{added}")
    return limits
