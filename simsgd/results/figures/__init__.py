"""Figures of runs: one file for each kind. No torch; matplotlib is imported only to draw."""
