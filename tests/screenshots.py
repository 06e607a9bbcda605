"""Pictures of pages in a browser, to be looked at: `make screenshots`.

The report of a comparison, of a run and of an audit, statements on a run and on a site of a trial, the report on a
site's models, boards of a store, of a deployment and of a site and, where `make docs` has built it, the documentation:
wide, narrow, on a telephone, dark, on paper.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from boards import serving
from browser import DESKTOP, PHONE, browser
from federations import federation, kind

import sordino
from sordino.board.server import SiteBoard, StoreBoard
from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.site.judging import judge_site
from sordino.errors import UserError
from sordino.report.judgement_page import JudgementReport
from sordino.report.site_statement import site_statement_of
from sordino.report.statement import statement_of
from sordino.report.statement_pages import Told, hypertext
from sordino.store.store import Store

SITE = Path("build/docs")
NARROW = (500, 900)
LOOKED_AT = ("index", "epsilon", "own-method", "made/methods/feddpa", "made/commands")


def leave(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
    """Let all sites but the first leave a run behind its first round."""
    later = kind(request) == "work" and wire.unpack(wire.unpack(request)["ask"].tobytes())["round"] > 0
    return Failure("gone") if later and node > 0 else answer()


def statements(folder: Path, run: str) -> dict[str, Path]:
    """Statements on a run and on a site of a trial, and the report on this site's models."""
    shutil.rmtree(folder / "trial", ignore_errors=True)
    with federation(folder / "trial", 3, method="dp-fedsgd", epsilon=2.0, minimum_cohort=3, spare_turns=3) as made:
        made.allow_runs(2)
        made.run()
        with contextlib.suppress(UserError):  # one that two sites have left stays under way
            made.run(leave)
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
    views = {
        view: {"claimed": claimed, "bound": 1.2, "confidence": 0.95, "refuted": False}
        for view, claimed in (("outsider", 8.0), ("peer", 8.5), ("server", None))
    }
    audit = {"method": "dp-fedavg", "unit": "client", "delta": 1e-5, "views": views, "findings": ["Nothing found."]}
    (folder / "audit.json").write_text(json.dumps(audit))
    pages["audit"] = sordino.make_report(folder / "audit.json", output=folder / "audit.html")
    boards = {"board": StoreBoard(folder / "store"), "deployment": StoreBoard(folder / "trial" / "store")}
    boards["owner"] = SiteBoard(next((folder / "trial" / "sites").glob("*/site.toml")).parent)
    pages |= {name.rpartition("/")[2]: SITE / f"{name}.html" for name in LOOKED_AT if SITE.exists()}
    with browser() as opened, contextlib.ExitStack() as served:
        # What was under way shows its progress: the lock of a run makes it so.
        trial = served.enter_context(contextlib.closing(Store(folder / "trial" / "store")))
        served.enter_context(trial.lock(trial.all()[0].run))
        asked = {name: served.enter_context(serving(source)).board.address for name, source in boards.items()}
        for name, address in {**{name: page.resolve().as_uri() for name, page in pages.items()}, **asked}.items():
            for size, words in ((DESKTOP, "wide"), (NARROW, "narrow"), (PHONE, "phone")):
                for dark in (False, True):
                    with opened.tab(address, size, dark) as tab:
                        tab.until("!document.querySelector('#budgets')?.textContent.includes('added up')")
                        tab.picture(folder / f"{name}-{words}-{'dark' if dark else 'light'}.png")
        for name, page in pages.items():
            opened.print(page, folder / f"{name}.pdf")
    print(f"The pictures are in {folder}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
