"""How steps are run: at one client after the other, or at many stacked clients under `torch.func.vmap`.

Both see copies of the message and of what clients remember, so that nothing a step changes in place reaches anybody
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from sordino import message as messages
from sordino.client import Clients, Done, Question
from sordino.data.dataset import Split
from sordino.method import Result
from sordino.privacy.release import Public
from sordino.training import Learner, Records

STACK = 50
"""How many clients a stack holds at most: the same for any number of workers, so that results are too."""
STACKED_NUMBERS = 2**25
"""How many parameters a stack holds at most, over all its clients."""
EVALUATED = 2**22
"""How many numbers of test records are evaluated at once."""


def stack_size(parameters: int) -> int:
    """How many clients with so many parameters each are worked on at once."""
    return max(1, min(STACK, STACKED_NUMBERS // parameters))


class Alone:
    """One client after the other."""

    def groups(self, order: np.ndarray, stack: int) -> list[list[int]]:
        """Clients in groups that must be worked on together, in the given order: each by itself."""
        return order.reshape(-1, 1).tolist()

    def run(self, clients: Clients, question: Question, me: dict[str, Tensor], public: Public) -> Done:
        step = clients.step(question.step)
        results = []
        for place, (client, seed) in enumerate(zip(question.clients, clients.seeds(question), strict=True)):
            _seed_dropout(seed, clients.device)
            message = messages.received(question.message, client, clients.device)
            mine = {name: rows[place].clone() for name, rows in me.items()}
            results.append(step(message, mine, clients.records(question, place, seed, public)))
        return _together(results)

    def accuracies(self, learner: Learner, test: Split, models: Tensor, clients: Sequence[int]) -> np.ndarray:
        """Each client's test accuracy with its row of `models`, or with the only row."""
        rows = zip(models.expand(len(clients), -1), clients, strict=True)
        return np.array([self._accuracy(learner, test, flat.contiguous(), client) for flat, client in rows])

    @staticmethod
    def _accuracy(learner: Learner, test: Split, flat: Tensor, client: int) -> float:
        x, y = test.part(client)
        return learner.accuracy(flat, x.to(flat.device), y.to(flat.device))


class Stacked:
    """Many clients at once, whose networks are small: a step runs under `vmap`."""

    def groups(self, order: np.ndarray, stack: int) -> list[list[int]]:
        """Clients in groups that must be worked on together, in the given order: stacks of at most `stack`."""
        stacks = -(-len(order) // stack)
        if len(order) > 1:
            stacks += stacks % 2  # an even number keeps two workers equally busy
        return [part.tolist() for part in np.array_split(order, stacks)]

    def run(self, clients: Clients, question: Question, me: dict[str, Tensor], public: Public) -> Done:
        device, step = clients.device, clients.step(question.step)
        x, y, valid = clients.data.train.stacked(question.clients)
        valid = None if valid is None else valid.to(device)
        seeds = torch.tensor(clients.seeds(question), device=device)
        shared = messages.shared(question.message, device)
        own = messages.own(question.message, question.clients, device)

        def one(me: Any, own: Any, x: Tensor, y: Tensor, valid: Tensor | None, seed: Tensor) -> tuple[Any, ...]:
            result = step(shared | own, me, Records(x, y, clients.learner, seed, valid, stacked=True))
            return result.send, result.keep, {} if result.start is None else {"start": result.start}

        dims = (0, 0, 0, 0, None if valid is None else 0, 0)
        sent, kept, start = vmap(one, in_dims=dims)(me, own, x.to(device), y.to(device), valid, seeds)
        return Done(sent, kept, start.get("start"))

    def accuracies(self, learner: Learner, test: Split, models: Tensor, clients: Sequence[int]) -> np.ndarray:
        """Each client's test accuracy with its row of `models`, or with the only row."""
        width = max(1, EVALUATED // max(1, int(test.sizes[clients].max()) * test.x[:1].numel()))
        found = []
        for begin in range(0, len(clients), width):
            part = slice(begin, begin + width)
            chosen = models if len(models) == 1 else models[part]
            found.append(self._some(learner, test, chosen, clients[part]))
        return np.concatenate(found)

    @staticmethod
    def _some(learner: Learner, test: Split, models: Tensor, clients: Sequence[int]) -> np.ndarray:
        x, y, valid = test.stacked(clients)
        right = (learner.stacked_logits(models, x.to(models.device)).argmax(dim=2).cpu() == y).double()
        sizes = test.sizes[clients]
        whole = (right if valid is None else right * valid).sum(dim=1).numpy()
        return np.where(sizes > 0, whole / np.maximum(sizes, 1), np.nan)


def _together(results: list[Result]) -> Done:
    """The results of single clients as rows; what is sealed, or of one client only, stays as it is."""
    first = results[0]
    return Done(
        sent={name: _stacked([result.send[name] for result in results]) for name in first.send},
        kept={name: _stacked([result.keep[name] for result in results]) for name in first.keep},
        start=None if first.start is None else _stacked([r.start for r in results]),
    )


def _stacked(values: list[Any]) -> Any:
    """Values as rows, without a copy when there is only one."""
    if not all(isinstance(value, Tensor) for value in values):
        (value,) = values
        return value
    return values[0].unsqueeze(0) if len(values) == 1 else torch.stack(values)


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Dropout draws from torch's global stream. `torch.manual_seed` would do, but takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
