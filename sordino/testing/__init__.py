"""Contract battery: what every method must satisfy, for Sordino's own methods and for yours.

    from sordino import check_method

    check_method(MyMethod)

It runs the method on a few clients through the code that really runs. It checks that undeclared values do not leave,
that everything which leaves is bounded, that the noise is the one that is charged and no draw is used twice, that
clients do not influence each other's memory, that private memory is in no message, and that a run which is stopped and
resumed ends as one that was not. At record level it also checks single records: who enters a batch, what one record
contributes to a sum, that validation records are not trained on, and where noise is shared out over the clients'
messages what one of these carries of it. An `AssertionError` names the check that fails.

Some of these checks are made on a regression, too, unless the method refuses one (`Method.check_task`).

A battery that passes does not prove an epsilon; one that fails disproves it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sordino.errors import UserError
from sordino.method import Method
from sordino.testing import exits, records, runs, sums
from sordino.testing.case import NUMBERS, Case, numbers

__all__ = ["CHECKS", "ON_NUMBERS", "check_method"]

CHECKS: tuple[Callable[[Case], None], ...] = (
    exits.what_is_not_declared_does_not_leave,
    exits.whatever_a_client_computes_is_bounded,
    exits.noise_is_what_is_charged_and_never_reused,
    exits.one_clients_data_do_not_touch_anothers_state,
    exits.private_state_is_in_no_message,
    exits.what_a_step_changes_in_place_changes_nothing,
    records.records_are_sampled_clipped_and_noised_as_charged,
    records.dealt_records_are_clipped_and_noised_as_charged,
    records.records_set_aside_are_judged_and_not_trained_on,
    sums.sums_over_records_are_sampled_clipped_and_noised_as_charged,
    sums.sums_over_records_are_bounded_and_covered,
    runs.stacked_and_one_by_one_agree,
    runs.the_number_of_workers_changes_no_bit,
    runs.a_stopped_run_ends_as_if_it_had_not_been,
)
"""Checks of the battery, in the order in which they run."""


ON_NUMBERS = (
    exits.whatever_a_client_computes_is_bounded,
    exits.noise_is_what_is_charged_and_never_reused,
    records.records_are_sampled_clipped_and_noised_as_charged,
    sums.sums_over_records_are_sampled_clipped_and_noised_as_charged,
    runs.stacked_and_one_by_one_agree,
)
"""Checks that are run on a regression too: its losses have no bound, and its targets are no whole numbers."""


def check_method(method: type[Method] | Method, **keys: Any) -> None:
    """Run the contract battery on a method, which takes about half a minute.

    An `AssertionError` names the check that failed and what was found.

    Args:
        method: A subclass of `Method`, or an instance with hyper-parameters.
        keys: Keys of an experiment, such as `data` or `model`.
    """
    made = method() if isinstance(method, type) else method
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Case(made, Path(folder), keys))
            except AssertionError as error:
                raise AssertionError(f"{type(made).__name__}: {check.__name__.replace('_', ' ')}: {error}") from error
    with contextlib.suppress(UserError):  # of methods that need classes
        made.check_task(NUMBERS)
        for check in ON_NUMBERS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(Case(made, Path(folder), numbers(Path(folder)) | keys))
                except AssertionError as error:
                    told = f"{check.__name__.replace('_', ' ')}, where numbers are predicted: {error}"
                    raise AssertionError(f"{type(made).__name__}: {told}") from error
