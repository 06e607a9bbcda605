"""What a server sees of a deployment, recorded and attacked: masked messages tell nothing, sums what is charged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Recorder, federation
from scipy.stats import chi2

from sordino.auditing.findings import Scores
from sordino.deploy.protocol import integer_rows, wire
from sordino.deploy.server.journal import DeploymentJournal
from sordino.deploy.site.ledger import SiteLedger, row_from
from sordino.privacy.accounting.gaussian import epsilon_of

DELTA = 1e-5
CONFIDENCE = 1 - 1e-6
ROUNDS, MANY = 4, 250


def test_masked_messages_are_uniform(tmp_path: Path) -> None:
    """Chi-squared of each of the four bytes of all masked numbers of a run, at confidence 1 - 1e-6 each."""
    with federation(tmp_path) as made:
        seen = Recorder()
        made.run(seen)
    vectors = np.stack([wire.unpack(reply)["vector"] for _, _, reply in seen.of("work")])
    assert vectors.dtype == np.uint32
    assert len({vector.tobytes() for vector in vectors}) == len(vectors) == 6
    for place in range(4):
        counts = np.bincount(((vectors >> np.uint32(8 * place)) & np.uint32(255)).reshape(-1), minlength=256)
        expected = vectors.size / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < chi2.ppf(1 - 1e-6, 255)


def reached(rows: list[np.ndarray], coins: np.ndarray) -> float:
    """The epsilon that an attack on numbers shows, which knows what each would be with the coin and without."""
    values = np.concatenate(rows).astype(float)
    scores = Scores.of(values[coins], values[~coins])
    return scores.guesses().gdp(DELTA, CONFIDENCE)


def test_an_attack_on_the_recorded_wire_reaches_what_is_charged_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand trials of one site's largest contribution: the sum gives away at least half of the epsilon that is
    charged for it and not more; the masked messages nothing; without masks each message would refute the sum's."""
    sums: list[np.ndarray] = []
    bare: list[np.ndarray] = []
    done, as_row = DeploymentJournal.keep_sum, integer_rows.to_row

    def noted(journal: DeploymentJournal, ask: Any, result: bytes) -> None:
        sums.append(wire.unpack(result)["sums"]["coins"][0].numpy())
        done(journal, ask, result)

    def rows(*arguments: Any) -> np.ndarray:
        bare.append(as_row(*arguments))
        return bare[-1]

    monkeypatch.setattr(DeploymentJournal, "keep_sum", noted)
    monkeypatch.setattr(integer_rows, "to_row", rows)
    with federation(
        tmp_path, method="telling:Coins", noise_multiplier=0.5 / MANY**0.5, epsilon=None, rounds=ROUNDS
    ) as made:
        arrays = dict(np.load(made.folders[0] / "data.npz"))
        np.savez(made.folders[0] / "data.npz", **arrays | {"y": np.zeros_like(arrays["y"])})
        made.reopen(0)
        seen = Recorder()
        made.run(seen)
        with SiteLedger(made.folders[0]) as ledger:
            costs = [row_from(one).costs()[0, 0] for one in ledger.entries() if one.kind == "release"]
    assert len(costs) == ROUNDS
    claimed = epsilon_of(math.sqrt(max(costs) / MANY), DELTA)  # each of a round's numbers is a mechanism by itself
    work = [(request, reply) for node, request, reply in seen.of("work") if node == 0]
    asked = [wire.unpack(wire.unpack(request)["ask"].tobytes()) for request, _ in work]
    coins = np.concatenate([one["message"]["coins"].numpy() for one in asked]).astype(bool)
    assert 0.5 * claimed < reached(sums, coins) <= claimed
    assert reached([wire.unpack(reply)["vector"] for _, reply in work], coins) < 0.05 * claimed
    assert reached(bare[::3], coins) > claimed
