"""HTTP server of the board of a store (`StoreBoard`) or of a site (`SiteBoard`): read-only, reachable from this machine
alone, and only with the token in its address."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit

from markupsafe import Markup

from sordino.board.budgets import BudgetWatch
from sordino.board.look import StoreWatch
from sordino.board.sections import Link, run_parts, site_parts, store_parts, template, version_of
from sordino.errors import UserError
from sordino.store.store import RunRow, Store, gone

HOST = "127.0.0.1"
NAMES = (HOST, "localhost", "[::1]")
"""Host names accepted; others are refused to stop DNS rebinding."""
DEFAULT_PORT = 8484
IDLE_SECONDS = 60.0
"""Seconds after which a connection that asks nothing is closed."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
SCRIPT = (resources.files("sordino.board") / "board.js").read_text("utf-8")
"""Program of the page, which asks for what has changed."""


class NotFoundError(UserError):
    """Page not found; answered with 404."""


class BoardSource(Protocol):
    """Something that a board shows."""

    title: str

    def parts(self, asked: Mapping[str, str], link: Link) -> dict[str, Markup]:
        """Return the parts of the page that changes while it is looked at, by identifier."""

    def page(self, path: str, asked: Mapping[str, str], link: Link) -> str:
        """Write a page that is made when it is asked for; `path` is its address without the slash."""


Page = Callable[["StoreBoard", Mapping[str, str], Link], str]
"""Writes a page of a store's board, from what its address asks for."""


class StoreBoard:
    """Board of a store, and of the deployments whose server keeps it."""

    def __init__(self, folder: Path) -> None:
        self.title = f"Runs in {folder}"
        self._folder, self._watch, self._budgets = folder, StoreWatch(folder), BudgetWatch(folder)

    def parts(self, asked: Mapping[str, str], link: Link) -> dict[str, Markup]:
        look = self._watch.look()
        if "name" not in asked:
            return store_parts(look, *self._budgets.of(look), link)
        row = next((row for row in look.rows if row.run == asked["name"]), None)
        if row is None or row.summary is not None:  # it ended or was removed meanwhile: its page is another one now
            return {"run": template("moved.html", name=asked["name"], href=link("run", name=asked["name"]))}
        return run_parts(row, look, self._folder, link)

    def page(self, path: str, asked: Mapping[str, str], link: Link) -> str:
        if path not in self.PAGES:
            raise NotFoundError("There is no such page: the board's first page names all of them.")
        return self.PAGES[path](self, asked, link)

    def _run(self, asked: Mapping[str, str], link: Link) -> str:
        from sordino.report.html.make import page_about

        row = self._row(asked)
        if row.gone:
            raise NotFoundError(str(gone(row)))
        if row.summary is None:
            return shell(row.run, self.parts(asked, link), link, "run", asked)
        return page_about([row.run], self._folder)

    def _row(self, asked: Mapping[str, str]) -> RunRow:
        look = self._watch.look()
        row = next((row for row in look.rows if row.run == asked.get("name")), None)
        if row is None:
            raise NotFoundError(look.problem or f"There is no run {asked.get('name')!r} in {self._folder}.")
        return row

    def _statement(self, asked: Mapping[str, str], link: Link) -> str:
        from sordino.report.statement import statement_of
        from sordino.report.statement_pages import hypertext

        return hypertext(statement_of(Store(self._folder, must_exist=True, watched=True), self._row(asked).run))

    def _ledger(self, asked: Mapping[str, str], link: Link) -> str:
        from sordino.store.ledger_rows import Account

        found = Account.of(Store(self._folder, must_exist=True, watched=True), self._row(asked).run)
        name = found.row.run
        return template(
            "ledger.html", title=f"Ledger of {name}", rows=found.documents(), head=found.head, home=link("")
        )

    def _study(self, asked: Mapping[str, str], link: Link) -> str:
        from sordino.report.html.make import page_about

        if asked.get("file") not in {study.file for study in self._watch.look().studies}:
            raise NotFoundError("There is no such comparison or audit in the store.")
        return page_about([str(self._folder / asked["file"])], self._folder)

    PAGES: ClassVar[dict[str, Page]] = {
        "run": _run,
        "statement": _statement,
        "ledger": _ledger,
        "study": _study,
    }


class SiteBoard:
    """Board of a site, for its owner."""

    def __init__(self, folder: Path) -> None:
        from sordino.deploy.site.rules import read_rules

        self.title, self._folder = f"Site {read_rules(folder).rules.name}", folder
        self._lock = threading.Lock()
        self._seen: object = None
        self._found: tuple[dict[str, Any], dict[str, Any], list[str]]

    def parts(self, asked: Mapping[str, str], link: Link) -> dict[str, Markup]:
        try:
            return site_parts(*self._read(), link)
        except UserError as error:
            return {"head": template("problem.html", sentence=str(error))}

    def _read(self) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """Status, rules and warnings of the site, read again where its files have changed."""
        from sordino.deploy.site.rules import read_rules
        from sordino.deploy.site.status import status
        from sordino.report.site_statement import warnings_of

        with self._lock:
            seen = [(path.name, path.stat().st_mtime_ns) for path in sorted(self._folder.glob("*")) if path.is_file()]
            if seen != self._seen:
                found, rules = status(self._folder), read_rules(self._folder).rules.model_dump(mode="json")
                self._found, self._seen = (found, rules, warnings_of(found)), seen
            return self._found

    def page(self, path: str, asked: Mapping[str, str], link: Link) -> str:
        from sordino.report.site_statement import site_statement_of
        from sordino.report.statement_pages import hypertext

        if path != "statement":
            raise NotFoundError("There is no such page: the board's first page names all of them.")
        return hypertext(site_statement_of(self._folder))


