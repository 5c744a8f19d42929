"""The run folder: what a run writes while it goes on.

    RUNS_DIR/NAME/
      config.json   every resolved setting
      log.txt       what happened, with the time
      epochs.csv    one row an epoch; bytes are running totals for one worker
      steps.csv     one row a step; bytes are of that step
      workers.csv   one row an epoch and worker, if each worker's model is evaluated
      partition.csv how many samples of each class each worker has, if these are fixed
      transfers.csv one row a step and collective: what `simsgd network` prices
      nonfinite.csv one row a step and worker whose numbers were not finite, if there are any
      last.pt       where to go on
      previous.pt   the checkpoint before it, should last.pt be damaged
      best.pt       the least validation error so far

A file is either appended to in whole rows or replaced as a whole, so that a killed run leaves a
folder that can be read and resumed.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ..results.atomic_files import NotWritten, append, fill, link, part_gone, part_of, replace, sync
from ..results.run_tables import require_run
from ..results.tables import (
    EPOCH_COLUMNS,
    LAYER_COLUMNS,
    NONFINITE_COLUMNS,
    PARTITION_COLUMNS,
    STEP_COLUMNS,
    TRANSFER_COLUMNS,
    WORKER_COLUMNS,
    append_rows,
    ratio,
    read_table,
    replace_table,
    table_of,
)
from ..settings import SettingError, require
from .checkpoint import FORMAT

_BY_STEP = {  # tables beside steps.csv
    "layers": LAYER_COLUMNS,
    "transfers": TRANSFER_COLUMNS,
    "nonfinite": NONFINITE_COLUMNS,
}


class RunFolder:
    """Writes a run folder. Made by `create` for a new run, by `resume` for one that goes on."""

    def __init__(self, folder: Path, fresh: bool = False) -> None:
        self.folder = folder
        self.fresh = fresh  # made here, and nothing learned yet
        self._steps: list[Mapping[str, Any]] = []

    @classmethod
    def create(
        cls, runs_dir: Path, name: str, config: Mapping[str, Any], overwrite: bool = False
    ) -> "RunFolder":
        """Make RUNS_DIR/NAME and write its config.json.

        Raises `SettingError` for a name that exists (unless `overwrite`) or is not a plain name.
        """
        _require_plain(name)
        folder = Path(runs_dir) / name
        if overwrite and os.path.lexists(folder):
            _remove(folder, name)
        _make(folder, name)
        run = cls(folder, fresh=True)
        try:
            run.write_config(config)
            for table, columns in (("epochs.csv", EPOCH_COLUMNS), ("steps.csv", STEP_COLUMNS)):
                append_rows(folder / table, [], columns)
            append(folder / "log.txt", "")
            sync(folder)
            sync(folder.parent)
        except NotWritten:
            run.discard()
            raise
        return run

    @classmethod
    def resume(cls, folder: Path) -> "RunFolder":
        """Open the folder of a run that goes on; call `truncate` before the first new row."""
        require_run(Path(folder), "resume")
        return cls(Path(folder))

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.resolve().name

    def discard(self) -> None:
        """Remove the folder if it was made here and no step, epoch or checkpoint came into it."""
        if self.fresh:
            shutil.rmtree(self.folder, ignore_errors=True)  # it may be gone, or read-only by now

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace config.json."""
        text = json.dumps(dict(config), indent=2, default=os.fspath) + "\n"
        replace(self.folder / "config.json", lambda file: file.write(text.encode()))

    def log(self, text: str) -> None:
        """Append a text to log.txt, each line with the time."""
        now = datetime.now().isoformat(sep=" ", timespec="seconds")
        append(self.folder / "log.txt", "".join(f"{now}  {line}\n" for line in text.split("\n")))

    def add_step(self, row: Mapping[str, Any]) -> None:
        """Keep a row of steps.csv until `flush_steps` (or `save`) writes the block."""
        assert row.keys() == STEP_COLUMNS.keys(), row.keys() ^ STEP_COLUMNS.keys()
        self.fresh = False
        self._steps.append(row)

    def add_layers(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to layers.csv."""
        append_rows(self.folder / "layers.csv", rows, LAYER_COLUMNS)

    def add_workers(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to workers.csv."""
        append_rows(self.folder / "workers.csv", rows, WORKER_COLUMNS)

    def add_partition(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write partition.csv."""
        replace_table(self.folder / "partition.csv", table_of(rows, PARTITION_COLUMNS))

    def add_transfers(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to transfers.csv."""
        append_rows(self.folder / "transfers.csv", rows, TRANSFER_COLUMNS)

    def add_nonfinite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to nonfinite.csv, if there are any."""
        if rows:
            append_rows(self.folder / "nonfinite.csv", rows, NONFINITE_COLUMNS)

    def flush_steps(self) -> None:
        """Write the rows that `add_step` kept."""
        if self._steps:
            append_rows(self.folder / "steps.csv", self._steps, STEP_COLUMNS)
            self._steps = []

    def add_epoch(self, row: Mapping[str, Any]) -> None:
        """Write a row of epochs.csv at once; its ratio, if not given, follows from its bytes."""
        row = {"ratio": ratio(row["dense_bytes"], row["payload_bytes"]), **row}
        assert row.keys() == EPOCH_COLUMNS.keys(), row.keys() ^ EPOCH_COLUMNS.keys()
        self.fresh = False
        append_rows(self.folder / "epochs.csv", [row], EPOCH_COLUMNS)

    def truncate(self, step: int, epoch: int) -> None:
        """Forget what came after a checkpoint: `step` steps are done, `epoch` is the next to end.

        Rows of later steps, of `epoch` and of later epochs go, and so does a half-written row.
        """
        steps = read_table(self.folder / "steps.csv", STEP_COLUMNS).reindex(columns=[*STEP_COLUMNS])
        replace_table(self.folder / "steps.csv", steps[steps["step"] <= step])
        for name, columns in _BY_STEP.items():
            path = self.folder / f"{name}.csv"
            if path.exists():
                table = read_table(path, columns)
                replace_table(path, table[table["step"] <= step])
        workers = self.folder / "workers.csv"
        if workers.exists():
            table = read_table(workers, WORKER_COLUMNS)
            replace_table(workers, table[table["epoch"] < epoch])
        epochs = read_table(self.folder / "epochs.csv", EPOCH_COLUMNS)
        done = (epochs["step"] <= step) & (epochs["epoch"] < epoch)
        replace_table(self.folder / "epochs.csv", epochs[done])

    def save(self, state: Mapping[str, Any], best: bool = False) -> None:
        """Replace last.pt, and best.pt too if this is the best so far; write kept steps first.

        The last.pt of before is then previous.pt. Raises `NotWritten`, with both intact.
        """
        import torch

        assert "format" not in state, "the format is the run folder's to write"
        self.flush_steps()
        last = self.folder / "last.pt"
        part = part_of(last)
        with part_gone(part):
            fill(part, lambda file: torch.save({"format": FORMAT, **state}, file))
            if best:  # before last.pt: a kill in between then repeats what made it the best
                link(part, self.folder / "best.pt")
            if last.exists():
                link(last, self.folder / "previous.pt")
            _move(part, last)
        self.fresh = False

    def put_back(self) -> None:
        """Make previous.pt the last.pt; what a damaged last.pt held stays in damaged.pt."""
        last = self.folder / "last.pt"
        if last.exists():
            _move(last, self.folder / "damaged.pt")
        link(self.folder / "previous.pt", last)
        sync(self.folder)


def default_name(config: Mapping[str, Any], runs_dir: Path | None = None) -> str:
    """Return date and recipe, `20261127-231500-lenet-mnist5k-w16-prune0.999`.

    With `runs_dir`, the name is one that no run there has.
    """
    model = PurePosixPath(config["model"])
    recipe = [
        model.stem if model.suffix == ".py" else model.name,
        str(config["dataset"]).partition(":")[0],
        f"w{config['workers']}",
    ]
    if config.get("prune") is not None:
        recipe.append(f"prune{config['prune']}")
    name = "-".join([f"{datetime.now():%Y%m%d-%H%M%S}", *recipe])
    name = re.sub(r"\.{2,}|[^A-Za-z0-9._-]+", "_", name)
    return name if runs_dir is None else _untaken(Path(runs_dir), name)


def _move(part: Path, path: Path) -> None:
    try:
        os.replace(part, path)
        sync(path.parent)
    except OSError as wrong:
        raise NotWritten(path, wrong) from wrong


def _untaken(runs_dir: Path, name: str) -> str:
    free, number = name, 1
    while os.path.lexists(runs_dir / free):
        number += 1
        free = f"{name}-{number}"
    return free


def _require_plain(name: str) -> None:
    one_part = PurePosixPath(name).name == PureWindowsPath(name).name == name
    plain = one_part and bool(name) and ".." not in name and name.isprintable()
    rule = "must be one folder's name, of printable characters, without / or .."
    require(plain, "name", name, rule)


def _make(folder: Path, name: str) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        rule = f"cannot be made ({wrong.strerror})"
        raise SettingError("runs_dir", str(folder.parent), rule) from wrong
    try:
        folder.mkdir()
    except FileExistsError as wrong:
        fix = f"--overwrite replaces it, --resume {folder} goes on with it"
        raise SettingError("name", name, f"exists already in {folder.parent}", fix) from wrong
    except OSError as wrong:
        raise SettingError("name", name, f"cannot be made a folder ({wrong.strerror})") from wrong


def _remove(folder: Path, name: str) -> None:
    names = {path.name for path in folder.glob("*")} if folder.is_dir() else {"a file"}
    killed_at_once = names <= {".config.json.part"}
    ours = not folder.is_symlink() and ((folder / "config.json").is_file() or killed_at_once)
    rule = f"cannot be overwritten, {folder} is not a run folder (no config.json in it)"
    require(ours, "name", name, rule, "choose another name")
    shutil.rmtree(folder)
