"""Settings for all tests."""

from hypothesis import settings

# A busy machine makes single examples slow: time limits belong to the whole run, not to an example.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
