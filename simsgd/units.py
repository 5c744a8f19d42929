"""Reads and writes numbers, bytes in units, counts with their nouns, lists of names, and paths."""

import os
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)


def in_units(num_bytes: float) -> str:
    """Return bytes in binary units.

    >>> in_units(1536), in_units(10 * 2**20), in_units(12)
    ('1.5 KiB', '10 MiB', '12 B')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    power = 0
    while num_bytes / 1024**power >= 1024 and power < len(units) - 1:
        power += 1
    return f"{num_bytes / 1024**power:.4g} {units[power]}"


def in_round_units(num_bytes: int) -> str:
    """Return bytes in the largest unit, decimal or binary, of which there is a whole number.

    >>> in_round_units(10**7), in_round_units(3 * 2**20), in_round_units(2500)
    ('10 MB', '3 MiB', '2500 B')
    """
    units = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20, "KB": 1000, "KiB": 1024, "B": 1}
    name = next(name for name, size in units.items() if num_bytes % size == 0)
    return f"{num_bytes // units[name]} {name}"


def num_bytes(text: str) -> int | None:
    """Return the bytes of a size in decimal or binary units; None for anything else.

    >>> num_bytes("10MB"), num_bytes("1.5KiB"), num_bytes("12"), num_bytes("1.5"), num_bytes("x")
    (10000000, 1536, 12, None, None)
    """
    read = re.fullmatch(r"(\d+(?:\.\d+)?)(?:([kmg])(i?))?b?", text, re.ASCII | re.IGNORECASE)
    if read is None:
        return None
    power = "KMG".index(read[2].upper()) + 1 if read[2] else 0
    found = Decimal(read[1]) * (1024 if read[3] else 1000) ** power
    return int(found) if found == int(found) else None


def is_plain_number(text: str) -> bool:
    """Return whether a text is a number in the one way in which options and specs have it.

    >>> is_plain_number("-1.5e-3"), is_plain_number("0x10"), is_plain_number("1_000")
    (True, False, False)
    """
    return _NUMBER.fullmatch(text.strip()) is not None


def counted(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "epoch"), counted(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def alternatives(names: Sequence[str]) -> str:
    """Return names in one phrase.

    >>> alternatives(["ring"]), alternatives(["ring", "torus", "star"])
    ('ring', 'ring, torus or star')
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def home_path(text: str) -> Path:
    """Return a path, with the user's own folder in place of a ~ at its beginning."""
    return Path(os.path.expanduser(text))  # Path's own raises for a user that does not exist


def plain_scalar(value: object) -> object:
    """Return a number or text of numpy's as Python's own, and anything else as it is."""
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value  # type: ignore[attr-defined]
