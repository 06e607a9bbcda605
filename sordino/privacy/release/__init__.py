"""The kinds of thing that may leave a client, and what each costs.

A release answers for itself: how many entries a message has (`width`), how its value is bounded (`bounded`), which
noise covers it (`cover`) and what that costs every client that sends it (`charge`). The gate applies it, and the
ledger charges it, from the same object.
"""

from sordino.privacy.release.base import PROMISED, Bounded, Charge, Cover, Public, Release, ReleaseError, Releases
from sordino.privacy.release.declaring import (
    all_releases,
    check_steps,
    due,
    record_needs,
    same_turns,
    sends,
    takes_gradients_alone,
)
from sordino.privacy.release.of_clients import Number, Update
from sordino.privacy.release.of_records import (
    Average,
    Bare,
    Derived,
    Follows,
    Gradients,
    Matrix,
    Unprotected,
    without_privacy,
)
from sordino.privacy.release.of_sums import CellCounts, GradientSum, RecordSum

__all__ = [
    "PROMISED",
    "Average",
    "Bare",
    "Bounded",
    "CellCounts",
    "Charge",
    "Cover",
    "Derived",
    "Follows",
    "GradientSum",
    "Gradients",
    "Matrix",
    "Number",
    "Public",
    "RecordSum",
    "Release",
    "ReleaseError",
    "Releases",
    "Unprotected",
    "Update",
    "all_releases",
    "check_steps",
    "due",
    "record_needs",
    "same_turns",
    "sends",
    "takes_gradients_alone",
    "without_privacy",
]
