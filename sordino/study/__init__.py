"""Studies: several runs that are compared, tuned or swept."""

__all__ = ["compare", "curve_fitting", "parallel", "sweep", "tuning", "verdict", "worker"]
