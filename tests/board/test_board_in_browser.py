"""The board in a real browser: wide and narrow, light and dark, by keyboard alone, and while a run goes on."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from boards import Asker, serving
from browser import CHROMIUM, DESKTOP, PHONE, Browser, Tab, browser
from helpers import COMMAND, command, start_process

from sordino.board.server import StoreBoard
from sordino.privacy.unit import Unit
from sordino.store.store import NewRun, Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no browser: apt-get install chromium"),
]
NARROW = (500, 900)
SIZES = [DESKTOP, NARROW, PHONE]


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with two seeds, a comparison of them, an audit, and a run that was stopped."""
    folder = tmp_path_factory.mktemp("board") / "store"
    keys = ["--clients=8", "--partition=iid", "--rounds=3", "--workers=1", "--store", folder]
    compared = command("compare", "--methods=local,dp-fedavg,feddpa[tau=2,lambda1=0.05]", "--seeds=2", *keys)
    assert compared.code == 0, compared.err
    views = {
        view: {"claimed": claimed, "bound": 0.5, "confidence": 0.95, "refuted": False}
        for view, claimed in (("outsider", 8.0), ("peer", 8.5), ("server", None))
    }
    audit = {"method": "dp-fedavg", "unit": "client", "delta": 1e-5, "views": views, "findings": ["Nothing found."]}
    (folder / "audits").mkdir()
    (folder / "audits" / "dp-fedavg.json").write_text(json.dumps(audit))
    made = Store(folder)
    configuration = {"data": "digits", "set": {}, "protect_from": "outsider"}
    made.create("stopped", NewRun("dp-fedavg", configuration, "i", "p", Unit.CLIENT, 5, planned={"epsilon": 2.5}))
    made.close()
    return folder


@pytest.fixture
def ask(store: Path) -> Iterator[Asker]:
    with serving(StoreBoard(store)) as asker:
        yield asker


def address(ask: Asker, link: str = "") -> str:
    """Whole address of a page."""
    return f"http://127.0.0.1:{ask.board.server_port}{link or ask.board.link('')}"


def scrolling(tab: Tab) -> int:
    """Tables of few columns that are wider than their page."""
    wide = "[...document.querySelectorAll('.few, .list')].filter(one => one.getBoundingClientRect().right > innerWidth)"
    return int(tab.value(f"{wide}.length"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True])
def test_every_page_fits_and_complains_of_nothing(
    opened: Browser, ask: Asker, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    links = [
        "",
        *{link.partition("?")[0]: link for link in ask().links}.values(),
        ask.board.link("study", file="compare.json"),
    ]
    assert len(links) >= 6
    for link in links:
        with opened.tab(address(ask, link), size, dark) as tab:
            tab.picture(tmp_path / "seen.png")
            seen = tab.seen()
            assert seen.complaints == [], link
            assert [one for one in seen.requests if not one.startswith(address(ask, "/changes"))] == [], link
            assert seen.width <= size[0], link
            assert scrolling(tab) == 0, link
            background = tab.value("getComputedStyle(document.body).backgroundColor")
            assert background == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)"), link
        assert (tmp_path / "seen.png").stat().st_size > 5_000


@pytest.mark.parametrize("size", SIZES)
def test_a_comparison_leads_with_its_answer(opened: Browser, ask: Asker, size: tuple[int, int]) -> None:
    """The sentence and the first picture are on the first screen, before any table."""
    with opened.tab(address(ask, ask.board.link("study", file="compare.json")), size) as tab:
        order = tab.value("[...document.querySelectorAll('.answer, figure, table')].map(one => one.tagName)")
        assert order[:4] == ["P", "FIGURE", "FIGURE", "TABLE"]
        assert tab.value("document.querySelector('figure').getBoundingClientRect().bottom") < size[1]
        folded = "[...document.querySelectorAll('details')].every(one => !one.open)"
        assert tab.value(folded)
        overlong = "[...document.querySelectorAll('svg.chart text')].filter(one => {const box = one.getBBox(); "
        overlong += "return box.x < -1 || box.x + box.width > one.ownerSVGElement.viewBox.baseVal.width + 1})"
        assert tab.value(f"{overlong}.map(one => one.textContent)") == []


