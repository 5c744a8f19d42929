"""Writes the files of a run's folder; nothing on a rank whose folder another rank writes.

A file is either appended to in whole rows or replaced as a whole, so that a kill leaves it
readable.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..results.atomic_files import NotWritten, append, fill, link, part_gone, part_of, replace, sync
from ..results.tables import append_rows, read_table, replace_table, table_of

if TYPE_CHECKING:
    import pandas as pd

Rows = Sequence[Mapping[str, object]]
Columns = Mapping[str, str]  # dtypes by name


@dataclass(frozen=True)
class FolderFiles:
    """The files of one folder, by name. Every write of a run goes through one of these methods."""

    folder: Path
    writes: bool = True

    def append_text(self, name: str, text: str) -> None:
        """Append a text."""
        if self.writes:
            append(self.folder / name, text)

    def append_rows(self, name: str, rows: Rows, columns: Columns) -> None:
        """Append rows to a table."""
        if self.writes:
            append_rows(self.folder / name, rows, columns)

    def replace_text(self, name: str, text: str) -> None:
        """Replace a file by a text."""
        if self.writes:
            replace(self.folder / name, lambda file: file.write(text.encode()))

    def replace_rows(self, name: str, rows: Rows, columns: Columns) -> None:
        """Replace a table by rows."""
        if self.writes:
            replace_table(self.folder / name, table_of(rows, columns))

    def keep_rows(
        self, name: str, columns: Columns, wanted: "Callable[[pd.DataFrame], pd.Series[bool]]"
    ) -> "pd.DataFrame | None":
        """Keep the wanted rows of a table, if it exists, and no half-written one; return them."""
        path = self.folder / name
        if not (self.writes and path.exists()):
            return None
        table = read_table(path, columns)
        there = [n for n, kind in columns.items() if n in table or kind == "float64"]
        kept = table[wanted(table)].reindex(columns=there)  # old runs lack some
        replace_table(path, kept)
        return kept

    def replace_checkpoint(self, state: Mapping[str, object]) -> None:
        """Replace last.pt, whose old form is then previous.pt.

        Raises `NotWritten`, with both intact.
        """
        if not self.writes:
            return
        import torch

        last = self.folder / "last.pt"
        part = part_of(last)
        with part_gone(part):
            fill(part, lambda file: torch.save(dict(state), file))
            if last.exists():
                link(last, self.folder / "previous.pt")
            _move(part, last)

    def replace_models(self, model: Mapping[str, object], names: Sequence[str]) -> None:
        """Replace files of a model that was evaluated, written once. Raises `NotWritten`."""
        if not (self.writes and names):
            return
        import torch

        first, *others = (self.folder / name for name in names)
        for path in (first, *others):
            path.parent.mkdir(exist_ok=True)
        replace(first, lambda file: torch.save(dict(model), file))
        for other in others:
            link(first, other)

    def remove_files(self, paths: Iterable[Path]) -> None:
        """Remove files, where they exist."""
        for path in paths if self.writes else ():
            path.unlink(missing_ok=True)

    def restore_checkpoint(self) -> None:
        """Make previous.pt the last.pt; what a damaged last.pt held stays in damaged.pt."""
        if not self.writes:
            return
        last = self.folder / "last.pt"
        if last.exists():
            _move(last, self.folder / "damaged.pt")
        link(self.folder / "previous.pt", last)
        sync(self.folder)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        if self.writes:
            shutil.rmtree(self.folder, ignore_errors=True)  # it may be gone, or read-only by now


def _move(part: Path, path: Path) -> None:
    try:
        os.replace(part, path)
        sync(path.parent)
    except OSError as wrong:
        raise NotWritten(path, wrong) from wrong
