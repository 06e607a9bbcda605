"""pfl: federated averaging with norm clipping and central Gaussian noise, in one process or in several.

python pfl_peer.py '<workload as JSON>'     # several: one for each PFL_WORKER_RANK, with PFL_WORKER_ADDRESSES
"""

from __future__ import annotations

import asyncio
import sys
import time

import numpy as np
import torch
from answers import answer
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from task import CLIP, NOISE_MULTIPLIER, OPTIMIZERS, Task
from torch import nn


class Trainable(nn.Module):
    """A network with the two functions that pfl asks of a module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.stamps.append(time.perf_counter())
        return False, Metrics()


class Simulation:
    """pfl's model and backend for a workload, kept between measurements."""

    def __init__(self, task: Task) -> None:
        np.random.seed(0)  # pfl's processes must draw the same cohorts
        self.task = task
        module = Trainable(task.module())
        self.model = PyTorchModel(module, OPTIMIZERS[task.optimizer], torch.optim.SGD(module.parameters(), lr=1.0))
        people = [Dataset((x, y)) for x, y in zip(*task.tensors(), strict=True)]
        sampler = get_user_sampler("minimize_reuse", list(range(task.clients)))
        data = FederatedDataset(lambda client: people[client], sampler)
        privacy = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE_MULTIPLIER))
        self.backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[privacy])

    def seconds(self, rounds: int) -> float:
        """From the end of the first round, the only one in which pfl evaluates, to the end of the last."""
        clock, task = Clock(), self.task
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=rounds + 1,
                evaluation_frequency=rounds + 1,
                train_cohort_size=task.cohort,
                val_cohort_size=0,
            ),
            self.backend,
            self.model,
            NNTrainHyperParams(
                local_batch_size=task.batch, local_num_epochs=task.epochs, local_learning_rate=task.rate
            ),
            callbacks=[clock],
            send_metrics_to_platform=False,
        )
        return clock.stamps[-1] - clock.stamps[0]


def follow(simulation: Simulation) -> None:
    """A process other than the first: do the rounds that it announces, until it announces none."""
    while rounds := announced(0):
        simulation.seconds(rounds)


def announced(rounds: int) -> int:
    """The first process's number of rounds, in every process."""
    if distributed.world_size == 1:
        return rounds
    number = torch.tensor(rounds)
    torch.distributed.broadcast(number, src=0)
    return int(number)


def main() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())  # pfl expects one
    simulation = Simulation(Task.read(sys.argv[1]))
    if distributed.global_rank > 0:
        follow(simulation)
        return
    answer(lambda rounds: simulation.seconds(announced(rounds)))
    announced(0)


if __name__ == "__main__":
    main()
