"""Studies: several runs that are compared, tuned or swept."""

__all__ = ["compare", "curve_fitting", "run_cells", "sweep", "tuning", "verdict", "worker"]
