"""Benches: how fast things run on this machine, each beside a lower bound."""
