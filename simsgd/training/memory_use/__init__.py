"""Estimates and measures how much memory a run uses."""
