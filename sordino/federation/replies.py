"""What the server reads of what came back: single messages, which is charged, or sums of parts that nobody saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from sordino.errors import UserError, unknown
from sordino.federation.transcript import Exchange, Reading
from sordino.federation.transport import Answer
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.release import Public, Releases


class Charges(Protocol):
    """Where what is read is charged."""

    ledger: Ledger

    def charge(self, rows: Sequence[Row]) -> None:
        """Write down rows of the ledger before anything is read for which they pay."""


class Answers:
    """What came back: bounded and noised rows, centred on zero. Reading single messages is charged."""

    def __init__(
        self,
        releases: Releases,
        rows: Mapping[str, Row],
        answer: Answer,
        gate: Gate,
        public: Public,
        books: Charges,
        noted: Exchange | None = None,
    ) -> None:
        """`rows` are the ledger's rows of the releases; what is read is written into `noted`."""
        self.who = public.clients
        self._releases, self._rows, self._values = releases, rows, answer.values
        self._gate, self._public, self._books, self._noted = gate, public, books, noted

    def has(self, release: str) -> bool:
        return release in self._values

    def mean(self, release: str) -> Tensor:
        values = self._of(release)
        if not self._releases[release].summed:
            self._expose(release)
        mean = self._gate.mean(self._releases[release], values, self._public) + self._releases[release].centre()
        return self._handed_out(release, "mean", mean)

    def rows(self, release: str) -> Tensor:
        values = self._of(release)
        self._expose(release)
        rows = self._gate.read(self._releases[release], values, self._public) + self._releases[release].centre()
        return self._handed_out(release, "rows", rows)

    def deviation(self, release: str) -> Tensor:
        return self._releases[release].deviation(self._gate.allowance, self._public)

    def _handed_out(self, release: str, how: Reading, value: Tensor) -> Tensor:
        """What the script reads, after it has been written down."""
        if self._noted is not None:
            self._noted.read[release, how] = value.clone()
        return value

    def _of(self, release: str) -> Tensor:
        if release not in self._values:
            raise unknown("release in this round called", release, self._values)
        return self._values[release]

    def _expose(self, release: str) -> None:
        """Charge everybody for what becomes known of single messages, before it does."""
        kind, ledger = self._releases[release], self._books.ledger
        self._books.charge(kind.expose(ledger, self._rows[release], self._public.clients))


class Sums:
    """What came back where nobody saw single messages: the sum of each release over who answered."""

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
