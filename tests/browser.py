"""A real browser (Debian's chromium, without a window), spoken to over a pipe: what a page asks for and looks like."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
PATIENCE = 60.0
"""Seconds that an answer may take on a busy machine."""
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
DESKTOP, PHONE = (1280, 900), (390, 844)


@dataclass
class Seen:
    """What a page did while it was open."""

    requests: list[str] = field(default_factory=list)
    """The addresses that it asked for, its own apart."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings in its console."""
    width: int = 0
    """How wide its content is, in the units of the window."""
    title: str = ""
    measured: Any = None
    """Value of the expression that was to be measured."""


class Tab:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str, address: str) -> None:
        self._browser, self._session, self._address = browser, session, address

    def value(self, expression: str) -> Any:
        """Value of an expression in the page, which JSON can hold."""
        asked = f"JSON.stringify([{expression}])"
        return json.loads(self._browser._call("Runtime.evaluate", self._session, expression=asked)["result"]["value"])[
            0
        ]

    def until(self, expression: str) -> None:
        """Wait until an expression in the page is true."""
        patience = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < patience, f"never true: {expression}"
            time.sleep(0.1)

    def press(self, key: str) -> None:
        """Press a key: `Tab`, `Enter`, or a letter."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        about = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0), "text": text}
        for kind in ("keyDown", "keyUp"):
            given = about if kind == "keyDown" else {**about, "text": ""}
            self._browser._call("Input.dispatchKeyEvent", self._session, type=kind, **given)

    def seen(self, measure: str = "null") -> Seen:
        """What the page has done so far."""
        found = self.value(f"[document.documentElement.scrollWidth, document.title, {measure}]")
        seen = self._browser._seen(self._address)
        seen.width, seen.title, seen.measured = found
        return seen

    def picture(self, path: Path) -> None:
        """Take a screenshot of all of it."""
        taken = self._browser._call("Page.captureScreenshot", self._session, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))


class Browser:
    """One browser process."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._number, self._rest = 0, b""
        self._events: list[dict[str, Any]] = []

    def look(
        self,
        page: Path,
        size: tuple[int, int] = DESKTOP,
        dark: bool = False,
        picture: Path | None = None,
        measure: str = "null",
    ) -> Seen:
        """Open a page from disk and tell what it did; `picture` is where a screenshot of all of it goes, `measure` an
        expression in the page whose value is wanted."""
        with self.tab(page.resolve().as_uri(), size, dark) as tab:
            seen = tab.seen(measure)
            if picture is not None:
                tab.picture(picture)
        return seen

    @contextlib.contextmanager
    def tab(self, address: str, size: tuple[int, int] = DESKTOP, dark: bool = False) -> Iterator[Tab]:
        """A tab that has loaded the page at an address, and is closed afterwards."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable", session)
        width, height = size
        phone = width < 600
        self._call(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", session, features=features)
        self._events.clear()
        self._call("Page.navigate", session, url=address)
        self._wait("Page.loadEventFired")
        yield Tab(self, session, address)
        self._call("Target.closeTarget", targetId=target)

    def print(self, page: Path, pdf: Path) -> None:
        """A page on paper."""
        target = self._call("Target.createTarget", url=page.resolve().as_uri())["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable", session)
        self._call("Runtime.evaluate", session, expression="document.readyState", awaitPromise=True)
        made = self._call("Page.printToPDF", session, preferCSSPageSize=True, printBackground=True)
        pdf.write_bytes(base64.b64decode(made["data"]))
        self._call("Target.closeTarget", targetId=target)

    def _seen(self, address: str) -> Seen:
        seen = Seen()
        for event in self._events:
            given = event.get("params", {})
            if event["method"] == "Network.requestWillBeSent":
                asked = given["request"]["url"]
                seen.requests += [] if asked == address or asked.startswith("data:") else [asked]
            elif event["method"] == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                seen.complaints.append(given["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
                seen.complaints.append(str(given["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                seen.complaints.append(str(given["exceptionDetails"]))
        return seen

    def _call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        os.write(self._to, json.dumps(asked | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])
            self._events.append(answer)

    def _wait(self, event: str) -> None:
        while not any(one.get("method") == event for one in self._events):
            self._events.append(self._next())

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            assert time.monotonic() < until, "the browser does not answer"
            read = os.read(self._back, 1 << 20)
            assert read, "the browser is gone"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile, ended afterwards."""
    assert CHROMIUM is not None
    ends = [*os.pipe(), *os.pipe()]
    read, to, back, write = (fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in ends)
    for end in ends:
        os.close(end)

    def as_three_and_four() -> None:  # where --remote-debugging-pipe looks
        os.dup2(read, 3)
        os.dup2(write, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", *QUIET)
        process = subprocess.Popen(
            [CHROMIUM, *arguments, f"--user-data-dir={profile}"],
            preexec_fn=as_three_and_four,  # noqa: PLW1509
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        try:
            yield Browser(process, to, back)
        finally:
            process.terminate()
            process.wait(30)
            os.close(to)
            os.close(back)
