"""Writes bytes in binary units."""


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
