"""Sordino: personalized federated learning under adaptive differential privacy.

Everything that users call, and write methods with, is imported from here:

- experiments: `run`, `resume`, `compare`, `plan`, `audit`, `load_models` and `make_report` do what the commands of the
  same names do, and return `RunResult`, `ComparisonResult`, `Plan` and `Models`; `partition` deals records to clients;
- methods: `Method` and the bases `Clipped`, `RecordLevel` and `RecordClipped`, the types that their functions meet, and
  those of hyper-parameters;
- releases: `sends` and the kinds of thing that may leave a client;
- `check_method`, the contract battery for a method; `adapt`, low-rank adapters in a frozen network of your own;
- accounting: `epsilon_of`, `delta_of`, `mu_of`, `attack_accuracy` and `rdp_epsilon`.

Modules below this one may change in any version. Names are imported on first use: torch takes a second, and
`sordino --help` should not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sordino.util import moved
from sordino.version import VERSION

if TYPE_CHECKING:
    from sordino.api import (
        ComparisonResult,
        Models,
        Plan,
        RunResult,
        audit,
        compare,
        load_models,
        make_report,
        partition,
        plan,
        resume,
        run,
    )
    from sordino.errors import UserError
    from sordino.federation.message import Each, Message
    from sordino.federation.rounds import RoundReport
    from sordino.federation.schedule import Schedule
    from sordino.learning.descent import Descent
    from sordino.learning.network import Records
    from sordino.learning.parameters import Layout
    from sordino.method import Budget, Count, Federation, Method, NotNegative, Positive, Replies, Result, Share, State
    from sordino.methods.bases import Clipped, RecordClipped, RecordLevel
    from sordino.models.adapters import adapt
    from sordino.privacy.accounting.gaussian import attack_accuracy, delta_of, epsilon_of, mu_of, rdp_epsilon
    from sordino.privacy.gradients import PrivateRecords
    from sordino.privacy.release import (
        Average,
        Bare,
        Derived,
        Follows,
        Gradients,
        GradientSum,
        Matrix,
        Number,
        RecordSum,
        Update,
        sends,
    )
    from sordino.store.run_summary import Summary
    from sordino.testing import check_method

__version__ = VERSION
__all__ = [
    "Average",
    "Bare",
    "Budget",
    "Clipped",
    "ComparisonResult",
    "Count",
    "Derived",
    "Descent",
    "Each",
    "Federation",
    "Follows",
    "GradientSum",
    "Gradients",
    "Layout",
    "Matrix",
    "Message",
    "Method",
    "Models",
    "NotNegative",
    "Number",
    "Plan",
    "Positive",
    "PrivateRecords",
    "RecordClipped",
    "RecordLevel",
    "RecordSum",
    "Records",
    "Replies",
    "Result",
    "RoundReport",
    "RunResult",
    "Schedule",
    "Share",
    "State",
    "Summary",
    "Update",
    "UserError",
    "__version__",
    "adapt",
    "attack_accuracy",
    "audit",
    "check_method",
    "compare",
    "delta_of",
    "epsilon_of",
    "load_models",
    "make_report",
    "mu_of",
    "partition",
    "plan",
    "rdp_epsilon",
    "resume",
    "run",
    "sends",
]

_MODULES = {
    "sordino.api": (
        *("ComparisonResult", "Models", "Plan", "RunResult", "audit", "compare", "load_models", "make_report"),
        *("partition", "plan", "resume", "run"),
    ),
    "sordino.errors": ("UserError",),
    "sordino.store.run_summary": ("Summary",),
    "sordino.federation.message": ("Each", "Message"),
    "sordino.federation.rounds": ("RoundReport",),
    "sordino.federation.schedule": ("Schedule",),
    "sordino.learning.descent": ("Descent",),
    "sordino.learning.network": ("Records",),
    "sordino.learning.parameters": ("Layout",),
    "sordino.method": (
        *("Budget", "Count", "Federation", "Method", "NotNegative", "Positive", "Replies", "Result", "Share"),
        "State",
    ),
    "sordino.methods.bases": ("Clipped", "RecordClipped", "RecordLevel"),
    "sordino.models.adapters": ("adapt",),
    "sordino.privacy.accounting.gaussian": ("attack_accuracy", "delta_of", "epsilon_of", "mu_of", "rdp_epsilon"),
    "sordino.privacy.gradients": ("PrivateRecords",),
    "sordino.privacy.release": (
        *("Average", "Bare", "Derived", "Follows", "Gradients", "GradientSum", "Matrix", "Number", "RecordSum"),
        *("Update", "sends"),
    ),
    "sordino.testing": ("check_method",),
}
"""Modules of the public names, as type checkers read them above; a test compares the two."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


moved.install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
