"""Seconds per round of several methods relative to DP-FedAvg, in one run.

    python benchmarks/local_round.py --methods dp-fedavg,fedglp-adp,acdp-pfsd --repeats 3

Synthetic 1x28x28 images, one worker, evaluation only after the last round. The methods take turns, so that
whatever else the machine does falls on all of them alike; the figures are medians over the repeats. On a busy
machine trust the seconds of the processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import sordino
from sordino.study.sweep import contender, split_methods


def make_data(folder: Path, clients: int, images: int, seed: int = 0) -> None:
    """One NPZ file per client: images of noise with a class-dependent patch."""
    random = np.random.default_rng(seed)
    for client in range(clients):
        y = random.integers(0, 10, images)
        x = random.normal(0, 1, (images, 1, 28, 28)).astype(np.float32)
        x[np.arange(images), 0, 2 * y + 3, :] += 2.0
        tests = max(1, images // 100)
        np.savez(folder / f"client{client:03}.npz", x=x, y=y, x_test=x[:tests], y_test=y[:tests])


def measure(method: str, data: Path, public: Path, args: argparse.Namespace) -> dict[str, float]:
    """Medians over the rounds after the first, which also warms up: seconds, and seconds of the processor. `public` has
    records that belong to no client, for methods whose server judges models."""
    name, own = contender(method)
    settings: dict[str, Any] = {"epochs": args.epochs, "batch": args.batch, "rate": 0.01, **own}
    wall, processor = [], []

    def watch(_: Any) -> None:
        wall.append(time.perf_counter())
        processor.append(time.process_time())

    with tempfile.TemporaryDirectory() as store:
        done = sordino.run(
            data=str(data), public=str(public), method=name, model=args.model, rounds=args.rounds, epsilon=8,
            delta=1e-5, workers=1, evaluate_every=args.rounds + 1, store=store, set=settings, watch=watch,
        )  # fmt: skip
    return {
        "seconds": statistics.median(np.diff(wall).tolist()),
        "cpu": statistics.median(np.diff(processor).tolist()),
        "megabytes": done["upload_bytes"] / args.rounds / args.clients / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds per round relative to the first method.")
    parser.add_argument("--methods", default="dp-fedavg,fedglp-adp,acdp-pfsd", help="the first is the measure")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=300, help="of each client")
    parser.add_argument("--rounds", type=int, default=4, help="of each run, at least 2; the first is not counted")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.rounds < 2 or args.repeats < 1:
        parser.error("--rounds must be at least 2 and --repeats at least 1")
    methods = split_methods(args.methods)

    found: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as public:
        make_data(Path(folder), args.clients, args.images)
        make_data(Path(public), clients=1, images=30, seed=1)
        for _ in range(args.repeats):
            for method in methods:
                found[method].append(measure(method, Path(folder), Path(public), args))

    rows = [row(method, found[method], found[methods[0]]) for method in methods]
    print(f"{'method':32} {'s/round':>8} {'ratio':>6} {'CPU s':>8} {'ratio':>6} {'range':>12} {'MB sent':>8}")
    for item in rows:
        span = f"{item['cpu_lowest']:.2f}..{item['cpu_highest']:.2f}"
        print(
            f"{item['method']:32} {item['seconds']:8.3f} {item['ratio']:6.2f} {item['cpu']:8.3f} "
            f"{item['cpu_ratio']:6.2f} {span:>12} {item['megabytes']:8.3f}"
        )
    print(json.dumps({"settings": vars(args), "rows": rows}))


def row(method: str, mine: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, Any]:
    """Medians over the repeats; ratios are of runs that followed each other."""
    ratios = {
        key: [one[key] / other[key] for one, other in zip(mine, theirs, strict=True)] for key in ("seconds", "cpu")
    }
    return {
        "method": method,
        "seconds": round(statistics.median(one["seconds"] for one in mine), 4),
        "ratio": round(statistics.median(ratios["seconds"]), 3),
        "cpu": round(statistics.median(one["cpu"] for one in mine), 4),
        "cpu_ratio": round(statistics.median(ratios["cpu"]), 3),
        "cpu_lowest": round(min(ratios["cpu"]), 3),
        "cpu_highest": round(max(ratios["cpu"]), 3),
        "megabytes": round(mine[0]["megabytes"], 4),
    }


if __name__ == "__main__":
    main()
