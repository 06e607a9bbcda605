"""Work that is done on a node of a cluster: a share of one run's clients, or one whole run of a study.

Everything here is called by Ray, in processes of the nodes.
"""

from __future__ import annotations

import contextlib
import math
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.assembly import blank_of, engine_of, gate_of
from sordino.cluster.packing import Packed, pack, unpack
from sordino.errors import MACHINE, Stopped, UserError
from sordino.experiment.identity import describe_machine
from sordino.experiment.run import carry_on, compiled
from sordino.federation.rounds import RoundReport
from sordino.simulator.memory import Memory
from sordino.simulator.serving import KINDS
from sordino.store.store import Store
from sordino.util.import_by_name import current_directory_importable
from sordino.version import VERSION

MESSAGE_SECONDS = 0.1
"""Least number of seconds between two messages of a run to its command."""


@dataclass(frozen=True)
class About:
    """A process of a node."""

    node: str
    """Name of its machine."""
    version: str
    """Version of Sordino there."""
    machine: str
    """Description of the machine (`describe_machine`), which decides the bits of a run besides its identity."""


class LentMemory(Memory):
    """Memory of the clients of a few units, as far as it was sent along; what is to be written is sent back.

    Most steps never read what clients remember, so that it is only sent when somebody has looked for it.
    """

    def __init__(self, blank: dict[str, Tensor], clients: int) -> None:
        """`blank` is the memory of a client that has not taken part yet."""
        self.blank = {name: value.detach().to("cpu", torch.float32) for name, value in blank.items()}
        self.slots = np.zeros(clients, dtype=np.uint8)
        self.participations = np.zeros(clients, dtype=np.int32)
        self._rows: dict[int, dict[str, Tensor]] = {}
        self.written: dict[str, Tensor] = {}
        """Values that the clients of the last unit keep."""

    def lend(self, participations: Mapping[int, int], states: Mapping[str, Tensor]) -> None:
        """Take over what clients remember: how often each has taken part, and the rows of those that have, in the same
        order; no rows where nobody has looked for them yet."""
        self.participations[list(participations)] = list(participations.values())
        took_part = [client for client, times in participations.items() if times]
        self._rows = {}
        if states:
            for place, client in enumerate(took_part):
                self._rows[client] = {name: rows[place] for name, rows in states.items()}

    def read(self, clients: Sequence[int]) -> dict[str, Tensor]:
        found = []
        for client in clients:
            if not self.participations[client]:
                found.append(self.blank)
            elif client in self._rows:
                found.append(self._rows[client])
            else:
                raise NotLentError
        return {name: torch.stack([one[name] for one in found]) for name in self.blank}

    def write(self, clients: Sequence[int], slots: Sequence[int], states: dict[str, Tensor]) -> None:
        self.check_names(states)
        self.written = {name: rows.detach().to("cpu", torch.float32) for name, rows in states.items()}


class NotLentError(BaseException):
    """A step looks at what its clients remember, which was not sent along. Not an `Exception`, which it might catch."""


class Worker:
    """Process that works for clients of one run for as long as a session of it takes."""

    def __init__(self, packed: Packed) -> None:
        """Make the clients of the prepared experiment that is packed with `prepared_for_nodes`."""
        torch.set_num_threads(1)
        prepared = compiled(unpack_prepared(packed))
        self._memory = LentMemory(blank_of(prepared), prepared.schedule.clients)
        self._engine = engine_of(prepared, gate_of(prepared), self._memory)
        self._device = prepared.experiment.device

    def about(self) -> About:
        """This process, once it is ready."""
        return About(socket.gethostname(), VERSION, describe_machine(self._device))

    def work(self, kind: str, packed: Packed, part: Packed) -> Packed:
        """Work on some units of a question.

        Args:
            kind: Kind of question (`serving.KINDS`).
            packed: The question, and tensors that it names.
            part: The units, how often their clients have taken part, and what they remember if that was asked for.
        """
        question, shared = unpack(packed)
        units, participations, states = unpack(part)
        self._memory.lend(participations, states)
        one = KINDS[kind](self._engine, shared, question, units)
        results: list[tuple[Any, dict[str, Tensor]]] = []
        for number in range(len(units)):
            self._memory.written = {}
            try:
                results.append((one(number), self._memory.written))
            except NotLentError:
                return pack(("lend",))
            except Exception as error:
                return pack(("failed", number, sentence_of(error), isinstance(error, MACHINE)))
        return pack(("done", results))


def sentence_of(error: BaseException) -> str:
    """An error's kind and words."""
    return traceback.format_exception_only(error)[-1].strip()


def prepared_for_nodes(prepared: Any) -> Packed:
    """Pack a prepared experiment. Nodes import the user's own code by its name, and compile for themselves."""
    keys = prepared.experiment.model_dump(mode="json")
    inner = pack(replace(prepared, compiled=None))
    return Packed(pack((VERSION, keys, inner.content)).content, inner.arrays)


def unpack_prepared(packed: Packed) -> Any:
    """The prepared experiment that was packed. Its own code must be here."""
    from sordino.experiment.config import Experiment

    version, keys, content = unpack(Packed(packed.content, []))
    if version != VERSION:
        raise UserError(
            f"The node {socket.gethostname()} has version {VERSION} of Sordino, and the command {version}: install the "
            "same one on all machines."
        )
    with current_directory_importable():
        Experiment.make(keys).build_method()  # so that modules of the user's own have been imported
        return unpack(Packed(content, packed.arrays))


@dataclass(frozen=True)
class Sent:
    """Outcome of one run of a study on a node."""

    files: dict[str, bytes]
    """A store with the run alone, as far as it came: contents of its files by their paths."""
    refused: str = ""
    """Sentence with which the run was refused; empty where it was not."""
    failed: str = ""
    """Error with which the run failed; empty where it did not."""
    stopped: bool = False
    """Whether it was stopped because the command was."""


def make_run(packed: Packed, files: dict[str, bytes], run: str, tell: Callable[[Any], bool]) -> Sent:
    """Work on a run of a study until it is done.

    Args:
        packed: The prepared experiment.
        files: Files of a store that has the run alone.
        run: The run's name.
        tell: Is told how the run goes on; returns whether it must stop.
    """
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sordino-") as place:
        folder = Path(place)
        write_files(files, folder)
        try:
            prepared = unpack_prepared(packed)
            with contextlib.closing(Store(folder)) as store:
                carry_on(prepared, store, run, _Telling(tell))
        except Stopped:
            told = {"stopped": True}
        except UserError as error:
            told = {"refused": str(error)}
        except Exception as error:
            told = {"failed": sentence_of(error)}
        return Sent(dict(read_files(folder)), **told)


@dataclass
class _Telling:
    """A watch of a run on a node. It does not tell of every round: the command looks a few times in a second, and each
    message takes a processor of the runs for a millisecond."""

    tell: Callable[[Any], bool]
    told: float = -math.inf
    """Time of the last message."""

    def __call__(self, report: RoundReport) -> None:
        self._say(report)

    def blending(self, done: int, clients: int) -> None:
        self._say((done, clients))

    def _say(self, what: Any) -> None:
        now = time.monotonic()
        if now - self.told < MESSAGE_SECONDS:
            return
        self.told = now
        if self.tell(what):
            raise KeyboardInterrupt


def read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Contents of all files below a folder, by their paths in it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
