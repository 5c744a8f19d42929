"""Aligns rows of text in columns, for a terminal."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


@dataclass(frozen=True)
class TextTable:
    """A table in words: its text is for a terminal, and a page writes the same cells as HTML."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1  # columns at the left that hold words; those behind them hold numbers
    title: str = ""  # in a line above it

    def __str__(self) -> str:
        table = columns([self.head, *self.rows], left=range(self.names))
        return f"{self.title}\n{table}" if self.title else table

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
        return replace(self, head=[self.head[place] for place in places], rows=rows, names=names)

    def fitted(self, width: int, dispensable: Sequence[str]) -> "tuple[TextTable, list[str]]":
        """Return the table as wide as a terminal at most, and the columns that it lacks.

        `dispensable` are those that may be left out, the first of them first.

        >>> TextTable(["run", "a", "b"], [["x", "10", "2"]]).fitted(7, ["a", "b"])[1]
        ['a']
        """
        kept = list(range(len(self.head)))
        for name in dispensable:
            if self.with_columns(kept).width <= width:
                break
            kept = [place for place in kept if self.head[place] != name]
        left_out = [name for place, name in enumerate(self.head) if place not in kept]
        return self.with_columns(kept), left_out

    def text(self, width: int) -> str:
        """Return the table in lines of `width` at most, with a row's words in a line above it.

        A table that is narrow enough stays as it is; no number is ever broken.

        >>> print(TextTable(["run", "error", "sent"], [["a-long-name", "1.5", "2 KiB"]]).text(14))
        run
          error   sent
        a-long-name
            1.5  2 KiB
        """
        title = wrapped(self.title, width) + "\n" if self.title else ""
        if self.width <= width or not 0 < self.names < len(self.head):
            return title + str(replace(self, title=""))
        both = [self.head, *self.rows]
        numbers = columns([row[self.names :] for row in both], left=()).split("\n")
        words = columns([row[: self.names] for row in both], left=range(self.names)).split("\n")
        lines = (f"{wrapped(w, width)}\n  {n}" for w, n in zip(words, numbers, strict=True))
        return title + "\n".join(lines)

    def _columns(self) -> list[tuple[str, ...]]:
        return list(zip(self.head, *self.rows, strict=True))


@dataclass(frozen=True)
class TextPage:
    """Texts and tables below each other, a blank line between them."""

    parts: Sequence[str | TextTable]
    dispensable: Sequence[str] = ()  # columns that a narrow terminal may lack, the first first

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.parts))

    def fitted(self, width: int) -> tuple[str, list[str]]:
        """Return the text in lines of `width` at most, and the columns that its tables lack."""
        texts, left_out = [], dict[str, None]()
        for part in self.parts:
            if isinstance(part, str):
                texts.append(wrapped(part, width))
                continue
            narrow, lacking = part.fitted(width, self.dispensable)
            whole = part.text(width)
            if narrow.width > width and max(map(len, whole.splitlines())) <= width:
                narrow, lacking = part, []  # rows take two lines anyway
            texts.append(narrow.text(width))
            left_out |= dict.fromkeys(lacking)
        return "\n\n".join(texts), list(left_out)


def harmless(text: str) -> str:
    """Return a text with its control characters escaped, which else a terminal would obey.

    >>> harmless("a\\x1b[2J")
    'a\\\\x1b[2J'
    """
    return _CONTROLS.sub(lambda one: repr(one[0])[1:-1], text)


def wrapped(text: str, width: int) -> str:
    """Return a text whose lines are at most `width` wide, broken between words and indented.

    >>> print(wrapped("epoch 0: train loss 2.2698, val loss 2.1985", 28))
    epoch 0: train loss 2.2698,
      val loss 2.1985
    """
    lines = (
        textwrap.wrap(
            line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        if len(line) > width
        else [line]
        for line in text.split("\n")
    )
    return "\n".join("\n".join(parts) for parts in lines)


def columns(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """Return rows under each other, the columns in `left` flush left and the others flush right.

    >>> print(columns([("name", "n"), ("a", "10")]))
    name   n
    a     10
    """
    flush_left, rows = set(left), [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place in flush_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
