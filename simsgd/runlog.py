"""The run folder: what a run writes while it goes on, and what one reads of it afterwards.

    RUNS_DIR/NAME/
      config.json   every resolved setting
      log.txt       what happened, with the time
      epochs.csv    one row an epoch; bytes are running totals for one worker
      steps.csv     one row a step; bytes are of that step
      last.pt       where to go on
      best.pt       the least validation error so far

A file is either appended to in whole rows or replaced as a whole, so that a killed run leaves a
folder that can be read and resumed.
"""

import html
import io
import json
import math
import operator
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, TYPE_CHECKING, Any

from .settings import SettingError, require

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FORMAT = "simsgd-run/1"

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
    "seconds": "float64",
}


class RunFolder:
    """Writes a run folder. Made by `create` for a new run, by `resume` for one that goes on."""

    def __init__(self, folder: Path, fresh: bool = False) -> None:
        self.folder = folder
        self._fresh = fresh  # made here, and nothing learned yet
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
        run.write_config(config)
        for table, columns in (("epochs.csv", EPOCH_COLUMNS), ("steps.csv", STEP_COLUMNS)):
            _append_rows(folder / table, [], columns)
        _append(folder / "log.txt", "")
        return run

    @classmethod
    def resume(cls, folder: Path) -> "RunFolder":
        """Open the folder of a run that goes on; call `truncate` before the first new row."""
        _require_run(Path(folder), "resume")
        return cls(Path(folder))

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.resolve().name

    def discard(self) -> None:
        """Remove the folder if it was made here and no step, epoch or checkpoint came into it."""
        if self._fresh:
            shutil.rmtree(self.folder)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace config.json."""
        text = json.dumps(dict(config), indent=2, default=os.fspath) + "\n"
        _replace(self.folder / "config.json", lambda file: file.write(text.encode()))

    def log(self, text: str) -> None:
        """Append a text to log.txt, each line with the time."""
        now = datetime.now().isoformat(sep=" ", timespec="seconds")
        _append(self.folder / "log.txt", "".join(f"{now}  {line}\n" for line in text.split("\n")))

    def add_step(self, row: Mapping[str, Any]) -> None:
        """Keep a row of steps.csv until `flush_steps` (or `save`) writes the block."""
        assert row.keys() == STEP_COLUMNS.keys(), row.keys() ^ STEP_COLUMNS.keys()
        self._fresh = False
        self._steps.append(row)

    def flush_steps(self) -> None:
        """Write the rows that `add_step` kept."""
        if self._steps:
            _append_rows(self.folder / "steps.csv", self._steps, STEP_COLUMNS)
            self._steps = []

    def add_epoch(self, row: Mapping[str, Any]) -> None:
        """Write a row of epochs.csv at once; its ratio, if not given, follows from its bytes."""
        row = {"ratio": _ratio(row["dense_bytes"], row["payload_bytes"]), **row}
        assert row.keys() == EPOCH_COLUMNS.keys(), row.keys() ^ EPOCH_COLUMNS.keys()
        self._fresh = False
        _append_rows(self.folder / "epochs.csv", [row], EPOCH_COLUMNS)

    def truncate(self, step: int, epoch: int) -> None:
        """Forget what came after a checkpoint: `step` steps are done, `epoch` is the next to end.

        Rows of later steps, of `epoch` and of later epochs go, and so does a half-written row.
        """
        steps = _read(self.folder / "steps.csv", STEP_COLUMNS)
        _replace_table(self.folder / "steps.csv", steps[steps["step"] <= step])
        epochs = _read(self.folder / "epochs.csv", EPOCH_COLUMNS)
        done = (epochs["step"] <= step) & (epochs["epoch"] < epoch)
        _replace_table(self.folder / "epochs.csv", epochs[done])

    def save(self, state: Mapping[str, Any], best: bool = False) -> None:
        """Replace last.pt, and best.pt too if this is the best so far; write kept steps first."""
        import torch

        assert "format" not in state, "the format is the run folder's to write"
        self.flush_steps()
        self._fresh = False
        last = self.folder / "last.pt"
        part = _part(last)
        try:
            _fill(part, lambda file: torch.save({"format": FORMAT, **state}, file))
            if best:  # before last.pt: a kill in between then repeats what made it the best
                _link(part, self.folder / "best.pt")
            os.replace(part, last)
        finally:
            part.unlink(missing_ok=True)


class Run:
    """What a run left in its folder, read anew at each look, so that one may watch it go on.

    `epochs` and `steps` are pandas DataFrames; `plot` draws, `summary` tells.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        _require_run(self.folder, "run")

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.folder.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """Every setting of the run."""
        try:
            config: dict[str, Any] = json.loads((self.folder / "config.json").read_text("utf-8"))
        except ValueError as wrong:
            rule = "has a config.json that is not JSON"
            raise SettingError("run", str(self.folder), rule) from wrong
        return config

    @property
    def log(self) -> str:
        """The text of log.txt."""
        path = self.folder / "log.txt"
        return path.read_text("utf-8") if path.exists() else ""

    @property
    def epochs(self) -> "pd.DataFrame":
        """One row an epoch; errors in percent, bytes as running totals for one worker."""
        return _read(self.folder / "epochs.csv", EPOCH_COLUMNS)

    @property
    def steps(self) -> "pd.DataFrame":
        """One row a step; bytes are those of the step."""
        return _read(self.folder / "steps.csv", STEP_COLUMNS)

    @property
    def best(self) -> "pd.Series[Any]":
        """The epoch with the least validation error@1, the first of equals."""
        epochs = self._ended()
        errors = epochs["val_error1"].to_numpy()
        best = min(range(len(errors)), key=lambda i: (math.isnan(errors[i]), errors[i]))
        return epochs.astype(object).iloc[best]  # object: bytes stay integers

    @property
    def last(self) -> "pd.Series[Any]":
        """The epoch that ended last."""
        return self._ended().astype(object).iloc[-1]

    def plot(
        self, x: str = "epoch", y: str | Sequence[str] = "val_error1", path: Path | None = None
    ) -> "Figure":
        """Draw columns of epochs.csv or steps.csv against epoch, step or bytes."""
        from .plots import plot_results  # here: drawing lies above reading

        return plot_results([self], x=x, y=y, path=path)

    def summary(self) -> str:
        """Return the closing table in plain text."""
        facts = self._facts()
        width = max(len(what) for what, _ in facts)
        return "\n".join(f"{what:<{width}}  {value}" for what, value in facts)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(what)}</th><td>{html.escape(value)}</td></tr>"
            for what, value in self._facts()
        )
        return f"<table>{rows}</table>{self.epochs.tail(5).to_html(index=False)}"

    def _ended(self) -> "pd.DataFrame":
        epochs = self.epochs
        require(len(epochs) > 0, "run", str(self.folder), "has no finished epoch yet")
        return epochs

    def _facts(self) -> list[tuple[str, str]]:
        where = ("run folder", str(self.folder))
        if self.epochs.empty:
            return [where, ("epochs", "none has ended yet")]
        last, best = self.last, self.best
        error = f"{last.val_error1:.2f} % after {last.epoch + 1} epochs"
        return [
            ("validation error@1", f"{error} (best {best.val_error1:.2f} % in epoch {best.epoch})"),
            ("sent per worker", _both(last.payload_bytes)),
            ("dense equivalent", _both(last.dense_bytes)),
            ("ratio", f"{last.ratio:.1f} over the run, {self._steady():.1f} in the last epoch"),
            ("on the network per worker", _both(last.network_bytes)),
            ("time", f"{self.epochs['seconds'].sum():.1f} s"),
            where,
        ]

    def _steady(self) -> float:
        epochs = self.epochs[["dense_bytes", "payload_bytes"]]
        dense, payload = epochs.diff().fillna(epochs).iloc[-1]
        return _ratio(dense, payload)


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


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Return the state that `RunFolder.save` wrote; a folder means its last.pt.

    Raises `SettingError` for a file that is missing, broken or not ours. No code in it is run.
    """
    import torch

    file = Path(path) / "last.pt" if Path(path).is_dir() else Path(path)
    require(file.is_file(), "resume", str(file), "names a file that does not exist")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as wrong:  # torch.load tells a broken file in a dozen ways
        raise SettingError("resume", str(file), "cannot be read as a checkpoint") from wrong
    ours = isinstance(state, dict) and state.get("format") == FORMAT
    rule = f"is not a checkpoint of simsgd (its format is not {FORMAT})"
    require(ours, "resume", str(file), rule, "give a run's folder, or the last.pt in it")
    return {key: value for key, value in state.items() if key != "format"}


def in_units(num_bytes: float) -> str:
    """Return bytes in binary units.

    >>> in_units(1536), in_units(10 * 2**20), in_units(12)
    ('1.5 KiB', '10 MiB', '12 B')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    power = 0
    while num_bytes / 1024**power >= 1024 and power < len(units) - 1:
        power += 1
    return f"{num_bytes / 1024**power:.4g} {units[power]}"


