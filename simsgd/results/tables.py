"""The tables of a run: the types of their rows, and how these are written and read exactly.

Integers are written as integers and floats so that reading gives the same number back.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, SupportsFloat, TypedDict, get_type_hints

from ..settings import SettingError, require
from .atomic_files import append, replace
from .whole_rows import open_whole_rows

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 1 << 33  # bytes of a table
_BROKEN = "is damaged: its rows cannot be read"
_DISORDERED = "is damaged: its rows are not in the order in which a run writes them, each once"
_ONE_EACH = {  # columns that no two rows share; the first never falls
    "epochs.csv": ("epoch",), "evaluations.csv": ("step",), "steps.csv": ("step",),
    "layers.csv": ("step", "segment"), "transfers.csv": ("step", "collective"),
    "segments.csv": ("step", "segment", "collective", "operation"),
    "workers.csv": ("epoch", "step", "worker"), "nonfinite.csv": ("step", "worker"),
    "partition.csv": ("worker", "class"),
}  # fmt: skip
_NUMBERS = ("", "int64", "float64")  # dtypes of columns in which nan is a number; "": unknown


class EpochRow(TypedDict):
    """A row of epochs.csv."""

    epoch: int  # counted from 0
    step: int  # steps done when the epoch ended
    lr: float
    kept: float  # fraction of entries sent, in (0, 1]
    train_loss: float
    train_error1: float  # errors in percent
    train_error5: float
    val_loss: float
    val_error1: float
    val_error5: float
    payload_bytes: int  # running totals for one worker
    dense_bytes: int
    network_bytes: int
    ratio: float  # dense_bytes / payload_bytes
    consensus_distance: float  # sqrt(mean_i ||x_i - mean||^2); 0 where a model is shared
    seconds: float  # of this epoch


class EvaluationRow(EpochRow):
    """A row of evaluations.csv; what is of an epoch in epochs.csv is of its part so far."""

    epochs: float  # done, such as 1.25 after a quarter of the second; nan if nobody knows


class StepRow(TypedDict):
    """A row of steps.csv."""

    step: int  # steps done, counted from 1
    epoch: int
    loss: float
    lr: float
    kept: float
    payload_bytes: int  # of this step: mean over workers, least, most
    payload_bytes_min: int
    payload_bytes_max: int
    dense_bytes: int
    network_bytes: int
    received_bytes: int  # that reach a worker: mean over workers, most; older runs lack it
    received_bytes_max: int
    busiest_link_bytes: int  # one way on the link that carries most, as a server's
    sent_elements: int  # numbers sent, mean over workers
    relative_error: float  # norm of what was not sent over that of what was compensated
    memory_norm: float  # norm of what stays behind
    compute_seconds: float  # of one worker
    compression_seconds: float
    seconds: float
    samples: int  # or tokens of a text, of all workers that train; earlier versions lack it


class NoiseStepRow(StepRow):
    """A row of steps.csv with the setting `noise_scale`."""

    gradient_square: float  # unbiased estimate of |G|^2; nan with one worker
    gradient_variance: float  # of tr(Sigma), one sample's
    noise_scale: float  # tr(Sigma) / |G|^2 in samples; nan where |G|^2 came out at 0 or less


class NodeStepRow(StepRow):
    """A row of steps.csv with the setting `cluster`: bytes within nodes beside those between."""

    within_bytes: int  # sent, and received, by a device within its node: mean over all devices
    within_link_bytes: int  # one way on the link that carries most


class LayerRow(TypedDict):
    """A row of layers.csv."""

    step: int
    segment: str
    elements: int
    payload_bytes: int  # mean over workers, as all here
    sent_elements: int
    relative_error: float
    memory_norm: float


class TransferRow(TypedDict):
    """A row of transfers.csv."""

    step: int
    collective: str  # as in `network.COLLECTIVES`
    segments: int  # of the step, whatever carries them
    messages: int  # collectives of this kind in the step
    rounds: int  # messages that remain if those of all segments are fused
    degree: int  # neighbors of the busiest worker; 0 for other collectives
    payload_bytes: int  # of all messages together: mean over workers, and most
    payload_bytes_max: int
    slowest_bytes: int  # the largest buffer of each message, added up
    sending: int  # segments that sent anything in the step; older runs lack it


class SegmentRow(TypedDict):
    """A row of segments.csv."""

    step: int  # the first in which the segment went this way
    segment: str
    elements: int  # of the model's gradient; 0: what optimizers keep, or buffers
    compressed: int  # 1; 0: it goes whole
    ready: float  # part of the backward pass after which its gradient is there, in (0, 1]
    sendable: float  # after which it can be sent: 1 where the whole gradient is waited for
    collective: str  # as in transfers.csv
    operation: str  # messages of several segments go together if it is the same; older runs lack it
    messages: int  # of both in the step, one after the other
    payload_bytes: int  # of these together, mean over workers


class WorkerRow(TypedDict):
    """A row of workers.csv."""

    epoch: int
    worker: int
    step: int  # steps before the evaluation; older runs lack it
    val_loss: float
    val_error1: float  # errors in percent
    val_error5: float


class NonfiniteRow(TypedDict):
    """A row of nonfinite.csv."""

    step: int
    worker: int  # whose loss, gradient or message was not finite
    did: str  # skipped: no worker took the step; zeroed: its gradient counted as 0


PartitionRow = TypedDict("PartitionRow", {"worker": int, "class": int, "samples": int})


def columns_of(row: type) -> dict[str, str]:
    """Return the columns of a table whose rows are of this type, with their dtypes.

    >>> columns_of(PartitionRow)
    {'worker': 'int64', 'class': 'int64', 'samples': 'int64'}
    """
    return {name: _DTYPES[kind] for name, kind in get_type_hints(row).items()}


_DTYPES = {int: "int64", float: "float64", str: "str"}
EPOCH_COLUMNS = columns_of(EpochRow)
EVALUATION_COLUMNS = columns_of(EvaluationRow)
STEP_COLUMNS = columns_of(StepRow)
NOISE_STEP_COLUMNS = columns_of(NoiseStepRow)
NODE_STEP_COLUMNS = columns_of(NodeStepRow)
ALL_STEP_COLUMNS = NOISE_STEP_COLUMNS | NODE_STEP_COLUMNS
LAYER_COLUMNS = columns_of(LayerRow)
TRANSFER_COLUMNS = columns_of(TransferRow)
SEGMENT_COLUMNS = columns_of(SegmentRow)
WORKER_COLUMNS = columns_of(WorkerRow)
NONFINITE_COLUMNS = columns_of(NonfiniteRow)
PARTITION_COLUMNS = columns_of(PartitionRow)


def step_columns_of(config: Mapping[str, object]) -> dict[str, str]:
    """Return the columns of the steps.csv of a run with these settings."""
    columns = dict(STEP_COLUMNS)
    columns |= NOISE_STEP_COLUMNS if config.get("noise_scale") else {}
    columns |= NODE_STEP_COLUMNS if config.get("cluster") else {}
    return columns


def ratio(dense: float, payload: float) -> float:
    """Return how many times more bytes the dense gradient takes."""
    return float(dense / payload) if payload else math.inf


def numbers_of(row: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a row, all as floats.

    >>> numbers_of({"step": 3, "loss": 0.5, "segment": "weight"})
    {'step': 3.0, 'loss': 0.5}
    """
    return {name: float(v) for name, v in row.items() if isinstance(v, SupportsFloat)}


