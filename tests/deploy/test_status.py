"""How a deployment's sites stand, as their server writes it down and a board shows it; and a site's own page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import Federation, federation, kind

from sordino.board.look import StoreWatch
from sordino.board.sections import run_under_way, store_parts
from sordino.board.server import SiteBoard
from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.protocol.roster import Member
from sordino.deploy.server.status import FILE, ServerStatus, read_status
from sordino.deploy.site.status import status as status_of
from sordino.errors import UserError
from sordino.report.wording import epsilon_words

MEMBERS = [Member(name, name.encode()) for name in ("a", "b", "c")]


def standing(folder: Path) -> dict[str, str]:
    """Standing of each site."""
    found = read_status(folder)
    assert found is not None
    return {one["name"]: " ".join([one["standing"], one["why"]]).strip() for one in found["sites"]}


def words(parts: Any) -> str:
    """Words of a page's parts."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", " ".join(parts.values()))))


def test_sites_come_answer_refuse_and_go(tmp_path: Path) -> None:
    status = ServerStatus(tmp_path, MEMBERS, 2)
    status.present({b"a", b"b"}, {b"a"}, {b"b": "No."})
    assert standing(tmp_path) == {"a": "takes part", "b": "refuses No.", "c": "absent"}
    status.present({b"a", b"b", b"c"}, {b"a", b"b", b"c"}, {})
    status.asking(3, "local", 0, [b"a", b"b", b"c"])
    status.heard(b"a", "answered")
    status.heard(b"b", "waits", "it restarts")
    assert standing(tmp_path) == {"a": "answered", "b": "waits it restarts", "c": "asked"}
    assert (read_status(tmp_path) or {})["question"] == {"round": 4, "step": "local", "attempt": 1}
    status.heard(b"b", "refuses", "Its budget is used up.")
    status.present({b"a", b"b"}, {b"a", b"b"}, {})
    assert standing(tmp_path) == {"a": "answered", "b": "refuses Its budget is used up.", "c": "absent"}
    status.asking(4, "local", 0, [b"a"])
    assert standing(tmp_path) == {"a": "asked", "b": "takes part", "c": "absent"}


def test_a_run_goes_on_where_the_file_cannot_be_written(tmp_path: Path) -> None:
    status = ServerStatus(tmp_path / "gone", MEMBERS, 2)
    status.present(set(), set(), {})
    assert read_status(tmp_path / "gone") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"sites": 3}', '{"sites": [], "question": 1}', "[" * 10**5])
def test_a_damaged_file_is_no_status(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_status(tmp_path) is None


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, str]]:
    """A run of three sites that cannot go on behind its first round, because two of them are gone."""

    def leave(node: int, request: bytes, answer: Any) -> Any:
        later = kind(request) == "work" and wire.unpack(wire.unpack(request)["ask"].tobytes())["round"] > 0
        return Failure("gone") if later and node > 0 else answer()

    with federation(tmp_path_factory.mktemp("status"), minimum_cohort=3, spare_turns=3) as made:
        with pytest.raises(UserError, match="too few sites answered"):
            made.run(leave)
        yield made, made.store.all()[0].run


def test_a_server_writes_down_who_has_answered(stopped: tuple[Federation, str]) -> None:
    made, run = stopped
    found = standing(made.store.path(run))
    assert list(found) == [member.name for member in made.members]
    assert list(found.values()) == ["answered", "asked", "asked"]


def test_the_board_shows_the_sites_and_the_round(stopped: tuple[Federation, str]) -> None:
    made, run = stopped
    look = StoreWatch(made.store.folder).look()
    told = run_under_way(look.rows[0], look, lambda path, **asked: f"/{path}")
    assert told["run"] == run
    assert told["sites"]["words"].startswith(
        "Round 2 of 2 (local, attempt 3): 1 of 3 sites have answered, and at least"
    )
    assert [one["words"] for one in told["sites"]["rows"]] == ["has answered", *["works on its answer"] * 2]
    with made.store.lock(run):
        watch = StoreWatch(made.store.folder)
        page = words(store_parts(watch.look(), None, False, lambda path, **asked: f"/{path}"))
    assert "1 under way" in page
    assert page.count("works on its answer") == 2


def test_an_owner_sees_budget_rules_and_runs(stopped: tuple[Federation, str]) -> None:
    made, run = stopped
    folder = made.folders[0]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    board = SiteBoard(folder)
    page = words(board.parts({}, lambda path, **asked: f"/{path}"))
    known = status_of(folder)
    assert f"an epsilon of {epsilon_words(known['spent']['outsider'])} for the outsider" in page
    assert f"{run} dp-fedavg under way" in page
    assert "methods that may run dp-fedavg" in page
    assert "3 sites may be in a cohort" in page
    assert known["fingerprint"] in page
    assert "In half a minute" in board.page("statement", {}, lambda path, **asked: f"/{path}")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_site_whose_rules_break_is_told_in_a_sentence(stopped: tuple[Federation, str]) -> None:
    folder = stopped[0].folders[1]
    board, rules = SiteBoard(folder), (folder / "site.toml").read_text()
    try:
        (folder / "site.toml").write_text("name = ")
        assert "site.toml cannot be read" in words(board.parts({}, lambda path, **asked: ""))
    finally:
        (folder / "site.toml").write_text(rules)
    assert "under way" in words(board.parts({}, lambda path, **asked: ""))


def test_the_file_holds_no_records(stopped: tuple[Federation, str]) -> None:
    made, run = stopped
    found = json.loads((made.store.path(run) / FILE).read_text())
    assert set(found) == {"sites", "question", "least", "written"}
    assert {key for one in found["sites"] for key in one} == {"name", "standing", "why"}


@pytest.mark.parametrize(
    "damage",
    [
        {"question": {"round": 1, "step": "local", "attempt": "many"}},
        {"question": {"round": [1], "step": "local", "attempt": 1}},
        {"question": "local"},
        {"least": float("inf")},
        {"written": 10**400},
    ],
)
def test_a_state_that_nobody_can_read_leaves_the_board_as_it_is(tmp_path: Path, damage: dict[str, Any]) -> None:
    ServerStatus(tmp_path, MEMBERS, 2).present([], [], {})
    assert read_status(tmp_path) is not None
    (tmp_path / FILE).write_text(json.dumps(json.loads((tmp_path / FILE).read_text()) | damage))
    assert read_status(tmp_path) is None
