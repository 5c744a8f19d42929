"""Networks to train, one file each: a factory, its regime, its input transform.

They know torch, never simsgd; `simsgd/catalog.py` says what a file may define.
"""
