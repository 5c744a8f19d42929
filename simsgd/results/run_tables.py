"""The tables in a run's folder.

They are read again once their files have changed, so that one can watch a run that has not ended.
"""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings import SettingError, require_kind, unknown
from .config_values import Identity, identity
from .folder_of_runs import require_run
from .kept_files import KeptFiles
from .metric import Metric, metric_of, with_metric
from .tables import (
    ALL_STEP_COLUMNS,
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    LAYER_COLUMNS,
    NONFINITE_COLUMNS,
    PARTITION_COLUMNS,
    SEGMENT_COLUMNS,
    STEP_COLUMNS,
    TRANSFER_COLUMNS,
    WORKER_COLUMNS,
    read_table,
)
from .used_settings import Used, is_plain, is_used, used_settings

if TYPE_CHECKING:
    import pandas as pd

_SENT = ("payload_bytes", "payload_bytes_max")  # of a step
_LINKS = ("received_bytes", "busiest_link_bytes")
_COUNTED = ("epoch", "step", "payload_bytes", "dense_bytes")  # that every epoch needs


class RunTables:
    """The settings, the log and the tables of a run, as pandas DataFrames."""

    def __init__(self, folder: Path | str) -> None:
        require_kind("run", folder, str, Path)
        self.folder = Path(folder)
        require_run(self.folder, "run")
        self._kept = KeptFiles()

    @property
    def name(self) -> str:
        """The run's name, which is its folder's; `?` stands for what is no text in it."""
        return self.folder.resolve().name.encode("utf-8", "replace").decode("utf-8")

    @property
    def config(self) -> dict[str, Any]:
        """What config.json holds: every setting as it was given, `environment` and `used`."""
        return copy.deepcopy(self._config)

    @property
    def _config(self) -> dict[str, Any]:
        """The same, to be left as it is."""
        return self._kept.of("config", [self.folder / "config.json"], self._read_config)

    def _read_config(self) -> dict[str, Any]:
        try:
            config = json.loads((self.folder / "config.json").read_text("utf-8"))
        except (ValueError, RecursionError, OSError) as wrong:
            rule = "has a config.json that is not JSON"
            raise SettingError("run", str(self.folder), rule) from wrong
        if not _holds_settings(config):
            rule = "has a config.json that does not hold settings by name"
            raise SettingError("run", str(self.folder), rule)
        return dict(config)

    @property
    def used(self) -> dict[str, Used]:
        """Every setting as it was really used, a list of phases where a regime changed it.

        From folders of earlier versions, which lack this: every setting as it was given.
        """
        used = used_settings(self._config)
        return {n: copy.deepcopy(v) if isinstance(v, list) else v for n, v in used.items()}

    @property
    def metric(self) -> Metric:
        """What tables and figures show of how well the model does."""
        return metric_of(self._config)

    @property
    def identity_but_seed(self) -> Identity:
        """What makes the run the run it is, but for its seed."""
        files = [self.folder / "config.json"]
        return self._kept.of("identity", files, lambda: identity({**self._config, "seed": 0}))

    @property
    def num_workers(self) -> int:
        """The number of simulated workers, W."""
        workers = self._config.get("workers")
        if not (isinstance(workers, int) and 1 <= workers < 2**31):
            rule = "has a config.json without a number of workers"
            raise SettingError("run", str(self.folder), rule)
        return workers

    @property
    def log(self) -> str:
        """The text of log.txt."""
        path = self.folder / "log.txt"
        return path.read_text("utf-8", errors="replace") if path.is_file() else ""

    @property
    def epochs(self) -> "pd.DataFrame":
        """One row an epoch; errors in percent, bytes as running totals for one worker.

        It also has what follows for the metric, such as accuracies; of text, perplexities and bits
        per character or byte.
        """
        path = self._with_head("epochs.csv")
        files = [path, self.folder / "config.json"]
        return _own(self._kept.of("epochs", files, lambda: self._epochs(path)))

    def _epochs(self, path: Path) -> "pd.DataFrame":
        metric = self.metric
        table = read_table(path, EPOCH_COLUMNS | dict.fromkeys(metric.own_columns, "float64"))
        lacking = ", ".join(name for name in _COUNTED if name not in table)
        if lacking:
            raise SettingError("run", str(path), f"lacks the columns {lacking}")
        measured = [name for name, kind in EPOCH_COLUMNS.items() if kind == "float64"]
        measured += metric.own_columns
        missing = [name for name in measured if name not in table]
        table = table.assign(**dict.fromkeys(missing, math.nan))
        return with_metric(table, metric)

    @property
    def evaluations(self) -> "pd.DataFrame":
        """One row an evaluation: the rows of `epochs`, and those between the ends of epochs.

        `epochs` has how many epochs are done then, such as 1.25; what is of an epoch is of its part
        so far.
        """
        return _own(self._kept_evaluations)

    @property
    def _kept_evaluations(self) -> "pd.DataFrame":
        """The same, to be left as it is."""
        files = [self.folder / f for f in ("epochs.csv", "evaluations.csv", "config.json")]
        return self._kept.of("evaluations", files, self._evaluations)

    def _evaluations(self) -> "pd.DataFrame":
        import pandas as pd

        ended = self.epochs
        ended = ended.assign(epochs=ended["epoch"] + 1.0)
        if not (self.folder / "evaluations.csv").exists():
            return ended
        metric = self.metric
        columns = EVALUATION_COLUMNS | dict.fromkeys(metric.own_columns, "float64")
        within = read_table(self.folder / "evaluations.csv", columns)
        lacking = ", ".join(name for name in (*_COUNTED, "epochs") if name not in within)
        if lacking:
            path = str(self.folder / "evaluations.csv")
            raise SettingError("run", path, f"lacks the columns {lacking}")
        within = within[~within["step"].isin(ended["step"])]
        if within.empty:
            return ended
        within = with_metric(within, metric)
        if ended.empty:
            return within.reset_index(drop=True)
        rows = pd.concat([ended, within.reindex(columns=ended.columns)])
        return rows.sort_values("step", ignore_index=True)

    @property
    def seconds(self) -> float:
        """Seconds of all steps and evaluations."""
        ended, rows = self.epochs, self._kept_evaluations
        since = 0.0
        if len(rows) and (ended.empty or rows["step"].iloc[-1] > ended["step"].iloc[-1]):
            since = float(rows["seconds"].iloc[-1])
        return float(ended["seconds"].sum()) + since

    @property
    def done(self) -> str:
        """What is done of the run, such as "3/10" epochs, "250/1000 steps" or "250 steps"."""
        config = self._config
        if self.has_sent_enough or (config.get("steps") is None and config.get("epochs") is None):
            return f"{self.step} steps"
        if config.get("steps") is None:
            return f"{len(self.epochs)}/{config.get('epochs')}"
        return f"{self.step}/{config['steps']} steps"

    @property
    def has_sent_enough(self) -> bool:
        """Whether it ended, or will not go on, because each worker has sent `until_bytes`."""
        size = self._config.get("until_bytes")
        if not isinstance(size, int):
            return False
        rows = self.evaluations
        return len(rows) > 0 and bool(rows["payload_bytes"].iloc[-1] >= size)

    @property
    def step(self) -> int:
        """Steps done at the last evaluation."""
        rows = self.evaluations
        return int(rows["step"].iloc[-1]) if len(rows) else 0

    @property
    def steps(self) -> "pd.DataFrame":
        """One row a step; bytes are those of the step."""
        return read_table(self._with_head("steps.csv"), STEP_COLUMNS)

    def step_columns(self, *names: str) -> "pd.DataFrame":
        """Return `steps` with the column step and those of these that the run has."""
        return self._some("steps.csv", ALL_STEP_COLUMNS, ("step", *names))

    @property
    def peak_bytes(self) -> float:
        """The most bytes that a worker sent in a step; nan if that is at most twice the mean."""
        return self._bytes_of_steps[1]

    @property
    def mean_bytes(self) -> float:
        """The bytes that a worker sent in a step on average; nan without steps."""
        return self._bytes_of_steps[0]

    @property
    def on_links(self) -> tuple[float, float]:
        """Bytes that reached a worker, the mean, and those of each step's busiest link, one way.

        They are nan for runs of earlier versions.
        """
        return self._bytes_of_steps[2:]

    @property
    def _bytes_of_steps(self) -> tuple[float, float, float, float]:
        return self._kept.of("bytes", [self.folder / "steps.csv"], self._read_bytes_of_steps)

    def _read_bytes_of_steps(self) -> tuple[float, float, float, float]:
        """Return mean and peak of what a worker sent, and what all steps had on links."""
        steps = self.step_columns(*_SENT, *_LINKS)
        mean = peak = received = busiest = math.nan
        if len(steps) and {*_SENT} <= {*steps}:
            mean, most = float(steps["payload_bytes"].mean()), steps["payload_bytes_max"].max()
            peak = float(most) if most > 2 * mean else math.nan
        if len(steps) and {*_LINKS} <= {*steps}:
            received, busiest = (float(steps[name].sum(skipna=False)) for name in _LINKS)
        return mean, peak, received, busiest

    @property
    def layers(self) -> "pd.DataFrame":
        """One row a segment and step, if `log_layers` is set."""
        return read_table(self.folder / "layers.csv", LAYER_COLUMNS)

    @property
    def transfers(self) -> "pd.DataFrame":
        """One row a collective and step: its messages and bytes."""
        return read_table(self.folder / "transfers.csv", TRANSFER_COLUMNS)

    def transfer_columns(self, *names: str) -> "pd.DataFrame":
        """Return `transfers` with the columns step, collective, as a category, and these."""
        known = {**TRANSFER_COLUMNS, "collective": "category"}
        return self._some("transfers.csv", known, ("step", "collective", *names))

    @property
    def segments(self) -> "pd.DataFrame":
        """One row a segment and collective that carried it: when it can be sent, and its bytes."""
        return read_table(self.folder / "segments.csv", SEGMENT_COLUMNS)

    @property
    def workers(self) -> "pd.DataFrame":
        """One row a worker and evaluation, if each worker's model was evaluated (`evaluate`)."""
        metric = self.metric
        columns = WORKER_COLUMNS | dict.fromkeys(metric.own_columns[1:], "float64")
        return with_metric(read_table(self.folder / "workers.csv", columns), metric, ("val",))

    @property
    def partition(self) -> "pd.DataFrame":
        """One row a worker and class, if `partition` fixes the samples of each worker."""
        return read_table(self.folder / "partition.csv", PARTITION_COLUMNS)

    @property
    def nonfinite(self) -> "pd.DataFrame":
        """One row a step and worker with numbers that were not finite (`on_nonfinite`)."""
        return read_table(self.folder / "nonfinite.csv", NONFINITE_COLUMNS)

    @property
    def best(self) -> "pd.Series[Any]":
        """The evaluation of the best metric (of perplexity by loss); of equals the first.

        By loss, too, where the metric was not measured.
        """
        epochs, metric = self._evaluated(), self.metric
        column, sign = metric.score_column, -1 if metric.higher_is_better else 1
        if epochs[column].isna().all():
            column, sign = "val_loss", 1
        errors = sign * epochs[column].to_numpy()
        best = min(range(len(errors)), key=lambda i: (math.isnan(errors[i]), errors[i]))
        return epochs.iloc[best : best + 1].astype(object).iloc[0]  # object: bytes stay integers

    @property
    def last(self) -> "pd.Series[Any]":
        """The last evaluation, which is that of the last epoch unless there was one after it."""
        return self._evaluated().iloc[-1:].astype(object).iloc[0]

    def _some(self, file: str, known: Mapping[str, str], names: Sequence[str]) -> "pd.DataFrame":
        """Return those of some columns of a file that it has. Raises `SettingError` for others."""
        for name in names:
            if name not in known:
                raise unknown("column", name, known)
        return read_table(self._with_head(file), {n: known[n] for n in names}, others=False)

    def _with_head(self, name: str) -> Path:
        """Return the path of a table that has the names of its columns since the run began.

        Raises `SettingError` if the run was saved since, and the file is empty.
        """
        path = self.folder / name
        emptied = path.exists() and path.stat().st_size == 0 and (self.folder / "last.pt").exists()
        if emptied:
            raise SettingError("run", str(path), "is damaged: it is empty, without its head")
        return path

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _evaluated(self) -> "pd.DataFrame":
        rows = self._kept_evaluations
        if rows.empty:
            raise SettingError("run", str(self.folder), "has no finished epoch yet")
        return rows


def _own(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table that may be changed, and leaves the one that is kept as it is."""
    import pandas as pd

    return table.copy(deep=int(pd.__version__.partition(".")[0]) < 3)  # later it copies on write


def _holds_settings(config: object) -> bool:
    """Return whether a JSON document holds settings by name, as config.json does."""
    if not isinstance(config, dict):
        return False
    used = config.get("used", {})
    if not isinstance(config.get("environment") or {}, dict):
        return False
    if not (isinstance(used, dict) and all(map(is_used, used.values()))):
        return False
    return all(is_plain(v) for name, v in config.items() if name not in ("environment", "used"))
