"""Which documents a page judges by, and what it says of the others."""

from __future__ import annotations

from typing import Any

import pytest

from sordino.papers.description import papers
from sordino.papers.index import index, why_not_judged
from sordino.papers.sources import source_digests

RULED: dict[str, Any] = {
    "scale": "small",
    "version": "0.5.0",
    "sources": source_digests(["feddpa", "dp-fedavg"]),
    "tuning_seeds": 3,
    "tuned": [
        {"column": "c", "method": "feddpa", "chosen": "feddpa[rate=0.1]", "tries": 4, "on_edge": []},
        {"column": "c", "method": "dp-fedavg", "chosen": "dp-fedavg[rate=0.3]", "tries": 4, "on_edge": []},
    ],
}
FIRST, SECOND = RULED["tuned"]
CURVED = {"method": "pac-dp[curve=mnist]", "chosen": "pac-dp[clip=2,curve=mnist,rate=0.1]"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"scale": "quick"}, "too small"),
        ({"sources": RULED["sources"] | {"feddpa": "another"}}, "before feddpa changed; repeat it"),
        ({"sources": {"gone": ""}}, ""),
        ({"tuning_seeds": 1}, "not tuned on 3 seeds for each column"),
        ({"tuning_seeds": 0, "scale": "paper", "tuned": []}, ""),
        ({"tuned": [FIRST | {"on_edge": ["rate"]}, SECOND]}, "the best rate of feddpa lies on the edge"),
        ({"tuned": [FIRST, SECOND | {"tries": 3}]}, "feddpa had 4 tries at c, dp-fedavg 3; repeat it"),
        ({"tuned": [FIRST, SECOND | {"tries": 3, "column": "d"}]}, ""),
        (
            {"tuned": [FIRST, SECOND | CURVED]},
            r"tries of pac-dp[curve=mnist] went over clip, which changes nothing there",
        ),
        ({"tuned": [FIRST, SECOND | CURVED | {"chosen": "pac-dp[curve=mnist,rate=0.1]"}]}, ""),
        ({"tuned": [FIRST, SECOND | CURVED | {"method": "pac-dp[clip=2,curve=mnist]"}]}, ""),
    ],
)
def test_a_document_judges_only_by_the_rules(change: dict[str, Any], why: str) -> None:
    found = why_not_judged(RULED | change)
    assert why in found
    assert bool(why) == bool(found)


def test_documents_from_before_the_rules_judge_nothing() -> None:
    old = {key: value for key, value in RULED.items() if key != "sources"}
    assert "before verdicts had rules" in why_not_judged(old)


def test_a_page_withholds_verdicts_that_break_a_rule() -> None:
    row = {
        "row": "FedDPA", "column": "c", "method": "feddpa", "ours": True, "measure": "personal", "published": 1.0,
        "nominal": "8", "sound": 70.0, "sound_by_seed": [69.0, 71.0], "sound_interval": [57.0, 83.0], "paper": 70.0,
        "paper_by_seed": [70.0, 70.0], "epsilon": 8.0, "unit": "client", "paper_epsilon": None, "not_as_published": "",
    }  # fmt: skip
    rival = row | {"row": "DP-FedAvg", "method": "dp-fedavg", "ours": False, "sound_by_seed": [10.0, 12.0]}
    document = RULED | {
        "paper": "feddpa", "table": "table-1", "rows": [row, rival | {"sound": 11.0, "sound_interval": [0.0, 23.0]}],
        "headline": "c", "command": "sordino reproduce feddpa table-1", "seeds": 2,
    }  # fmt: skip
    assert "**Holds**" in index(papers(), {("feddpa", "table-1"): document})
    broken = document | {"tuning_seeds": 1}
    page = index(papers(), {("feddpa", "table-1"): broken})
    assert "**Holds**" not in page
    assert "Not judged: settings were not tuned on 3 seeds" in page
