"""Simulated worker w held against real rank w."""
