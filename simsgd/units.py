"""Writes bytes in binary units, counts with their nouns, and lists of names."""

from collections.abc import Sequence


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
