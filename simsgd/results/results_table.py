"""The table of `simsgd results`: what varies among runs, and their outcome."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..config_values import OF_ONE_RUN, OF_THE_MACHINE, RECORDS, varying
from ..settings import unknown
from ..text_table import TextTable
from .outcome import HEADINGS, in_words, outcome
from .run_folders import RunPaths, by_name, find_runs, natural_key
from .run_tables import RunTables
from .used_settings import Plain, is_plain, value_in_words

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Plain]
_MEASURES = {  # columns behind what varies, and the measures that they show
    "error": "val_error1",
    "best": "best_val_error1",
    "bytes": "payload_bytes",
    "peak": "peak_bytes",
    "network": "network_bytes",
    "ratio": "ratio",
    "seconds": "seconds",
}
_NOT_SETTINGS = {"name", "done", "epochs", *_MEASURES}
_NOT_SHOWN = OF_ONE_RUN | OF_THE_MACHINE | RECORDS | {"epochs"}


def results(
    runs: RunPaths = "runs",
    *,
    sort: str | None = None,
    reverse: bool = False,
) -> "pd.DataFrame":
    """Return a table of runs, a row each: what varies among them, error, bytes, ratio, time.

    Its columns are `name`, the settings that vary, `done` of `epochs` epochs, `error` (the last
    validation error@1, in percent) and `best` (the least), `bytes` sent by each worker, the `peak`
    of a step if a run has one that sends more than twice the mean, those put on the
    `network`, `ratio` (dense bytes over bytes sent) and `seconds`. Unfinished runs are shown as
    they are now.

    runs: run folders, or folders that hold some at any depth.
    sort: a column; None: the order in which runs are found.
    reverse: the last first.

    Raises `SettingError` for a place without runs or an unknown column.
    """
    import pandas as pd

    return pd.DataFrame(result_rows(runs, sort=sort, reverse=reverse))


def result_rows(
    runs: RunPaths = "runs",
    *,
    sort: str | None = None,
    reverse: bool = False,
) -> list[Row]:
    """Return the rows of `results`."""
    found = by_name(find_runs(runs))
    settings = [n for n in varying(run.config for run in found.values()) if n not in _NOT_SHOWN]
    rows = [_row(name, run, settings) for name, run in found.items()]
    if all(math.isnan(float(row["peak"] or math.nan)) for row in rows):
        rows = [{key: value for key, value in row.items() if key != "peak"} for row in rows]
    if sort is not None:
        known = list(rows[0])
        if sort not in known:
            raise unknown("sort", sort, known)
        rows.sort(key=lambda row: _rank(row[sort]))
    return rows[::-1] if reverse else rows


def result_table(rows: Sequence[Row]) -> TextTable:
    """Return the rows in words."""
    settings = [key for key in rows[0] if key not in _NOT_SETTINGS]
    measures = (HEADINGS[measure] for key, measure in _MEASURES.items() if key in rows[0])
    head = ["run", *settings, "epochs", *measures]
    return TextTable(head, [_cells(row, settings) for row in rows], names=1 + len(settings))


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


def _row(name: str, run: RunTables, settings: Sequence[str]) -> Row:
    ends = outcome(run)
    return {
        "name": name,
        **{setting: _value(run, setting) for setting in settings},
        "done": len(run.epochs),
        "epochs": run.config.get("epochs"),
        **{key: ends[measure] for key, measure in _MEASURES.items()},
    }


def _value(run: RunTables, setting: str) -> Plain:
    """Return a setting as it was given, or else as it was used."""
    given, used = run.config.get(setting), run.used.get(setting)
    if is_plain(given) and given is not None:
        return given
    return value_in_words(used) if isinstance(used, list) else used


def _cells(row: Row, settings: Sequence[str]) -> list[str]:
    return [
        str(row["name"]),
        *(value_in_words(row[key]) for key in settings),
        f"{row['done']}/{row['epochs']}",
        *(in_words(m, float(row[key] or 0)) for key, m in _MEASURES.items() if key in row),
    ]


def _rank(value: Plain) -> tuple[int, float, list[tuple[int, float, str]]]:
    """Return a key that puts numbers before text, and nothing last."""
    if value is None or value != value:
        return 2, 0.0, []
    if isinstance(value, str):
        return 1, 0.0, natural_key(value)
    return 0, float(value), []


def _finite(value: Plain) -> Plain:
    missing = isinstance(value, float) and not math.isfinite(value)
    return None if missing else value


def _number(value: object) -> Plain:
    """Return a number of numpy's as one of Python's."""
    return value.item() if hasattr(value, "item") else str(value)
