"""Replies, as a method's script reads them: single messages, which is charged, or sums of parts that nobody saw."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from sordino.errors import UserError, unknown
from sordino.federation.run_state import RunState
from sordino.federation.transcript import Exchange, Reading
from sordino.federation.transport import Answer
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Row
from sordino.privacy.release import Public, Releases


class Answers:
    """Replies of single clients: bounded and noised rows, centred on zero. Reading single messages is charged."""

    def __init__(
        self,
        releases: Releases,
        rows: Mapping[str, Row],
        answer: Answer,
        gate: Gate,
        public: Public,
        run_state: RunState,
        recorded: Exchange | None = None,
    ) -> None:
        """`rows` are the ledger's rows of the releases; everything that is read is written into `recorded`."""
        self.who = public.clients
        self._releases, self._rows, self._values = releases, rows, answer.values
        self._gate, self._public, self._run_state, self._recorded = gate, public, run_state, recorded

    def has(self, release: str) -> bool:
        return release in self._values

    def mean(self, release: str) -> Tensor:
        values = self._of(release)
        if not self._releases[release].summed:
            self._expose(release)
        mean = self._gate.mean(self._releases[release], values, self._public) + self._releases[release].centre()
        return self._hand_out(release, "mean", mean)

    def rows(self, release: str) -> Tensor:
        values = self._of(release)
        self._expose(release)
        rows = self._gate.read(self._releases[release], values, self._public) + self._releases[release].centre()
        return self._hand_out(release, "rows", rows)

    def deviation(self, release: str) -> Tensor:
        return self._releases[release].deviation(self._gate.allowance, self._public)

    def _hand_out(self, release: str, how: Reading, value: Tensor) -> Tensor:
        """Record a value that the script is about to read."""
        if self._recorded is not None:
            self._recorded.read[release, how] = value.clone()
        return value

    def _of(self, release: str) -> Tensor:
        if release not in self._values:
            raise unknown("release in this round called", release, self._values)
        return self._values[release]

    def _expose(self, release: str) -> None:
        """Charge everybody for single messages before they become known."""
        kind, ledger = self._releases[release], self._run_state.ledger
        self._run_state.charge(kind.expose(ledger, self._rows[release], self._public.clients))


class Sums:
    """Replies where nobody saw single messages: the sum of each release over the clients that answered."""

    def __init__(self, releases: Releases, answer: Answer, gate: Gate, public: Public) -> None:
        self.who = public.clients
        self._releases, self._values, self._gate, self._public = releases, answer.values, gate, public

    def has(self, release: str) -> bool:
        return release in self._values

    def mean(self, release: str) -> Tensor:
        if release not in self._values:
            raise unknown("release in this round called", release, self._values)
        kind, (total,) = self._releases[release], self._values[release]
        return self._gate.mean_of_sum(kind, total, self._public) + kind.centre()

    def rows(self, release: str) -> Tensor:
        raise UserError(
            f"The method reads each client's {release} by itself, but the secure sum shows sums only: simulate it with "
            '`sordino run`, or deploy it with protect_from = "server".'
        )

    def deviation(self, release: str) -> Tensor:
        return self._releases[release].deviation(self._gate.allowance, self._public)
