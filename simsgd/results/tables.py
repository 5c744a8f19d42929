"""The tables of a run: their columns, and how rows are written and read exactly.

Integers are written as integers and floats so that reading gives the same number back.
"""

import io
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings import SettingError, require
from .atomic_files import append, replace

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 1 << 33  # bytes of a table
_BROKEN = "cannot be read as the table it was"
EPOCH_COLUMNS = {
    "epoch": "int64",  # counted from 0
    "step": "int64",  # steps done when the epoch ended
    "lr": "float64",
    "kept": "float64",  # fraction of entries sent, in (0, 1]
    "train_loss": "float64",
    "train_error1": "float64",  # errors in percent
    "train_error5": "float64",
    "val_loss": "float64",
    "val_error1": "float64",
    "val_error5": "float64",
    "payload_bytes": "int64",  # running totals for one worker
    "dense_bytes": "int64",
    "network_bytes": "int64",
    "ratio": "float64",  # dense_bytes / payload_bytes
    "consensus_distance": "float64",  # sqrt(mean_i ||x_i - mean||^2); 0 where a model is shared
    "seconds": "float64",  # of this epoch
}
STEP_COLUMNS = {
    "step": "int64",  # steps done, counted from 1
    "epoch": "int64",
    "loss": "float64",
    "lr": "float64",
    "kept": "float64",
    "payload_bytes": "int64",  # of this step: mean over workers, least, most
    "payload_bytes_min": "int64",
    "payload_bytes_max": "int64",
    "dense_bytes": "int64",
    "network_bytes": "int64",
    "sent_elements": "int64",  # numbers sent, mean over workers
    "relative_error": "float64",  # norm of what was said and not sent over that of what was said
    "memory_norm": "float64",  # norm of what stays behind
    "compute_seconds": "float64",  # of one worker, as `spent` tells
    "compression_seconds": "float64",
    "seconds": "float64",
}
LAYER_COLUMNS = {
    "step": "int64",
    "segment": "str",
    "elements": "int64",
    "payload_bytes": "int64",  # mean over workers, as all here
    "sent_elements": "int64",
    "relative_error": "float64",
    "memory_norm": "float64",
}
TRANSFER_COLUMNS = {
    "step": "int64",
    "collective": "str",  # all-reduce, all-gather, gather, broadcast or neighbors
    "segments": "int64",  # of the step, whatever carries them
    "messages": "int64",  # collectives of this kind in the step
    "rounds": "int64",  # of one segment, the most: what is left if those of all segments are fused
    "degree": "int64",  # neighbors of the busiest worker; 0 where the collective says who hears
    "payload_bytes": "int64",  # of all messages together: mean over workers, and most
    "payload_bytes_max": "int64",
    "slowest_bytes": "int64",  # the largest buffer of each message, added up
}

WORKER_COLUMNS = {
    "epoch": "int64",
    "worker": "int64",
    "val_loss": "float64",
    "val_error1": "float64",  # errors in percent
    "val_error5": "float64",
}
NONFINITE_COLUMNS = {
    "step": "int64",
    "worker": "int64",  # whose loss, gradient or message was not finite
    "did": "str",  # skipped: nobody took the step; zeroed: its gradient counted as 0
}
PARTITION_COLUMNS = {"worker": "int64", "class": "int64", "samples": "int64"}


def ratio(dense: float, payload: float) -> float:
    """Return how many times more bytes the dense gradient takes."""
    return float(dense / payload) if payload else math.inf


def table_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> "pd.DataFrame":
    """Return rows as a table with the columns' dtypes."""
    import pandas as pd

    exact: dict[str, Callable[[Any], Any]] = {"int64": operator.index, "float64": float, "str": str}
    values = {name: [exact[kind](row[name]) for row in rows] for name, kind in columns.items()}
    return pd.DataFrame(values).astype(dict(columns))


def _csv(table: "pd.DataFrame", header: bool = True) -> str:
    return table.to_csv(index=False, header=header, na_rep="nan", lineterminator="\n")


def read_table(path: Path, columns: Mapping[str, str]) -> "pd.DataFrame":
    """Return the whole rows of a file; `SettingError` if it is not the table it was."""
    import pandas as pd

    text = _text(path)
    whole = text[: text.rfind("\n") + 1]  # a kill, or a look meanwhile, may meet half a row
    if not whole:
        return table_of([], columns)
    floats = [name for name, kind in columns.items() if kind == "float64"]
    try:
        table = pd.read_csv(io.StringIO(whole), converters=dict.fromkeys(floats, float))
        kinds = {name: kind for name, kind in columns.items() if name in table}
        require(next(iter(columns)) in kinds, "run", str(path), _BROKEN)
        return table.astype(kinds)
    except (ValueError, TypeError, OverflowError) as wrong:
        raise SettingError("run", str(path), _BROKEN) from wrong


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    require(path.stat().st_size <= _LARGEST, "run", str(path), "is too large to be a table of ours")
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as wrong:
        raise SettingError("run", str(path), _BROKEN) from wrong


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Append rows, with the columns' names first if the file is new."""
    first = not path.exists() or path.stat().st_size == 0
    append(path, _csv(table_of(rows, columns), header=first))


def replace_table(path: Path, table: "pd.DataFrame") -> None:
    """Replace a file by a table."""
    replace(path, lambda file: file.write(_csv(table).encode()))
