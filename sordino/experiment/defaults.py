"""What an experiment is where it does not say. It imports nothing, so that a list of runs can tell it at once."""

DEFAULT_EPSILON = 8.0
DEFAULT_CLIENTS = 100
