"""W5: rounds that protect records, at many small clients: against client-level rounds and against Opacus.

    python benchmarks/record_rounds.py            # Opacus is measured where its environment can be made

A hundred clients of 20 to 200 rows of 64 features, all of them in every round, MLP 64-64-10, batches of 16 in the mean,
one epoch, SGD. Figures are the processor's time of one process with one thread, in turns: (a) Sordino's record-level
DP-FedAvg, (b) its client-level one with as many epochs, (c) the loop that one would write with Opacus, one client after
the other, in an environment of its own. Beside them what is done before the first round and after the last: noise for
every client's budget, and every client's epsilon, neither of which was worked out before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.environments import OPACUS, PeerError

from sordino.data import FederatedData
from sordino.data.dataset import Dealt, Split
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.federation.rounds import RoundWatch
from sordino.privacy.accounting import sampled_gaussian
from sordino.privacy.budget import record_level_plan
from sordino.tasks import Classification
from sordino.util.processes import single_threaded

CLIENTS, BATCH, EPOCHS, CLASSES, FEATURES, RATE = 100, 16, 1, 10, 64, 0.05
DELTA, TURNS = 1e-5, 20


def sizes(clients: int = CLIENTS) -> np.ndarray:
    """How many records each client has."""
    return np.random.default_rng(0).integers(20, 201, clients)


def data() -> FederatedData:
    """Generated records, dealt to clients; each has two for testing."""
    generator, counts = torch.Generator().manual_seed(0), sizes()
    x = torch.randn(int(counts.sum()), FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (len(x),), generator=generator)
    starts = counts.cumsum() - counts
    people = Dealt(
        [f"client-{place}" for place in range(CLIENTS)],
        Split(x, y, starts, counts),
        Split(x, y, starts, np.full(CLIENTS, 2)),
    )
    return FederatedData("generated", people, Classification.numbered(CLASSES), (FEATURES,), "generated-uneven")


def seconds_of_rounds(dealt: FederatedData | None, rounds: int, **keys: Any) -> float:
    """The processor's time of a round in the middle, in one process."""
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "model": "mlp",
            "rounds": rounds + 2,
            "workers": 1,
            "noise_multiplier": 1.0,
            "evaluate_every": 10**9,
            "store": Path(folder),
        }
        prepared = prepare(Experiment.make(given | keys), dealt)
        start(prepared, watch=RoundWatch(lambda _: stamps.append(time.process_time())))
    return statistics.median(after - before for before, after in pairwise(stamps[:-1]))


def in_rounds(turns: int, dealt: FederatedData | None, rounds: int, **keys: Any) -> dict[str, float]:
    """Seconds of a record-level and of a client-level round, taking turns, and how many times the one is the other."""
    pairs = [
        [seconds_of_rounds(dealt, rounds, method=method, **keys) for method in ("dp-fedavg-record", "dp-fedavg")]
        for _ in range(turns)
    ]
    record, client = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"record": record, "client": client, "times": statistics.median(first / second for first, second in pairs)}


def accounting(clients: int, epsilon: float) -> dict[str, float]:
    """Seconds that noise for every client's budget takes, and every client's epsilons once all is spent; of no other
    `epsilon` is anything known."""
    before = time.process_time()
    counts = sizes(clients).tolist()
    plan = record_level_plan.plan_records(
        counts, np.full(clients, epsilon), DELTA, batch=BATCH, epochs=EPOCHS, turns=TURNS
    )
    planned = time.process_time()
    for client in range(clients):
        rate, multiplier, steps = plan.charge(client)
        recipe = ((rate, multiplier, steps * TURNS),)
        sampled_gaussian.record_epsilon(recipe, DELTA)
        sampled_gaussian.replaced_epsilon(recipe, DELTA)
        sampled_gaussian.record_attack_accuracy(recipe)
    return {"before": planned - before, "after": time.process_time() - planned}


def opacus_round() -> float:
    """Seconds of the processor for a round as one would write it with Opacus: runs in its environment."""
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    begun = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES)).state_dict()
    loss_of, dealt = nn.CrossEntropyLoss(), data()
    before, total = time.process_time(), None
    for client in range(CLIENTS):
        module = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        module.load_state_dict(begun)
        private, optimizer, loader = PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=RATE),
            data_loader=DataLoader(TensorDataset(*dealt.train.part(client)), batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for _ in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(private(x), y).backward()
                optimizer.step()
        flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        total = flat if total is None else total + flat
    return time.process_time() - before


def measured(turns: int) -> dict[str, Any]:
    """All figures of W5."""
    os.environ["SORDINO_CACHE"] = ""  # nothing is known beforehand
    settings = {"epochs": EPOCHS, "batch": BATCH, "rate": RATE}
    with single_threaded():
        few, many = accounting(CLIENTS, 4.0), accounting(100 * CLIENTS, 3.0)
        uneven = in_rounds(turns, data(), 5, set=settings)
        digits = {"data": "digits", "clients": CLIENTS, "partition": "iid"}
        even = in_rounds(turns, None, 10, **digits, set={"epochs": 5})
    try:
        OPACUS.make()
        theirs = [float(OPACUS.output(__file__, "--opacus").splitlines()[-1]) for _ in range(turns)]
        peer: dict[str, Any] = {"opacus": statistics.median(theirs), "versions": OPACUS.versions(), "missing": ""}
    except PeerError as failure:
        peer = {"opacus": None, "missing": str(failure)}
    return {"accounting": {"100": few, "10000": many}, "uneven": uneven, "digits": even, **peer}


def show(figures: dict[str, Any]) -> None:
    """The figures for people."""
    for name, about in (("uneven", "20 to 200 records each"), ("digits", "digits, 5 epochs")):
        one = figures[name]
        print(
            f"  {CLIENTS} clients, {about}: {1e3 * one['record']:.0f} ms a round, client level "
            f"{1e3 * one['client']:.0f} ms: {one['times']:.2f} times"
        )
    if figures["opacus"] is not None:
        times = figures["opacus"] / figures["uneven"]["record"]
        print(f"  Opacus, one client after the other: {1e3 * figures['opacus']:.0f} ms a round: {times:.1f} times ours")
    for clients, one in figures["accounting"].items():
        print(f"  {clients} clients: noise for budgets {one['before']:.2f} s, epsilons {one['after']:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--opacus", action="store_true", help="a round with Opacus alone, in its environment")
    chosen = parser.parse_args()
    if chosen.opacus:
        print(opacus_round())
        return
    figures = measured(chosen.turns)
    print(json.dumps(figures)) if chosen.json else show(figures)


if __name__ == "__main__":
    main()