def _both(num_bytes: int) -> str:
    return f"{in_units(num_bytes)} ({num_bytes:,} bytes)"


def _ratio(dense: float, payload: float) -> float:
    return float(dense / payload) if payload else math.inf


def _untaken(runs_dir: Path, name: str) -> str:
    free, number = name, 1
    while os.path.lexists(runs_dir / free):
        number += 1
        free = f"{name}-{number}"
    return free


def _require_plain(name: str) -> None:
    one_part = PurePosixPath(name).name == PureWindowsPath(name).name == name
    plain = one_part and bool(name) and ".." not in name and name.isprintable()
    require(plain, "name", name, "must be one folder's name, without / or ..")


def _require_run(folder: Path, setting: str) -> None:
    rule = "is not a run folder (no config.json in it)"
    require((folder / "config.json").is_file(), setting, str(folder), rule)


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
    ours = not folder.is_symlink() and (folder / "config.json").is_file()
    rule = f"cannot be overwritten, {folder} is not a run folder (no config.json in it)"
    require(ours, "name", name, rule, "choose another name")
    shutil.rmtree(folder)


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> "pd.DataFrame":
    import pandas as pd

    exact: dict[str, Callable[[Any], Any]] = {"int64": operator.index, "float64": float}
    values = {name: [exact[kind](row[name]) for row in rows] for name, kind in columns.items()}
    return pd.DataFrame(values).astype(dict(columns))


