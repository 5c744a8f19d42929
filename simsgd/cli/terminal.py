"""Prints texts, and tables as wide as the terminal, whole where there is none.

After `| head`, or with stdout closed, a command does all of its work and prints no more.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..results.text_table import TextPage, TextTable


def show(text: object, nl: bool = True) -> None:
    """Print a text, unless nobody reads on."""
    try:
        click.echo(text, nl=nl)
    except (BrokenPipeError, ValueError):  # the reader has gone, or the file is closed
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, where the rest is flushed at the end
    except OSError as wrong:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise click.ClickException(
            f"standard output cannot be written ({wrong.strerror})"
        ) from wrong


def terminal_width() -> int | None:
    """Return the characters of a line of the terminal; None: there is none."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def echo_table(table: "TextTable", dispensable: Sequence[str], others: str) -> None:
    """Print a table, at a terminal without columns that it has no room for.

    `dispensable` names them, those that go first before the others; a line says which are left out,
    and by `others` where to find them.
    """
    from ..results.text_table import TextPage

    echo_page(TextPage([table], dispensable), others)


def echo_page(page: "TextPage", others: str) -> None:
    """Print texts and tables, at a terminal in lines that fit it, as `echo_table` does."""
    from ..results.text_table import wrapped

    width = terminal_width()
    if width is None:
        show(page)
        return
    text, left_out = page.fitted(width)
    show(text)
    if left_out:
        show("\n" + wrapped(f"without {', '.join(left_out)}: {others}", width))
