"""Federations on real machines: what a site and a coordinator do, whatever carries their bytes."""
