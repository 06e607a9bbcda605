"""Flower's client. A module of its own, which each Ray actor imports once: what is cached here outlives a message."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from task import OPTIMIZERS, Task
from torch import nn


@lru_cache
def prepared(task: Task) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The network and everyone's records, made once in a process."""
    torch.set_num_threads(1)
    return task.module(), *task.tensors()


def trainer(task: Task) -> Callable[[Message, Context], Message]:
    """What a client does with a message: local training, from the parameters in it."""

    def train(message: Message, context: Context) -> Message:
        module, x, y = prepared(task)
        client = int(context.node_config["partition-id"])
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = OPTIMIZERS[task.optimizer](module.parameters(), lr=task.rate)
        for _ in range(task.epochs):
            for chosen in torch.randperm(task.records).split(task.batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[client, chosen]), y[client, chosen]).backward()
                optimizer.step()
        sent = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": task.records}),
        }
        return Message(content=RecordDict(sent), reply_to=message)

    return train


def client_app(task: Task) -> ClientApp:
    """The client with the clipping of updates that Flower provides."""
    app = ClientApp(mods=[fixedclipping_mod])
    app.train()(trainer(task))
    return app
