"""The tables of benches as text.

Letters: W workers, b samples each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from ..results.text_table import TextTable

DISPENSABLE = ("GB/s", "kind", "rounds", "times least", "least", "most")  # see `TextPage`
Row = dict[str, Any]  # what was timed and how long it took, by column


class Measured(TypedDict):
    """What a bench measured, as JSON takes it."""

    machine: dict[str, object]  # see `environment`
    compressor: NotRequired[str]  # of all rows
    rows: list[Row]
    notes: NotRequired[list[str]]  # what was left out, and why


def noted(measured: Measured, notes: list[str]) -> Measured:
    """Return what was measured with the notes, if there are any."""
    return {**measured, "notes": notes} if notes else measured


def heading(machine: Mapping[str, object]) -> str:
    """Return where something was timed.

    >>> heading({"machine": "x86_64", "threads": 1, "torch": "2.6.0"})
    'x86_64, 1 thread, torch 2.6.0'
    """
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    return f"{machine['machine']}, {threads}, torch {machine['torch']}"


def tables_by_case(rows: Sequence[Row], key: str, floor: str, extra: str = "") -> list[TextTable]:
    """Return a table for each model, W and b: the times of each `key`, and how many `floor` it is.

    `extra` stands in each table's title.
    """
    cases: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["model"], row["workers"], row["batch"]), []).append(row)
    tables = []
    for (model, workers, batch), own in cases.items():
        rounds = f"median of {own[0]['rounds']} rounds"
        title = f"{model}, W = {workers}, b = {batch}{extra}, {rounds}"
        tables.append(_table(own, key, floor, title))
    return tables


def _table(rows: Sequence[Row], key: str, floor: str, title: str) -> TextTable:
    cells = []
    for row in rows:
        times = [f"{row[column]:,.2f}" for column in ("ms", "ms_min", "ms_max", "ratio")]
        cells.append([row[key], *times])
    return TextTable([key, "ms", "least", "most", f"times {floor}"], cells, title=title)
