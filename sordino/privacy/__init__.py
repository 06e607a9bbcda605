"""Noise, clipping and accounting: the only place in Sordino where they happen."""
