"""Pictures of pages in a browser, to be looked at: `make screenshots`.

The report of a comparison, statements on a run and on a site of a trial, the report on a site's models and, where
`make docs` has built it, the documentation: wide, narrow, on a telephone, dark, on paper.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from browser import DESKTOP, PHONE, browser
from federations import federation

import sordino
from sordino.deploy.site.judging import judge_site
from sordino.report.judgement_page import JudgementReport
from sordino.report.site_statement import site_statement_of
from sordino.report.statement import statement_of
from sordino.report.statement_pages import Told, hypertext
from sordino.store.store import Store

SITE = Path("build/docs")
NARROW = (500, 900)
LOOKED_AT = ("index", "epsilon", "own-method", "made/methods/feddpa", "made/commands")


def statements(folder: Path, run: str) -> dict[str, Path]:
    """Statements on a run and on a site of a trial, and the report on this site's models."""
    shutil.rmtree(folder / "trial", ignore_errors=True)
    with federation(folder / "trial", 3, method="dp-fedsgd", epsilon=2.0) as made:
        made.run()
        told: dict[str, Told] = {
            "statement": statement_of(Store(folder / "store"), run),
            "site": site_statement_of(made.folders[0]),
        }
        told["judged"] = JudgementReport(judge_site(made.folders[0]))
    pages = {name: folder / f"{name}.html" for name in told}
    for name, found in told.items():
        pages[name].write_text(hypertext(found), "utf-8")
    return pages


def main(folder: Path) -> None:
    """Make them."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"store": folder / "store", "rounds": 10, "clients": 100}
    methods = ["local", "dp-fedavg", "feddpa", "dp-fedavg[personal=blend]"]
    rows = sordino.compare(methods=methods, seeds=2, **keys).rows  # type: ignore[arg-type]
    runs = [run for row in rows for run in row["runs"]]
    pages = {"report": sordino.make_report(*runs, output=folder / "report.html", store=folder / "store")}
    pages["run"] = sordino.make_report(rows[2]["runs"][0], output=folder / "run.html", store=folder / "store")
    pages |= statements(folder, rows[2]["runs"][0])
    pages |= {name.rpartition("/")[2]: SITE / f"{name}.html" for name in LOOKED_AT if SITE.exists()}
    with browser() as opened:
        for name, page in pages.items():
            for size, words in ((DESKTOP, "wide"), (NARROW, "narrow"), (PHONE, "phone")):
                for dark in (False, True):
                    opened.look(page, size, dark, folder / f"{name}-{words}-{'dark' if dark else 'light'}.png")
            opened.print(page, folder / f"{name}.pdf")
    print(f"The pictures are in {folder}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
