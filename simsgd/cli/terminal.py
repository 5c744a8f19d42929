"""Prints tables as wide as the terminal, and whole where there is none."""

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..results.text_table import TextTable


def echo_table(table: "TextTable", dispensable: Sequence[str], others: str) -> None:
    """Print a table, at a terminal without columns that it has no room for.

    `dispensable` names them, those that go first before the others; a line says which are left out,
    and by `others` where to find them.
    """
    from ..results.text_table import wrapped

    if sys.stdout is None or not sys.stdout.isatty():
        click.echo(table)
        return
    width = shutil.get_terminal_size().columns
    narrow, left_out = table.fitted(width, dispensable)
    click.echo(narrow)
    if left_out:
        click.echo("\n" + wrapped(f"without {', '.join(left_out)}: {others}", width))
