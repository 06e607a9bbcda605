"""Studies: several runs that are compared, tuned or swept."""
