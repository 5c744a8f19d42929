"""Aligns rows of text in columns, for a terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """A table in words: its text is for a terminal, and a page writes the same cells as HTML."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1  # columns at the left that hold words; those behind them hold numbers

    def __str__(self) -> str:
        return columns([self.head, *self.rows], left=range(self.names))

    @property
    def width(self) -> int:
        """The characters of a line."""
        return sum(max(map(len, cells)) + 2 for cells in self._columns()) - 2

    def with_columns(self, places: Sequence[int]) -> "TextTable":
        """Return the table with these columns alone, in this order; words stand first.

        >>> print(TextTable(["run", "a", "b"], [["x", "1", "22"]]).with_columns([0, 2]))
        run   b
        x    22
        """
        rows = [[row[place] for place in places] for row in self.rows]
        names = sum(place < self.names for place in places)
        return TextTable([self.head[place] for place in places], rows, names)

    def _columns(self) -> list[tuple[str, ...]]:
        return list(zip(self.head, *self.rows, strict=True))


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
