"""Pages in a real browser: they open from disk, complain of nothing and ask nobody for anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, DESKTOP, PHONE, Browser, browser
from helpers import QUICK_KEYS, command

import sordino

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no browser: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    keys = QUICK_KEYS | {"store": folder / "store"}
    runs = [sordino.run(**keys, method=method)["run"] for method in ("local", "dp-fedavg", "pacfl")]
    return sordino.make_report(*runs, output=folder / "report.html", store=folder / "store")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_a_report_opens_from_disk(
    opened: Browser, page: Path, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    seen = opened.look(page, size, dark, tmp_path / "seen.png")
    assert seen.title == "3 methods on digits"
    assert seen.complaints == []
    assert seen.requests == []
    assert seen.width <= size[0], "it is wider than the window"
    assert (tmp_path / "seen.png").stat().st_size > 20_000


def test_a_report_is_printed(opened: Browser, page: Path, tmp_path: Path) -> None:
    opened.print(page, tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def sheets(path: Path) -> int:
    """Number of sheets of a PDF."""
    return len(re.findall(rb"/Type /Page\b(?!s)", path.read_bytes()))


def test_the_half_minute_of_a_statement_is_one_sheet_to_sign(opened: Browser, page: Path, tmp_path: Path) -> None:
    """And all of it is a few; the first one ends with the signature."""
    sheet, printed = tmp_path / "statement.html", tmp_path / "statement.pdf"
    told = command("statement", "dp-fedavg-digits-2", "-o", sheet, "--store", page.parent / "store")
    assert told.code == 0, told.err
    opened.print(sheet, printed)
    assert 3 <= sheets(printed) <= 6
    text = sheet.read_text()
    first = text[: text.index('<div class="rest">')]
    assert 'class="signature"' in first
    sheet.write_text(first + "</article></body></html>")
    opened.print(sheet, printed)
    assert sheets(printed) == 1


@pytest.mark.parametrize("size", [DESKTOP, (500, 900), PHONE])
def test_no_column_of_a_statement_is_hidden(opened: Browser, page: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    """Neither is the page wider than the window, nor does a table scroll in it."""
    sheet = tmp_path / "statement.html"
    assert command("statement", "dp-fedavg-digits-2", "-o", sheet, "--store", page.parent / "store").code == 0
    scrolling = "[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth).length"
    hidden = "[...document.querySelectorAll('td')].filter(one => one.getBoundingClientRect().width < 20).length"
    for dark in (False, True):
        seen = opened.look(sheet, size, dark, measure=f"[{scrolling}, {hidden}]")
        assert seen.measured == [0, 0]
        assert seen.width <= size[0]
        assert seen.complaints == seen.requests == []


def test_what_a_bad_page_does_is_seen(opened: Browser, tmp_path: Path) -> None:
    """The tests above would notice a request, an error and a page that is too wide."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<title>bad</title><div style="width:3000px">x</div><img src="http://127.0.0.1:9/x.png">'
        "<script>console.error('no')</script>"
    )
    seen = opened.look(bad, PHONE)
    assert seen.requests == ["http://127.0.0.1:9/x.png"]
    assert any("no" in complaint for complaint in seen.complaints)
    assert seen.width >= 3000
