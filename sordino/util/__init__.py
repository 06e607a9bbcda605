"""Helpers that know nothing of federated learning: files, TOML, processes, formatting, plotting."""
