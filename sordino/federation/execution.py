"""Execution of a method's steps at clients, and evaluation: one client after the other, or many stacked under `vmap`.

A client's memory is fetched lazily (`Recalled`): many steps never read the stored models, which lie on disk.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sordino.data.dataset import Split
from sordino.errors import UserError
from sordino.federation import message as messages
from sordino.federation.client import Clients, Done, Execution, Question
from sordino.learning.network import Records
from sordino.learning.stacked import copy_contiguous
from sordino.learning.vmapped import as_one, obstacle, over_clients
from sordino.method import Method, Result
from sordino.privacy.gradients import PrivateRows
from sordino.privacy.release import Public


class Recalled(dict[str, Tensor]):
    """Lazy dictionary: reading `d[name]` fetches that value; any other use, such as iteration, fetches all."""

    def __init__(self, names: Iterable[str], fetch: Callable[[str], Tensor]) -> None:
        super().__init__()
        self._left, self._fetch = list(names), fetch

    def __missing__(self, name: str) -> Tensor:
        if name not in self._left:
            raise KeyError(name)
        self._left.remove(name)
        value = self[name] = self._fetch(name)
        return value


def _of_all(name: str) -> Callable[..., Any]:
    """Return the `dict` method `name`, changed so that it first fetches everything."""

    def method(self: Recalled, *arguments: Any, **named: Any) -> Any:
        for left in list(self._left):
            self[left]
        self._left.clear()
        return getattr(dict, name)(self, *arguments, **named)

    method.__name__ = name
    return method


for _name in (
    *("__iter__", "__reversed__", "__len__", "__contains__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__"),
    *("__delitem__", "keys", "values", "items", "get", "copy", "pop", "popitem", "setdefault", "clear"),
):
    setattr(Recalled, _name, _of_all(_name))


Mode = Literal["stacked", "one-by-one"]
STACK = 50
"""Largest number of clients in a stack: the same for any number of workers, so that results are too."""
STACKED_NUMBERS = 2**25
"""Largest number of parameters in a stack, over all its clients."""
EVALUATED = 2**22
"""Largest number of values of test records that are evaluated at once."""
ONE_BY_ONE = ", or train clients one by one with `--set engine=one-by-one`"


def stack_size(parameters: int) -> int:
    """Return the number of clients in a stack, for `parameters` parameters each."""
    return max(1, min(STACK, STACKED_NUMBERS // parameters))


def stack_count(clients: int, size: int, shared: bool = True) -> int:
    """Return the number of stacks of at most `size` clients: an even one, which keeps two workers equally busy, where
    the work is to be `shared` among workers."""
    stacks = -(-clients // size)
    return stacks + stacks % 2 if shared and clients > 1 else stacks


class Alone:
    """One client after the other."""

    def groups(self, order: np.ndarray, stack: int, kinds: np.ndarray, shared: bool = True) -> list[list[int]]:
        """Split clients into groups of one, in the given order."""
        return order.reshape(-1, 1).tolist()

    def run(self, clients: Clients, question: Question, me: Mapping[str, Tensor], public: Public) -> Done:
        step = clients.step(question.step)
        results = []
        for place, (client, seed) in enumerate(zip(question.clients, clients.seeds(question), strict=True)):
            _seed_dropout(seed, clients.device)
            clients.learner.unbind(clients.device)
            message = messages.for_client(question.message, client, clients.device)
            mine = Recalled(me, functools.partial(_copy_row, me, place, clients.device))
            with explaining_vmap(clients, "records", ""):
                results.append(step(message, mine, clients.records(question, place, seed, public)))
        return _together(results)

    def judged(self, clients: Clients, models: Tensor, who: Sequence[int]) -> np.ndarray:
        found = []
        for flat, client in zip(models.expand(len(who), -1), who, strict=True):
            x, y = (tensor.to(flat.device) for tensor in clients.data.test.part(client))
            loss, score = clients.learner.loss_and_score(flat.contiguous(), x, y)
            found.append((score, loss))
        return np.array(found).reshape(-1, 2)

    def trained(
        self, clients: Clients, models: Tensor, records: Split, seeds: Sequence[int], method: Method, passes: int
    ) -> Tensor:
        found = []
        for place, (model, seed) in enumerate(zip(models, seeds, strict=True)):
            _seed_dropout(seed, clients.device)
            x, y = (tensor.to(clients.device) for tensor in records.part(place))
            data = Records(x, y, clients.learner, seed, balanced=clients.balanced)
            found.append(_after(method, model.contiguous(), data, passes))
        return torch.stack(found)

    def outputs(self, clients: Clients, models: Tensor, records: Split, parts: Sequence[int]) -> list[Tensor]:
        found = []
        for model, part in zip(models, parts, strict=True):
            x, y = (tensor.to(clients.device) for tensor in records.part(part))
            found.append(Records(x, y, clients.learner, 0).logits(model.contiguous()))
        return found


class Stacked:
    """Many clients at once, whose networks are small: a step runs under `vmap`."""

    def groups(self, order: np.ndarray, stack: int, kinds: np.ndarray, shared: bool = True) -> list[list[int]]:
        """Split clients into stacks of at most `stack`, of one kind each; the kind that comes first in `order` is
        first."""
        found = []
        different = list(dict.fromkeys(kinds[order].tolist()))
        for kind in different:
            part = order[kinds[order] == kind]
            count = stack_count(len(part), stack, shared and len(different) == 1)
            found += [one.tolist() for one in np.array_split(part, count)]
        return found

    def run(self, clients: Clients, question: Question, me: Mapping[str, Tensor], public: Public) -> Done:
        clients.learner.unbind(clients.device)
        if clients.protects_records:
            return self._private(clients, question, me, public)
        device, step = clients.device, clients.step(question.step)
        x, y, valid = clients.data.train.stacked(question.clients)
        valid = None if valid is None else valid.to(device)
        seeds = torch.tensor(clients.seeds(question), device=device)
        shared = messages.shared_part(question.message, device)
        own = messages.own_part(question.message, question.clients, device)

        def one(own: Any, x: Tensor, y: Tensor, valid: Tensor | None, seed: Tensor) -> tuple[Any, ...]:
            mine = Recalled(me, as_one(lambda name: me[name].to(device)))
            data = Records(x, y, clients.learner, seed, valid, stacked=True, balanced=clients.balanced)
            result = step(shared | own, mine, data)
            return result.send, result.keep, {} if result.start is None else {"start": result.start}

        with explaining_vmap(clients, "clients", ONE_BY_ONE):
            count = len(question.clients)
            sent, kept, start = over_clients(one, count, own, x.to(device), y.to(device), valid, seeds)
        return Done(sent, kept, start.get("start"))

    @staticmethod
    def _private(clients: Clients, question: Question, me: Mapping[str, Tensor], public: Public) -> Done:
        """Run a step where records are protected; one that hands single records to the gate has one client only."""
        if len(question.clients) == 1:
            return Alone().run(clients, question, me, public)
        step, stack, count = clients.step(question.step), clients.stack(question, public), len(question.clients)
        # Every client has a copy of the message, which its step may change in place. How often it took part is known
        # to be the same for all: steps may decide by it.
        shared = messages.shared_part(question.message, clients.device)
        own = messages.own_part(question.message, question.clients, clients.device)
        tensors = {name: value for name, value in shared.items() if isinstance(value, Tensor)}
        own |= {name: copy_contiguous(value.expand(count, *value.shape)) for name, value in tensors.items()}
        turns = me["participations"][0].to(clients.device, copy=True)

        def one(own: Any, figures: dict[str, Tensor]) -> tuple[Any, ...]:
            rows = as_one(lambda name: me[name].to(clients.device))
            mine = Recalled(me, lambda name: turns if name == "participations" else rows(name))
            result = step(shared | own, mine, PrivateRows(stack, figures))
            return result.send, result.keep, {} if result.start is None else {"start": result.start}

        with explaining_vmap(clients, "clients", ONE_BY_ONE):
            sent, kept, start = over_clients(one, count, own, stack.figures)
        return Done(sent, kept, start.get("start"))

    def judged(self, clients: Clients, models: Tensor, who: Sequence[int]) -> np.ndarray:
        test = clients.data.test
        width = max(1, EVALUATED // max(1, int(test.sizes[who].max()) * test.x[:1].numel()))
        found = []
        for begin in range(0, len(who), width):
            part = slice(begin, begin + width)
            found.append(self._some(clients, models if len(models) == 1 else models[part], who[part]))
        return np.concatenate(found)

    @staticmethod
    def _some(clients: Clients, models: Tensor, who: Sequence[int]) -> np.ndarray:
        x, y, valid = clients.data.test.stacked(who)
        with explaining_vmap(clients, "clients", ONE_BY_ONE):
            logits = clients.learner.stacked_logits(models, x.to(models.device))
        logits = logits.cpu()
        task = clients.data.task
        loss, sizes = task.stacked_losses(logits, y).double(), clients.data.test.sizes[who]
        total = (loss if valid is None else loss.where(valid > 0, 0.0)).sum(dim=1).numpy()
        mean = np.where(sizes > 0, total / np.maximum(sizes, 1), np.nan)
        return np.stack([task.scores(logits, y, valid).numpy(), mean], axis=1)

    def trained(
        self, clients: Clients, models: Tensor, records: Split, seeds: Sequence[int], method: Method, passes: int
    ) -> Tensor:
        device = clients.device
        x, y, valid = records.stacked(range(len(seeds)))
        valid = None if valid is None else valid.to(device)

        def one(model: Tensor, x: Tensor, y: Tensor, valid: Tensor | None, seed: Tensor) -> Tensor:
            data = Records(x, y, clients.learner, seed, valid, stacked=True, balanced=clients.balanced)
            return _after(method, model, data, passes)

        with explaining_vmap(clients, "clients", ONE_BY_ONE):
            found: Tensor = over_clients(
                one, len(seeds), models, x.to(device), y.to(device), valid, torch.tensor(seeds, device=device)
            )
        return found

    def outputs(self, clients: Clients, models: Tensor, records: Split, parts: Sequence[int]) -> list[Tensor]:
        found: list[Tensor] = []
        sizes = records.sizes[parts]
        width = max(1, EVALUATED // max(1, int(sizes.max()) * records.x[:1].numel()))
        for begin in range(0, len(parts), width):
            some = slice(begin, begin + width)
            x, _, _ = records.stacked(parts[some])
            with explaining_vmap(clients, "clients", ONE_BY_ONE):
                logits = clients.learner.stacked_logits(models[some], x.to(clients.device))
            found += [rows[:size] for rows, size in zip(logits, sizes[some].tolist(), strict=True)]
        return found


EXECUTIONS: dict[Mode, Execution] = {"stacked": Stacked(), "one-by-one": Alone()}


@contextlib.contextmanager
def explaining_vmap(clients: Clients, what: str, instead: str) -> Iterator[None]:
    """Turn torch's long error about code that `vmap` cannot run into a sentence for the user.

    Args:
        clients: Their network and method are named.
        what: What is run many at a time: "clients" or "records".
        instead: What else the user may do.
    """
    try:
        yield
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        network, method = type(clients.learner.written).__name__, type(clients.method).__name__
        raise UserError(
            f"The network {network} or the method {method} cannot be run for many {what} at once: "
            f"{obstacle(error)}{instead}."
        ) from error


def _after(method: Method, model: Tensor, records: Records, passes: int) -> Tensor:
    """Return one client's model after `passes` passes over its records."""
    descent = method.descent(records)
    for _ in range(passes):
        model = descent.epoch(model)
    return model


def _copy_row(rows: Mapping[str, Tensor], place: int, device: torch.device, name: str) -> Tensor:
    """Return a copy of a client's row, which its step may change."""
    return rows[name][place].to(device, copy=True)


def _together(results: list[Result]) -> Done:
    """Stack the results of single clients as rows; sealed values, of one client only, stay as they are."""
    first = results[0]
    return Done(
        sent={name: _stack([result.send[name] for result in results]) for name in first.send},
        kept={name: _stack([result.keep[name] for result in results]) for name in first.keep},
        start=None if first.start is None else _stack([r.start for r in results]),
    )


def _stack(values: list[Any]) -> Any:
    """Stack values as rows, without a copy when there is only one."""
    if not all(isinstance(value, Tensor) for value in values):
        (value,) = values
        return value
    return values[0].unsqueeze(0) if len(values) == 1 else torch.stack(values)


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's global stream, from which dropout draws; `torch.manual_seed` takes a millisecond longer."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
