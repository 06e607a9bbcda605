"""From an experiment to its results: configuration, preparation, runs, and what is kept of them."""
