"""Share of personal parameters, worked out after a run, beside the masks that clients had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sordino
from sordino.errors import UserError
from sordino.methods import feddpa
from sordino.papers.personal_share import personal_share

KEYS: dict[str, Any] = {"data": "digits", "clients": 4, "partition": "iid", "rounds": 2, "workers": 1}


def test_it_is_the_share_of_the_masks_of_one_more_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise a run of three rounds repeats one of two: its last masks are those that are meant."""
    masks: list[torch.Tensor] = []
    settings = {"epochs": 1, "batch": 64, "tau": 0.3}
    keys = KEYS | {"method": "feddpa", "model": "mlp", "engine": "one-by-one", "privacy": "none"}
    scaled = feddpa.scale_to_unit

    def watched(information: torch.Tensor, layout: Any) -> torch.Tensor:
        found = scaled(information, layout)
        masks.append(found >= 0.3)
        return found

    monkeypatch.setattr(feddpa, "scale_to_unit", watched)
    sordino.run(store=tmp_path, **keys | {"rounds": 3, "set": settings})
    assert len(masks) == 3 * 4
    expected = 100 * float(torch.stack(masks[-4:]).double().mean())
    assert 0.1 < expected < 50
    two = sordino.run(store=tmp_path, **keys | {"set": settings})
    assert personal_share(two["run"], tmp_path) == pytest.approx(expected)


@pytest.mark.parametrize(("tau", "share"), [(0, 100), (1.5, 0)])
def test_all_parameters_or_none_are_personal(tmp_path: Path, tau: float, share: float) -> None:
    settings = {"epochs": 1, "batch": 64, "tau": tau}
    run = sordino.run(store=tmp_path, **KEYS | {"method": "feddpa", "model": "mlp", "set": settings})
    assert personal_share(run["run"], tmp_path) == share


def test_methods_without_a_threshold_have_no_share(tmp_path: Path) -> None:
    alone = sordino.run(store=tmp_path, **KEYS | {"method": "local"})
    with pytest.raises(UserError, match="has no threshold tau"):
        personal_share(alone["run"], tmp_path)
