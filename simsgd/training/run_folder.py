"""The folder of a run, and what the run writes into it.

RUNS_DIR/NAME/
  config.json   every setting, and under "used" as it was really used
  log.txt       what happened, with the time
  epochs.csv    one row an epoch; bytes are running totals for one worker
  evaluations.csv  one row an evaluation between the ends of epochs, if there are any
  steps.csv     one row a step; bytes are of that step
  workers.csv   one row a worker and evaluation, if each worker's model is evaluated
  partition.csv how many samples of each class each worker has, if these are fixed
  segments.csv  one row a segment and collective, the first time: for overlap with backward
  transfers.csv one row a step and collective: what `simsgd network` prices
  nonfinite.csv one row a step and worker whose numbers were not finite, if there are any
  last.pt       the checkpoint from which a run resumes
  previous.pt   the checkpoint before it, should last.pt be damaged
  best.pt       the model of the best evaluation so far, unless `keep` is last
  models/       the model of each evaluation, if `keep` is all
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..results.atomic_files import NotWritten, sync
from ..results.folder_of_runs import require_run
from ..results.metric import Metric, metric_of
from ..results.run_tables import RunTables
from ..results.tables import (
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    LAYER_COLUMNS,
    NONFINITE_COLUMNS,
    PARTITION_COLUMNS,
    SEGMENT_COLUMNS,
    STEP_COLUMNS,
    TRANSFER_COLUMNS,
    WORKER_COLUMNS,
    EpochRow,
    EvaluationRow,
    LayerRow,
    NonfiniteRow,
    PartitionRow,
    SegmentRow,
    StepRow,
    TransferRow,
    step_columns_of,
)
from ..settings import require
from .checkpoint import FORMAT
from .folder_files import FolderFiles
from .folder_lock import FolderLock
from .run_names import make_folder, missing_above

if TYPE_CHECKING:
    import pandas as pd

_BY_STEP = {  # tables beside steps.csv
    "layers.csv": LAYER_COLUMNS,
    "transfers.csv": TRANSFER_COLUMNS,
    "segments.csv": SEGMENT_COLUMNS,
    "nonfinite.csv": NONFINITE_COLUMNS,
}


MODELS = "models"
_OF_MODELS = ("config", "model", "epoch", "batch", "best")  # of a checkpoint: no optimizer, no W
NO_COLUMNS: Mapping[str, float] = MappingProxyType({})


class RunFolder:
    """Writes a run folder. Made by `create` for a new run, by `resume` for one that continues.

    With `writes` False another rank writes the folder, and this one nothing. Until `close` no other
    process can open it to write.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fresh: bool = False,
        writes: bool = True,
        lock: FolderLock | None = None,
        metric: Metric | None = None,
        step_columns: Mapping[str, str] = STEP_COLUMNS,
    ) -> None:
        own = () if metric is None else metric.own_columns  # of a function of the user's own
        self.folder = folder
        self._lock = lock
        self._epoch_columns = EPOCH_COLUMNS | dict.fromkeys(own, "float64")
        self._step_columns = step_columns
        self._evaluation_columns = EVALUATION_COLUMNS | dict.fromkeys(own, "float64")
        self._worker_columns = WORKER_COLUMNS | dict.fromkeys(own[1:], "float64")
        self.fresh = fresh  # made here, and nothing learned yet
        self._unwritten = fresh  # made here, with no row and no checkpoint in it
        self._made: list[Path] = []  # folders above it that were made for it
        self._files = FolderFiles(folder, writes)
        self._steps: list[StepRow] = []

    @classmethod
    def create(
        cls, runs_dir: Path, name: str, config: Mapping[str, object], overwrite: bool = False
    ) -> "RunFolder":
        """Make RUNS_DIR/NAME and write its config.json.

        Raises `SettingError` for a name that exists (unless `overwrite`), is not a plain name, or
        is that of a run which another process is writing.
        """
        made = missing_above(Path(runs_dir) / name)
        lock = make_folder(runs_dir, name, overwrite)
        columns = step_columns_of(config)
        metric = metric_of(config)
        run = cls(lock.folder, fresh=True, lock=lock, metric=metric, step_columns=columns)
        run._made = made
        try:
            run.write_config(config)
            run._files.append_rows("epochs.csv", [], run._epoch_columns)
            run._files.append_rows("steps.csv", [], run._step_columns)
            run._files.append_text("log.txt", "")
            sync(run.folder)
            sync(run.folder.parent)
        except NotWritten:
            run.close()
            raise
        return run

    @classmethod
    def resume(cls, folder: Path) -> "RunFolder":
        """Open the folder of a run that continues; call `truncate` before the first new row.

        Raises `SettingError` if it is none, or if another process is writing it.
        """
        require_run(Path(folder), "resume")
        for path in sorted(Path(folder).iterdir()):
            ours = path.suffix in (".csv", ".json", ".pt", ".txt") or not path.is_dir()
            odd = ours and path.exists() and not path.is_file()
            require(not odd, "resume", str(path), "is no file", "remove it")
        lock = FolderLock.of(Path(folder), "resume", str(folder))
        tables = RunTables(folder)
        columns = step_columns_of(tables.config)
        return cls(Path(folder), lock=lock, metric=tables.metric, step_columns=columns)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.resolve().name

    def discard(self) -> None:
        """Remove the folder if it was made here and no step, epoch or checkpoint came into it."""
        if self.fresh:
            self._files.remove()
            with contextlib.suppress(OSError):  # another run may be there by now
                for place in self._made:
                    place.rmdir()

    def forget_unwritten(self) -> None:
        """Take a run for a fresh one again if it has done steps, but none of them is written."""
        if self._unwritten:
            self.fresh, self._steps = True, []

    def close(self) -> None:
        """Let other processes write the folder; a fresh one is discarded."""
        self.discard()
        if self._lock is not None:
            self._lock.release()

    def write_config(self, config: Mapping[str, object]) -> None:
        """Replace config.json."""
        text = json.dumps(dict(config), indent=2, default=os.fspath) + "\n"
        self._files.replace_text("config.json", text)

    def log(self, text: str) -> None:
        """Append a text to log.txt, each line with the time."""
        now = datetime.now().isoformat(sep=" ", timespec="seconds")
        lines = "".join(f"{now}  {line}\n" for line in text.split("\n"))
        self._files.append_text("log.txt", lines)

    def add_step(self, row: StepRow) -> None:
        """Keep a row of steps.csv until `flush_steps` (or `save`) writes the block."""
        assert row.keys() == self._step_columns.keys(), row.keys() ^ self._step_columns.keys()
        self.fresh = False
        self._steps.append(row)

    def add_layers(self, rows: Sequence[LayerRow]) -> None:
        """Append rows to layers.csv."""
        self._files.append_rows("layers.csv", rows, LAYER_COLUMNS)

    def add_workers(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows to workers.csv."""
        self._files.append_rows("workers.csv", rows, self._worker_columns)

    def add_partition(self, rows: Sequence[PartitionRow]) -> None:
        """Write partition.csv."""
        self._files.replace_rows("partition.csv", rows, PARTITION_COLUMNS)

    def add_transfers(self, rows: Sequence[TransferRow]) -> None:
        """Append rows to transfers.csv."""
        self._files.append_rows("transfers.csv", rows, TRANSFER_COLUMNS)

    def add_segments(self, rows: Sequence[SegmentRow]) -> None:
        """Append rows to segments.csv, if there are any."""
        if rows:
            self._files.append_rows("segments.csv", rows, SEGMENT_COLUMNS)

    def add_nonfinite(self, rows: Sequence[NonfiniteRow]) -> None:
        """Append rows to nonfinite.csv, if there are any."""
        if rows:
            self._files.append_rows("nonfinite.csv", rows, NONFINITE_COLUMNS)

    def flush_steps(self) -> None:
        """Write the rows that `add_step` kept."""
        if self._steps:
            self._unwritten = False
            self._files.append_rows("steps.csv", self._steps, self._step_columns)
            self._steps = []

    def add_epoch(self, row: EpochRow, own: Mapping[str, float] = NO_COLUMNS) -> None:
        """Write a row of epochs.csv at once, with the columns of a metric of the user's own."""
        whole = {**row, **own}
        assert whole.keys() == self._epoch_columns.keys(), whole.keys() ^ self._epoch_columns.keys()
        self.fresh = self._unwritten = False
        self._files.append_rows("epochs.csv", [whole], self._epoch_columns)

    def add_evaluation(self, row: EvaluationRow, own: Mapping[str, float] = NO_COLUMNS) -> None:
        """Write a row of evaluations.csv at once, with the columns of a metric of one's own."""
        self.fresh = self._unwritten = False
        self._files.append_rows("evaluations.csv", [{**row, **own}], self._evaluation_columns)

    def truncate(self, step: int, epoch: int, evaluated: int | None = None) -> str:
        """Forget what came after a checkpoint: `step` steps are done, `epoch` is the next to end.

        The last evaluation was after `evaluated` steps, None: after `step` at most.

        Rows of later steps, of `epoch` and of later epochs go, and so does a half-written row.
        What is returned, and logged, tells of rows before that are not there any more, if any.
        """
        tables = {"steps.csv": self._step_columns, **_BY_STEP}
        kept = {
            name: self._files.keep_rows(name, columns, lambda table: table["step"] <= step)
            for name, columns in tables.items()
        }
        last = step if evaluated is None else min(step, evaluated)
        self._files.keep_rows(
            "evaluations.csv", self._evaluation_columns, lambda table: table["step"] <= last
        )
        self._files.keep_rows(
            "workers.csv",
            self._worker_columns,
            lambda table: table["step"] <= last if "step" in table else table["epoch"] < epoch,
        )
        kept["epochs.csv"] = self._files.keep_rows(
            "epochs.csv",
            self._epoch_columns,
            lambda table: (table["step"] <= step) & (table["epoch"] < epoch),
        )
        models = (self.folder / MODELS).glob("step-*.pt")
        self._files.remove_files(path for path in models if not _is_at_most(path, step))
        ends = {"steps.csv": ("step", step, 1), "epochs.csv": ("epoch", epoch - 1, 0)}
        short = [
            f"{name} ends before {column} {end}"
            for name, (column, end, first) in ends.items()
            if self._files.writes and end >= first and _last_number(kept[name], column) < end
        ]
        if not short:
            return ""
        lost = f"{' and '.join(short)}, whose rows are lost; what sums them up leaves them out"
        self.log(lost)
        return lost

    def save(self, state: Mapping[str, object]) -> None:
        """Replace last.pt, which before is then previous.pt; write kept steps first.

        Raises `NotWritten`, with both intact.
        """
        assert "format" not in state, "the format is the run folder's to write"
        self.flush_steps()
        self._files.replace_checkpoint({"format": FORMAT, **state})
        self.fresh = self._unwritten = False

    def save_model(self, state: Mapping[str, object], step: int, best: bool, keep: str) -> None:
        """Write the model of an evaluation after `step` steps where `keep` wants it.

        Of a state for `save` the model alone is written, with what evaluates it. Called before
        `save`: a kill in between then repeats the evaluation.
        """
        names = [f"{MODELS}/step-{step}.pt"] if keep == "all" else []
        if best and keep == "last":  # an older best.pt is the best no more
            self._files.remove_files([self.folder / "best.pt"])
        elif best:
            names.append("best.pt")
        of_loop: dict[str, object] = {"loop": {}} if "loop" in state else {}
        model = {key: state[key] for key in _OF_MODELS}
        self._files.replace_models({"format": FORMAT, **model, **of_loop, "step": step}, names)

    def put_back(self) -> None:
        """Make previous.pt, if any, the last.pt; a damaged last.pt stays as damaged.pt."""
        if (self.folder / "previous.pt").exists():
            self._files.restore_checkpoint()


def _last_number(table: "pd.DataFrame | None", column: str) -> int:
    """Return a column's number in a table's last row, -1 where there is none."""
    return -1 if table is None or table.empty else int(table[column].iloc[-1])


def _is_at_most(model: Path, step: int) -> bool:
    """Return whether the file of a model is that of a step up to this one, or none of ours."""
    number = model.stem.removeprefix("step-")
    return not number.isdecimal() or int(number) <= step