def _csv(table: "pd.DataFrame", header: bool = True) -> str:
    return table.to_csv(index=False, header=header, na_rep="nan", lineterminator="\n")


def _read(path: Path, columns: Mapping[str, str]) -> "pd.DataFrame":
    import pandas as pd

    text = path.read_text("utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a kill, or a look meanwhile, may meet half a row
    if not whole:
        return _table([], columns)
    floats = [name for name, kind in columns.items() if kind == "float64"]
    try:
        table = pd.read_csv(io.StringIO(whole), converters=dict.fromkeys(floats, float))
        return table.astype({name: kind for name, kind in columns.items() if name in table})
    except ValueError as wrong:
        raise SettingError("run", str(path), "cannot be read as the table it was") from wrong


def _append_rows(path: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    first = not path.exists() or path.stat().st_size == 0
    _append(path, _csv(_table(rows, columns), header=first))


def _append(path: Path, text: str) -> None:
    with path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _replace_table(path: Path, table: "pd.DataFrame") -> None:
    _replace(path, lambda file: file.write(_csv(table).encode()))


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    part = _part(path)
    try:
        _fill(part, write)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _fill(part: Path, write: Callable[[IO[bytes]], object]) -> None:
    with part.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _link(source: Path, path: Path) -> None:
    part = _part(path)
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:  # a file system without hard links
        _fill(part, lambda file: file.write(source.read_bytes()))
    os.replace(part, path)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
