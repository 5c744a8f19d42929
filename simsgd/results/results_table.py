"""What came of many runs, a row each: what varies among them, and how they ended."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..config_values import OF_ONE_RUN, OF_THE_MACHINE, in_short, varying
from ..settings import unknown
from ..text_table import columns
from ..units import in_units
from .run_folders import by_name, find_runs, natural_key
from .sweep import outcome

Row = dict[str, Any]
_ENDS = {  # columns of every table, by their names in the terminal, behind what varies
    "done": "epochs",
    "error": "error@1 (%)",
    "best": "best",
    "bytes": "sent",
    "network": "on the network",
    "ratio": "ratio",
    "seconds": "time (s)",
}
_SOURCES = {"error": "val_error1", "best": "best_val_error1", "bytes": "payload_bytes",
            "network": "network_bytes", "ratio": "ratio", "seconds": "seconds"}  # fmt: skip
_APART = OF_ONE_RUN | OF_THE_MACHINE | {"environment", "used", "epochs", "format"}


def results(places: Iterable[Path | str] = ("runs",), sort: str | None = None) -> list[Row]:
    """Return a row for each run in the places; unfinished runs as they are now.

    `done` of `epochs` epochs have ended, `error` is the last validation error@1 and `best` the
    least, in percent; `bytes` were sent by each worker, `network` were put on the network. `sort`
    is one of these columns, `name`, or a setting that varies. Raises `SettingError` for another.
    """
    runs = by_name(find_runs(places))
    configs = {name: run.config for name, run in runs.items()}
    settings = [name for name in varying(configs.values()) if name not in _APART]
    rows = []
    for name, run in runs.items():
        ends = outcome(run)
        own = {key: configs[name].get(key) for key in settings}
        done = {"done": len(run.epochs), "epochs": configs[name].get("epochs")}
        rows.append({"name": name, **own, **done, **{k: ends[v] for k, v in _SOURCES.items()}})
    if sort is None:
        return rows
    known = ["name", *settings, *_ENDS, "epochs"]
    if sort not in known:
        raise unknown("sort", sort, known)
    return sorted(rows, key=lambda row: _rank(row[sort]))


def as_table(rows: Sequence[Row]) -> str:
    """Return the rows for a terminal."""
    head, *body = cells(rows)
    left = range(len(head) - len(_ENDS))
    return columns([head, *body], left=left)


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the rows in words, with the columns' names first."""
    settings = [key for key in rows[0] if key not in {"name", "epochs", *_ENDS}]
    head = ["run", *settings, *_ENDS.values()]
    body = [
        [
            row["name"],
            *(in_short(row[key]) for key in settings),
            *(_cell(row, key) for key in _ENDS),
        ]
        for row in rows
    ]
    return [head, *body]


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV; numbers in full, nan where there is none."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """Return the rows as JSON; null where there is no number."""
    plain = [{key: _finite(value) for key, value in row.items()} for row in rows]
    return json.dumps(plain, indent=2, default=_number)


def _cell(row: Row, key: str) -> str:
    value = row[key]
    if key == "done":
        return f"{value}/{row['epochs']}"
    if math.isnan(value):
        return "-"
    if key in ("bytes", "network"):
        return in_units(value)
    return f"{value:.1f}" if key in ("ratio", "seconds") else f"{value:.2f}"


def _rank(value: Any) -> tuple[int, float, list[tuple[int, float, str]]]:
    """Return a key that puts numbers before text, and nothing last."""
    if value is None or value != value:
        return 2, 0.0, []
    if isinstance(value, str):
        return 1, 0.0, natural_key(value)
    return 0, float(value), []


def _finite(value: Any) -> Any:
    missing = isinstance(value, float) and not math.isfinite(value)
    return None if missing else value


def _number(value: Any) -> Any:
    """Return a number of numpy's as one of Python's."""
    return value.item() if hasattr(value, "item") else str(value)