def test_the_keyboard_is_enough(opened: Browser, ask: Asker) -> None:
    with opened.tab(address(ask)) as tab:
        for _ in range(30):
            tab.press("Tab")
            if tab.value("document.activeElement.id") == "find":
                break
        assert tab.value("document.activeElement.id") == "find"
        assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for letter in "local":
            tab.press(letter)
        shown = "[...document.querySelectorAll('#runs tbody tr')].filter(one => !one.hidden).length"
        assert tab.value(shown) == 2
        assert tab.value("document.getElementById('found').textContent") == "2 found"
        tab.press("Tab")
        assert "name=local-digits" in tab.value("document.activeElement.getAttribute('href')")
        tab.press("Enter")
        tab.until("location.pathname === '/run' && document.readyState === 'complete'")
        assert "local on digits" in tab.value("document.title")


def test_a_reader_keeps_the_place_while_the_page_changes(opened: Browser, ask: Asker, store: Path) -> None:
    with opened.tab(address(ask)) as tab:
        tab.value("document.querySelector('#studies details').open = true")
        tab.value("document.querySelector('#runs a[href*=\"name=local-digits-1&\"]').focus()")
        made = Store(store)
        run = made.create("later", NewRun("local", {"data": "digits", "set": {}}, "i", "p", Unit.CLIENT, 5))
        made.close()
        tab.until(f"document.querySelector('#runs').textContent.includes('{run}')")
        assert "name=local-digits-1&" in tab.value("document.activeElement.getAttribute('href')")
        assert tab.value("document.querySelector('#studies details').open")
        assert tab.seen().complaints == []


def test_a_run_is_seen_going_on(opened: Browser, tmp_path: Path) -> None:
    """The page is open before the run begins, and is never loaded again."""
    store = tmp_path / "store"
    with serving(StoreBoard(store)) as ask, opened.tab(address(ask)) as tab:
        assert "No runs yet" in tab.value("document.body.textContent")
        tab.value("window.kept = 1")
        keys = ("--clients=8", "--partition=iid", "--rounds=100000", "--workers=1", "--method=dp-fedavg")
        started = start_process(COMMAND, "run", *keys, "--store", store)
        try:
            bar = "(document.querySelector('#now progress') || {}).value || 0"
            tab.until(f"({bar}) > 0")
            before = tab.value(bar)
            tab.until(f"({bar}) > {before}")
            assert tab.value("document.querySelector('#now svg') !== null")
            assert "1 under way" in tab.value("document.querySelector('#head').textContent")
            assert "Charged so far: epsilon at least" in tab.value("document.querySelector('#now').textContent")
            tab.picture(tmp_path / "live.png")
        finally:
            started.send_signal(signal.SIGINT)
            started.communicate(timeout=120)
        tab.until("document.querySelector('#head').textContent.includes('1 stopped')")
        assert tab.value("document.querySelector('#now progress') === null")
        assert tab.value("window.kept") == 1
        assert tab.seen().complaints == []


def test_a_board_that_has_ended_is_noticed(opened: Browser, store: Path) -> None:
    with serving(StoreBoard(store)) as ask, opened.tab(address(ask)) as tab:
        assert tab.value("document.getElementById('lost').hidden")
        ask.board.token = "other"
        tab.until("!document.getElementById('lost').hidden")
        ask.board.token = "T"
        tab.until("document.getElementById('lost').hidden")


def test_a_page_left_alone_asks_for_next_to_nothing(opened: Browser, ask: Asker) -> None:
    """Where nothing changes, nothing is sent, and not more often than every two seconds."""
    with opened.tab(address(ask)) as tab:
        time.sleep(5)
        asked = [one for one in tab.seen().requests if "/changes" in one]
    assert 1 <= len(asked) <= 3