def measured_of(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the results of an epoch that a regime may ask for."""
    return {key: value for key, value in numbers.items() if key.startswith(("train_", "val_"))}


def table_of(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> "pd.DataFrame":
    """Return rows as a table with the columns' dtypes."""
    import pandas as pd

    exact: dict[str, Callable[[Any], Any]] = {"int64": operator.index, "float64": float}
    values = {n: [exact.get(kind, str)(row[n]) for row in rows] for n, kind in columns.items()}
    return pd.DataFrame(values).astype(dict(columns))


def _csv(table: "pd.DataFrame", header: bool = True) -> str:
    return table.to_csv(index=False, header=header, na_rep="nan", lineterminator="\n")


def read_table(path: Path, columns: Mapping[str, str], *, others: bool = True) -> "pd.DataFrame":
    """Return the whole rows of a file, and without `others` no columns but these.

    A column of kind "category" holds few different texts. Raises `SettingError` if the file is
    damaged.
    """
    rows = _rows(path)
    if rows is None:
        return _empty(tuple(columns.items())).copy()
    with rows:
        try:
            names = names_in(path)
            twice = next((name for name in names if names.count(name) > 1), None)
            rule = f"is damaged: it has the column {twice} twice"
            require(twice is None, "run", str(path), rule)
            table = _parsed(rows, names, columns, others)
            shifted = type(table.index).__name__ != "RangeIndex"
            whole = next(iter(columns)) in table and not shifted  # by more cells than columns
            require(whole, "run", str(path), _BROKEN)
            found = {name: str(kind) for name, kind in table.dtypes.items()}
            other = {n: kind for n, kind in columns.items() if found.get(n, kind) != kind}
            table = table.astype(other) if other else table
        except SettingError:
            raise
        except (ValueError, TypeError, OverflowError) as wrong:
            raise SettingError("run", str(path), _BROKEN) from wrong
    counts = [name for name, kind in columns.items() if kind == "int64" and name in table]
    below = "is damaged: it counts fewer than 0"
    require(bool((table[counts] >= 0).to_numpy().all()), "run", str(path), below)
    require(_in_order(path.name, table, columns), "run", str(path), _DISORDERED)
    return table


def _in_order(name: str, table: "pd.DataFrame", columns: Mapping[str, str]) -> bool:
    """Return whether the number that orders a table's rows never falls, and none is there twice."""
    key = _ONE_EACH.get(name, ())
    first = next(iter(key or columns))
    if first not in table or columns.get(first) != "int64":
        return True
    known = bool(key) and table.columns.isin(key).sum() == len(key)
    twice = known and bool(table.duplicated([*key]).any())
    return bool(table[first].is_monotonic_increasing) and not twice


@lru_cache(maxsize=64)  # a table that most runs lack is asked for of each
def _empty(columns: tuple[tuple[str, str], ...]) -> "pd.DataFrame":
    return table_of([], dict(columns))


def _parsed(
    rows: IO[bytes], names: Sequence[str], columns: Mapping[str, str], others: bool
) -> "pd.DataFrame":
    """Return rows as a table with all columns that the file names, or those of `columns`."""
    import pandas as pd

    known = {name: columns.get(name, "") for name in names if others or name in columns}
    return pd.read_csv(
        rows,
        usecols=None if others else [*known],
        dtype={name: kind for name, kind in known.items() if kind not in ("", "int64")},
        keep_default_na=False,
        na_values={name: ["nan", "NaN"] for name, kind in known.items() if kind in _NUMBERS},
        float_precision=None if _always_exact(pd.__version__) else "round_trip",
    )


def _always_exact(version: str) -> bool:
    """Return whether this pandas reads the very float64 that was written, and knows no other way.

    >>> _always_exact("2.3.3"), _always_exact("3.1.1")
    (False, True)
    """
    major, minor, *_ = version.split(".")
    return (int(major), int(minor)) >= (3, 1)


def _rows(path: Path) -> IO[bytes] | None:
    """Open the whole rows of a file, None if there are none."""
    if not path.exists():
        return None
    require(path.is_file(), "run", str(path), _BROKEN)
    too_large = "is too large to be a table of a run"
    require(path.stat().st_size <= _LARGEST, "run", str(path), too_large)
    try:
        return open_whole_rows(path)
    except OSError as wrong:
        raise SettingError("run", str(path), _BROKEN) from wrong


def append_rows(
    path: Path, rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]
) -> None:
    """Append rows, with the columns' names first if the file is new, else those that it has."""
    names = names_in(path)
    own = {n: kind for n, kind in columns.items() if n in names} if names else columns
    append(path, _csv(table_of(rows, own), header=not names))


def names_in(path: Path) -> list[str]:
    """Return the names of a table's columns, none if it is new."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        first = file.readline().rstrip("\n")
    return first.split(",") if first else []


def replace_table(path: Path, table: "pd.DataFrame") -> None:
    """Replace a file by a table."""
    replace(path, lambda file: file.write(_csv(table).encode()))
