"""Compares simulated worker w with real rank w."""
