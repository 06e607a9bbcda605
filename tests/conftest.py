"""Settings for all tests."""

import contextlib

from hypothesis import settings

from sordino.errors import UserError
from sordino.simulator import bf16

# A busy machine makes single examples slow: time limits belong to the whole run, not to an example.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")

# Before any test computes: what a virtual machine advertises and does not have can be done without only from the start.
with contextlib.suppress(UserError):
    bf16.secure()
