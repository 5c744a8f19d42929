"""Rows of text under each other, for a terminal."""

from collections.abc import Iterable, Sequence


def columns(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """Return rows under each other, the columns in `left` flush left and the others flush right.

    >>> print(columns([("name", "n"), ("a", "10")]))
    name   n
    a     10
    """
    flush_left = set(left)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place in flush_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
