"""The table of `simsgd results`: what varies among runs, and their outcome."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..config import Config
from ..given_object import plain_arguments
from ..settings import SettingError, require, size_in_bytes, unknown
from .config_values import OF_ONE_RUN, OF_THE_MACHINE, RECORDS, varying
from .metric import Metric, metric_of_key
from .outcome import BEST, heading_of, in_words, metrics_of, outcome
from .run_folders import RunPaths, by_name, find_runs, natural_key
from .run_tables import RunTables
from .targets import metric_at_bytes
from .text_table import TextTable
from .used_settings import Plain, is_plain, value_in_words

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Plain]
AT_BYTES = "at_bytes"
_MEASURES = {  # columns behind those of metrics, and the measures that they show
    "bytes": "payload_bytes",
    "peak": "peak_bytes",
    "received": "received_bytes",
    "link": "link_bytes",
    "network": "network_bytes",
    "ratio": "ratio",
    "noise": "noise_scale",
    "seconds": "seconds",
}
_LEFT_OUT_FIRST = (
    "time (s)",
    "in a step",
    "on the network",
    "ratio",
    "noise scale",
    "epochs",
    "best",
)
_IF_ASKED = ("received", "link")  # for by name
_OF_SOME = ("peak", "noise", *_IF_ASKED)  # measures that are shown if a run has them
_NOT_SHOWN = OF_ONE_RUN | OF_THE_MACHINE | RECORDS | {"epochs", "steps"}


@plain_arguments
def results(
    runs: RunPaths = "runs",
    *,
    sort: str | None = None,
    reverse: bool = False,
    at_bytes: str | int | None = None,
) -> "pd.DataFrame":
    """Return a table of runs, a row each: what varies among them, metric, bytes, ratio, time.

    Its columns are `name`, the settings that vary, `done` of `epochs` epochs, the validation metric
    after the last (`error`, which is error@1 in percent, `perplexity` of text, or as the run's
    `metric` is called; one column each where the runs have several) and at its `best`, `bytes` sent
    by each worker, the `peak` of a step if a run has one that sends more than twice the mean, those
    that a worker `received` and those on the busiest `link`, such as a server's, those put on the
    `network`, `ratio` (dense bytes over bytes sent), the gradient `noise` scale of the
    last epoch if a run measured it, and `seconds`; and `step` of `steps`
    where the length of a run was given in steps. Unfinished runs are shown as they are now.

    Args:
        runs: run folders, or folders that hold some at any depth.
        sort: a column; None: the order in which runs are found.
        reverse: the last first.
        at_bytes: such as 10MB, adds a column of this name: the metric of the last evaluation before
            which each worker had sent at most so many bytes.

    Raises `SettingError` for a place without runs or an unknown column.
    """
    import pandas as pd

    return pd.DataFrame(result_rows(runs, sort=sort, reverse=reverse, at_bytes=at_bytes))


def result_rows(
    runs: RunPaths = "runs",
    *,
    sort: str | None = None,
    reverse: bool = False,
    at_bytes: str | int | None = None,
) -> list[Row]:
    """Return the rows of `results`."""
    size = None if at_bytes is None else size_in_bytes("at_bytes", at_bytes)
    found = by_name(find_runs(runs, with_steps=True))
    settings = [n for n in varying(run.config for run in found.values()) if n not in _NOT_SHOWN]
    metrics = [metric.key for metric in metrics_of(found.values())]
    rows = [_row(name, run, settings, metrics, size) for name, run in found.items()]
    if any(_in_steps(run) for run in found.values()):
        lengths = [{"step": r.step, "steps": _steps(r)} for r in found.values()]
        rows = [{**row, **length} for row, length in zip(rows, lengths, strict=True)]
    for measure in _OF_SOME:
        if all(math.isnan(float(row[measure] or math.nan)) for row in rows):
            rows = [{key: value for key, value in row.items() if key != measure} for row in rows]
    if sort is not None:
        known = list(rows[0])
        require(sort != "", "sort", sort, "must not be empty")
        if sort not in known:
            raise _unknown_column("sort", sort, known)
        rows.sort(key=lambda row: _rank(row[sort]))
    return rows[::-1] if reverse else rows


def result_table(
    rows: Sequence[Row], at_bytes: str | None = None, every: bool = False
) -> TextTable:
    """Return the rows in words, with what `at_bytes` they were asked for, and `every` column."""
    if not every:
        rows = [{key: value for key, value in row.items() if key not in _IF_ASKED} for row in rows]
    keys = list(rows[0])
    settings = keys[1 : keys.index("done")]
    metrics = metrics_shown(rows)
    titles = [metric_of_key(key).heading for key in metrics]
    measures = (heading_of(measure) for key, measure in _MEASURES.items() if key in keys)
    spent = [] if at_bytes is None else [f"at {at_bytes}"]
    head = ["run", *settings, "epochs", *titles, BEST, *spent, *measures]
    cells = [_cells(row, settings, metrics) for row in rows]
    return TextTable(head, cells, names=1 + len(settings))


def dispensable(table: TextTable) -> list[str]:
    """Return the columns of a table of results that a narrow terminal may lack, the first first.

    Run, metric and bytes remain.
    """
    return [*_LEFT_OUT_FIRST, *reversed(table.head[1 : table.names])]


def chosen_columns(table: TextTable, columns: Sequence[str]) -> TextTable:
    """Return a table of results with these columns behind the runs' names, in this order.

    A column may be named without its unit. Raises `SettingError` for an unknown name.
    """
    known = {name.partition(" (")[0]: place for place, name in enumerate(table.head)}
    known |= {name: place for place, name in enumerate(table.head)}
    require(any(columns), "columns", ",".join(columns), "must name at least one column")
    for name in columns:
        require(name != "", "columns", ",".join(columns), "has a comma with no name beside it")
        if name not in known:
            raise _unknown_column("columns", name, table.head)
    places = [known[name] for name in columns if name != "run"]
    words = [place for place in places if place < table.names]
    return table.with_columns([0, *words, *(place for place in places if place not in words)])


def _unknown_column(setting: str, name: str, known: Sequence[str]) -> SettingError:
    """Return the error for a column that is not there, with the one that shows the same."""
    titles = {key: heading_of(measure) for key, measure in _MEASURES.items()} | {"name": "run"}
    same = {**titles, **{title: key for key, title in titles.items()}}.get(name)
    if same in known:
        return SettingError(setting, name, "is not known", f"here it is called {same}")
    if name in Config.__dataclass_fields__:
        fix = f"settings have one where runs differ in them; known: {', '.join(known)}"
        return SettingError(setting, name, "is no column of these runs", fix)
    return unknown(setting, name, known)


def metrics_shown(rows: Sequence[Row]) -> list[str]:
    """Return the columns of rows that show metrics."""
    keys = list(rows[0])
    return keys[keys.index("epochs") + 1 : keys.index(BEST)]


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


def _row(
    name: str,
    run: RunTables,
    settings: Sequence[str],
    metrics: Sequence[str],
    size: int | None,
) -> Row:
    column = f"val_{run.metric.column}"
    ends = outcome(run, [column, f"best_{column}", *_MEASURES.values()])
    own = {run.metric.key: ends[column]}
    return {
        "name": name,
        **{setting: _value(run, setting) for setting in settings},
        "done": len(run.epochs),
        "epochs": run.config.get("epochs"),
        **{key: own.get(key, math.nan) for key in metrics},
        BEST: ends[f"best_{column}"],
        **({} if size is None else {AT_BYTES: metric_at_bytes(run, size)}),
        **{key: ends[measure] for key, measure in _MEASURES.items()},
    }


def _value(run: RunTables, setting: str) -> Plain:
    """Return a setting as it was given, or else as it was used."""
    given, used = run.config.get(setting), run.used.get(setting)
    if is_plain(given) and given is not None:
        return given
    if not isinstance(used, list) or len(used) <= 2:
        return value_in_words(used) if isinstance(used, list) else used
    first, last = (value_in_words(phase["value"]) for phase in (used[0], used[-1]))
    return f"{first} to {last}"


def _cells(row: Row, settings: Sequence[str], metrics: Sequence[str]) -> list[str]:
    known = [key for key in metrics if not math.isnan(float(row[key] or 0))]
    own = metric_of_key((known or [*metrics])[0])
    return [
        str(row["name"]),
        *(value_in_words(row[key]) for key in settings),
        _length(row),
        *(_shown(metric_of_key(key), row[key]) for key in metrics),
        *(_shown(own, row[key]) for key in (BEST, AT_BYTES) if key in row),
        *(in_words(m, float(row[key] or 0)) for key, m in _MEASURES.items() if key in row),
    ]


def _in_steps(run: RunTables) -> bool:
    config = run.config
    own = config.get("steps") is not None or config.get("epochs") is None
    return own or run.has_sent_enough


def _steps(run: RunTables) -> Plain:
    """Return the steps after which a run ends, or ended by its bytes; None where epochs say it."""
    steps: Plain = run.step if run.has_sent_enough else run.config.get("steps")
    return steps


def _length(row: Row) -> str:
    if row.get("steps") is not None:
        return f"{row['step']}/{row['steps']} steps"
    if row["epochs"] is None:
        return f"{row['step']} steps"
    return f"{row['done']}/{row['epochs']}"


def _shown(metric: Metric, value: Plain) -> str:
    number = float(value or 0)
    return "-" if math.isnan(number) else metric.number(number)


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