def shell(
    title: str, parts: Mapping[str, Markup], link: Link, path: str = "", asked: Mapping[str, str] | None = None
) -> str:
    """Write a page whose parts are kept up to date while it is looked at."""
    given = {key: value for key, value in (asked or {}).items() if key != "seen"}
    versions = {name: version_of(html) for name, html in parts.items()}
    return template(
        "board.html",
        title=title,
        parts=parts,
        versions=versions,
        changes=link("changes", **given),
        home=link("") if path else None,
        script=Markup(SCRIPT),
    )


class BoardHandler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: Board
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Sordino", ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        """Answer with a page, or a sentence that says why there is none."""
        try:
            status, kind, text = self._answer()
        except NotFoundError as error:
            status, kind, text = 404, "text/html", self._sentence(str(error))
        except UserError as error:
            status, kind, text = 409, "text/html", self._sentence(str(error))
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # a page must not end the board, nor show its code
            told = f"This page could not be made ({type(error).__name__}: {error})."
            status, kind, text = 500, "text/html", self._sentence(told)
        self._send(status, kind, text)

    do_HEAD = do_GET  # noqa: N815

    def _refuse(self) -> None:
        self._send(405, "text/plain", "The board only shows: it takes GET and HEAD.\n", {"Allow": "GET, HEAD"})
        self.close_connection = True  # whatever was sent with the question is not read

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse  # noqa: N815

    def _answer(self) -> tuple[int, str, str]:
        address = urlsplit(self.path)
        asked = {key: values[-1] for key, values in parse_qs(address.query).items()}
        host = self.headers.get("Host", "").rsplit(":", 1)[0] if "Host" in self.headers else ""
        if host not in NAMES:
            return 403, "text/plain", "The board answers under the names of this machine alone.\n"
        token = asked.pop("token", "")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return 403, "text/plain", "The token in the address is missing or wrong: `sordino board` printed it.\n"
        path, source, link = address.path.strip("/"), self.server.source, self.server.link
        if path == "":
            return 200, "text/html", shell(source.title, source.parts({}, link), link)
        if path == "changes":
            return 200, "application/json", self._changes(asked)
        with self.server.making:  # one at a time: each may take a processor for seconds
            return 200, "text/html", source.page(path, asked, link)

    def _changes(self, asked: Mapping[str, str]) -> str:
        """JSON document of the parts that are not as they were `seen`: identifier and version of each."""
        seen = dict(pair.partition(":")[::2] for pair in asked.get("seen", "").split(","))
        found = self.server.source.parts(
            {key: value for key, value in asked.items() if key != "seen"}, self.server.link
        )
        versions = {name: version_of(html) for name, html in found.items()}
        new = {name: found[name] for name, version in versions.items() if seen.get(name) != version}
        return json.dumps({"versions": versions, "parts": new})

    def _sentence(self, sentence: str) -> str:
        return template("sentence.html", title="No page", sentence=sentence, home=self.server.link(""))

    def _send(self, status: int, kind: str, text: str, more: Mapping[str, str] | None = None) -> None:
        content = text.encode()
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content)), **HEADERS}
        allowed = f"script-src '{self.server.digest}'; connect-src 'self'; frame-ancestors 'none'"
        for name, value in {**headers, "Content-Security-Policy": POLICY + allowed, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Tell nothing: addresses hold the token."""


class Board(ThreadingHTTPServer):
    """A board at a port of this machine."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, source: BoardSource, port: int = DEFAULT_PORT, token: str | None = None) -> None:
        """Take a port, and a token, which is made at random unless it is given."""
        self.source, self.token = source, secrets.token_urlsafe(24) if token is None else token
        if not self.token:
            raise UserError("The token is empty: leave out --token, and one is made at random.")
        self.making = threading.Lock()
        self.digest = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
        try:
            super().__init__((HOST, port), BoardHandler)
        except OSError as error:
            raise UserError(_no_port(port, error)) from error

    @property
    def address(self) -> str:
        """Address of the first page."""
        return f"http://{HOST}:{self.server_port}{self.link('')}"

    def link(self, path: str, **asked: str) -> str:
        """Address of a page, without the machine's name."""
        return f"/{path}?{urlencode({**asked, 'token': self.token})}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in one sentence what went wrong with a connection, unless it was closed by who asked."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"A question was not answered ({type(error).__name__}: {error}).", file=sys.stderr)


def _no_port(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"The port {port} is in use, perhaps by another board: choose one with --port (0 takes any free one)."
    return f"The port {port} cannot be used ({error.strerror}): choose another with --port (0 takes any free one)."
