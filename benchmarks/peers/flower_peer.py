"""Flower's simulation on Ray: FedAvg with client-side clipping and noise at the server, two actors of one core each.

python flower_peer.py '<workload as JSON>'
"""

from __future__ import annotations

import os
import sys
import time

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # read when they are imported

from answers import answer
from flower_client import client_app
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from task import CLIP, NOISE_MULTIPLIER, Task

ACTORS = 2


def strategy(task: Task) -> DifferentialPrivacyClientSideFixedClipping:
    """FedAvg over a cohort drawn each round, made private; no evaluation."""
    plain = FedAvg(
        fraction_train=task.cohort / task.clients,
        min_train_nodes=task.cohort,
        min_available_nodes=task.clients,
        fraction_evaluate=0.0,
    )
    return DifferentialPrivacyClientSideFixedClipping(plain, NOISE_MULTIPLIER, CLIP, task.cohort)


def seconds(task: Task, rounds: int) -> float:
    """One simulation: from the end of its first round, which waits for Ray and the actors, to the end of the last."""
    stamps: list[float] = []
    finished: list[int] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        result = strategy(task).start(
            grid=grid,
            initial_arrays=ArrayRecord(task.module().state_dict()),
            num_rounds=rounds + 1,
            evaluate_fn=lambda *_: stamps.append(time.perf_counter()),  # Flower calls it before and after each round
        )
        finished.extend(result.train_metrics_clientapp)

    run_simulation(
        server,
        client_app(task),
        num_supernodes=task.clients,
        backend_config={
            "init_args": {"num_cpus": ACTORS, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    if len(finished) != rounds + 1:
        raise RuntimeError(f"Flower aggregated {len(finished)} of {rounds + 1} rounds; its log says why.")
    return stamps[-1] - stamps[1]


if __name__ == "__main__":
    given = Task.read(sys.argv[1])
    answer(lambda rounds: seconds(given, rounds))
