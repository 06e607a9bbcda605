"""The bare loops: the same local training as a workload's, without federation and without privacy.

Loop A is one process with two threads; loop B splits the clients of each round over two processes with one thread
each. Both are what one would write by hand in PyTorch: a model loaded anew for each client, an optimizer, batches.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as processes
from torch import nn
from workloads import Workload


class Bare:
    """A bare loop in `count` processes of `threads` threads each, which waits between measurements."""

    def __init__(self, workload: Workload, count: int, threads: int) -> None:
        self.workload = workload
        context = processes.get_context("spawn")  # a fork of a process that has used threads may hang
        self._pipes: list[Connection] = []
        self._children: list[Any] = []
        for part in range(count):
            here, there = context.Pipe()
            child = context.Process(target=serve, args=(workload, there, part, count, threads), daemon=True)
            child.start()
            self._pipes.append(here)
            self._children.append(child)

    def rate(self, rounds: int) -> float:
        """Samples a second over so many rounds, until the last process is done."""
        begin = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(rounds)
        for pipe in self._pipes:
            pipe.recv()
        return self.workload.samples * rounds / (time.perf_counter() - begin)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for child in self._children:
            child.join()


def serve(workload: Workload, pipe: Connection, part: int, parts: int, threads: int) -> None:
    """One process: its share of the clients of each round."""
    torch.set_num_threads(threads)
    x, y = workload.tensors()
    module = workload.module()
    begun = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.Generator().manual_seed(part)
    while (rounds := pipe.recv()) is not None:
        for _ in range(rounds):
            cohort = torch.randperm(workload.clients, generator=generator)[: workload.cohort].tolist()
            for client in cohort[part::parts]:
                train(workload, module, begun, x[client], y[client])
        pipe.send(True)


def train(
    workload: Workload, module: nn.Module, begun: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> None:
    """One client's round."""
    module.load_state_dict(begun)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    optimizer = kinds[workload.optimizer](module.parameters(), lr=workload.rate)
    for _ in range(workload.epochs):
        for chosen in torch.randperm(len(y)).split(workload.batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[chosen]), y[chosen]).backward()
            optimizer.step()
