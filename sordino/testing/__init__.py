"""What every method must hold: the contract battery, for Sordino's own methods and for yours.

    from sordino.testing import check_method

    check_method(MyMethod)

It runs the method on a few clients through the code that really runs: what is not declared does not leave, whatever a
client computes is bounded, the noise that is drawn is the noise that is paid for and no draw is used twice, clients do
not hear of each other, private state is in no message, and a run that is stopped and resumed ends as one that was not.
At record level it also looks at single records: who enters a batch, what one brings into a sum, and that records which
are set aside are not trained on. An `AssertionError` says what does not hold.

That a battery passes does not prove an epsilon; that it fails disproves one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sordino.method import Method
from sordino.testing import exits, records, runs
from sordino.testing.case import Case

__all__ = ["CHECKS", "check_method"]

CHECKS: tuple[Callable[[Case], None], ...] = (
    exits.what_is_not_declared_does_not_leave,
    exits.whatever_a_client_computes_is_bounded,
    exits.noise_is_what_is_charged_and_never_reused,
    exits.one_clients_data_do_not_touch_anothers_state,
    exits.private_state_is_in_no_message,
    exits.what_a_step_changes_in_place_changes_nothing,
    records.records_are_sampled_clipped_and_noised_as_charged,
    records.records_set_aside_are_judged_and_not_trained_on,
    runs.stacked_and_one_by_one_agree,
    runs.the_number_of_workers_changes_no_bit,
    runs.a_stopped_run_ends_as_if_it_had_not_been,
)
"""The battery, in the order in which it is run."""


def check_method(method: type[Method] | Method, **keys: Any) -> None:
    """Run the whole battery on a method, a class or one with hyper-parameters; `keys` are those of an experiment.

    It takes half a minute or so. An `AssertionError` names the check that failed and what was found.
    """
    made = method() if isinstance(method, type) else method
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Case(made, Path(folder), keys))
            except AssertionError as error:
                raise AssertionError(f"{type(made).__name__}: {check.__name__.replace('_', ' ')}: {error}") from error
