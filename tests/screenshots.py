"""Pictures of pages in a browser, to be looked at: `make screenshots`.

The report of a comparison and, where `make docs` has built it, the documentation: wide, on a telephone, dark, on paper.
"""

from __future__ import annotations

import sys
from pathlib import Path

from browser import DESKTOP, PHONE, browser

import sordino

SITE = Path("build/docs")
LOOKED_AT = ("index", "epsilon", "own-method", "made/methods/feddpa", "made/commands")


def main(folder: Path) -> None:
    """Make them."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"store": folder / "store", "rounds": 10, "clients": 100}
    methods = ["local", "dp-fedavg", "feddpa", "dp-fedavg[personal=blend]"]
    rows = sordino.compare(methods=methods, seeds=2, **keys).rows  # type: ignore[arg-type]
    runs = [run for row in rows for run in row["runs"]]
    pages = {"report": sordino.make_report(*runs, output=folder / "report.html", store=folder / "store")}
    pages["run"] = sordino.make_report(rows[2]["runs"][0], output=folder / "run.html", store=folder / "store")
    pages |= {name.rpartition("/")[2]: SITE / f"{name}.html" for name in LOOKED_AT if SITE.exists()}
    with browser() as opened:
        for name, page in pages.items():
            for size, words in ((DESKTOP, "wide"), (PHONE, "phone")):
                for dark in (False, True):
                    opened.look(page, size, dark, folder / f"{name}-{words}-{'dark' if dark else 'light'}.png")
            opened.print(page, folder / f"{name}.pdf")
    print(f"The pictures are in {folder}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
