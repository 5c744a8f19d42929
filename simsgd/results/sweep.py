"""A sweep, read from its folder: a run for each combination and seed, and means over seeds.

DIR/
  sweep.json   the values that were asked for, and the settings of each run
  sweep.csv    a row for each combination: means and standard deviations over seeds
  NAME/        the run folders
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ..config import Config
from ..settings import SettingError, require, require_kind
from . import html as page
from .atomic_files import replace
from .config_values import (
    OF_ONE_RUN,
    OF_THE_MACHINE,
    ON_RESUME,
    default_of,
    in_full,
    in_short,
    plain,
    varying,
)
from .metric import Metric, metric_of
from .outcome import heading_of, mean_in_words, measures_of, metrics_of, outcome
from .run import Run
from .tables import replace_table
from .text_table import TextTable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .figures.plot import PlotSettings

FORMAT = "simsgd-sweep/1"
_LENGTHS = {"epochs", "steps", "until_bytes"}
_SHOWN = ("payload_bytes", "ratio", "seconds")  # in words, behind the metrics
_WITHOUT_DEVIATION = ("payload_bytes", "ratio")


class Definition(TypedDict):
    """The contents of sweep.json."""

    format: str
    asked: dict[str, object]  # the values of each setting
    runs: dict[str, dict[str, object]]  # the settings that were given for each run, by its name


class Sweep:
    """A folder of runs that differ in some settings, each with several seeds.

    `table` is a pandas DataFrame with a row for each combination; `runs` are the runs that have
    begun; `failures` has the reason for each combination or run that failed.
    """

    def __init__(self, folder: Path | str, failures: Mapping[str, str] | None = None) -> None:
        require_kind("folder", folder, str, Path)
        self.folder = Path(folder)
        self.failures = dict(failures or {})
        read_definition(self.folder)

    @property
    def settings(self) -> dict[str, dict[str, object]]:
        """The settings that were given for each run, by its name."""
        return read_definition(self.folder)["runs"]

    @property
    def runs(self) -> list[Run]:
        """The runs that have begun."""
        folders = (self.folder / name for name in self.settings)
        return [Run(folder) for folder in folders if (folder / "config.json").is_file()]

    @property
    def varying(self) -> list[str]:
        """The settings that vary, except the seed."""
        machine = {*OF_THE_MACHINE, "seed"}
        return [name for name in varying(self.settings.values()) if name not in machine]

    @property
    def table(self) -> "pd.DataFrame":
        """One row for each combination: what varies, and means and deviations over its seeds.

        `seeds` is how many of its runs are done and can be read; only they count. `_std` is the
        standard deviation of the sample (over n - 1), nan for one seed. Errors are in percent,
        bytes of one worker. The columns of the runs' metrics, such as val_perplexity of text, come
        first.
        """
        import numpy as np
        import pandas as pd

        rows, measures, given = [], measures_of(self._metrics), self.settings
        for combination, names in self._combinations():
            ends = [_outcome(self.folder / name, given[name], measures) for name in names]
            done = [end for end in ends if isinstance(end, dict)]
            seen = pd.DataFrame(done, columns=list(measures))
            row = {**combination, "seeds": len(done)}
            with np.errstate(invalid="ignore"):  # of ratios that are infinite
                for measure in measures:
                    row[f"{measure}_mean"] = seen[measure].astype(float).mean()
                    row[f"{measure}_std"] = seen[measure].astype(float).std()
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def unusable(self) -> dict[str, str]:
        """Why runs that are done do not count, by name."""
        ends = {n: _outcome(self.folder / n, own, ()) for n, own in self.settings.items()}
        return {name: str(end) for name, end in ends.items() if isinstance(end, SettingError)}

    @property
    def _metrics(self) -> list[Metric]:
        return metrics_of(self.runs)

    def plot(
        self,
        x: str | None = None,
        y: str | Sequence[str] | None = None,
        output: Path | str | None = None,
        **settings: "Unpack[PlotSettings]",
    ) -> "Figure":
        """Draw the runs that have a finished epoch, curves against bytes by default.

        It takes the settings of `plot_results`.

        Each combination is one line, the mean over its seeds, in a band from least to most.
        """
        from .figures.plot import plot_results  # here: drawing lies above reading

        started = [run for run in self.runs if len(run.evaluations) > 0]
        if not started:
            rule = "has no run with a finished epoch yet"
            raise SettingError("sweep", str(self.folder), rule)
        if settings.get("kind", "curves") == "curves":
            x = x or "bytes"
        return plot_results(started, x, y, output, **settings)

    def summary(self) -> str:
        """Return the table in plain text, and what failed."""
        return "\n".join([str(self.text_table()), *self.not_made])

    @property
    def not_made(self) -> list[str]:
        """What failed, and why, in plain text."""
        return [f"not made: {what}\n  {why}" for what, why in self.failures.items()]

    @property
    def dispensable(self) -> list[str]:
        """The columns of `text_table` that a narrow terminal may lack, the first first."""
        return [heading_of(measure) for measure in ("seconds", "best_val_error1", "ratio")]

    def text_table(self) -> TextTable:
        """Return the table in words."""
        names, metrics = self.varying or ["sweep"], self._metrics or [metric_of({})]
        columns = [f"val_{metric.column}" for metric in metrics]
        measures = [*(n for column in columns for n in (column, f"best_{column}")), *_SHOWN]
        rows = [
            [
                *(in_short(row.get(name, self.folder.name)) for name in names),
                *_numbers(row, measures, metrics),
            ]
            for _, row in self.table.iterrows()
        ]
        head = [*names, "seeds", *(heading_of(measure, metrics) for measure in measures)]
        return TextTable(head, rows, names=max(1, len(self.varying)))

    def write_table(self) -> None:
        """Replace sweep.csv by the table as it is now."""
        replace_table(self.folder / "sweep.csv", self.table)

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        failed = (page.note(f"not made: {what}: {why}") for what, why in self.failures.items())
        return page.table(self.text_table()) + "".join(failed)

    def _combinations(self) -> Iterator[tuple[dict[str, str], list[str]]]:
        """Yield what varies, as text, and the names of the runs that have it in common."""
        found: dict[tuple[str, ...], list[str]] = {}
        names = self.varying
        for run, settings in self.settings.items():
            values = tuple(in_full(settings.get(name, default_of(name))) for name in names)
            found.setdefault(values, []).append(run)
        for values, runs in found.items():
            yield dict(zip(names, values, strict=True)), runs


def read_definition(folder: Path) -> Definition:
    """Return the contents of sweep.json. Raises `SettingError` if the folder is not a sweep's."""
    path = folder / "sweep.json"
    if not path.is_file():
        rule = "is not the folder of a sweep (no sweep.json in it)"
        raise SettingError("sweep", str(folder), rule if folder.exists() else "does not exist")
    try:
        definition: Definition = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as wrong:
        raise SettingError("sweep", str(path), "is not JSON") from wrong
    if not isinstance(definition, dict) or definition.get("format") != FORMAT:
        raise SettingError("sweep", str(path), f"is not a sweep's (its format is not {FORMAT})")
    parts = [definition.get(name) for name in ("asked", "runs")]
    runs = parts[1].values() if isinstance(parts[1], dict) else ()
    if not all(isinstance(part, dict) for part in (*parts, *runs)):
        raise SettingError("sweep", str(path), "is damaged: it does not hold settings by name")
    return definition


def write_definition(folder: Path, asked: Mapping[str, object], runs: Mapping[str, object]) -> None:
    """Replace sweep.json by the values asked for, and the settings of every run."""
    definition = {"format": FORMAT, "asked": dict(asked), "runs": dict(runs)}
    text = json.dumps(definition, indent=2, default=str) + "\n"
    replace(folder / "sweep.json", lambda file: file.write(text.encode()))


def _outcome(
    folder: Path, settings: Mapping[str, object], measures: Iterable[str]
) -> dict[str, float] | SettingError | None:
    """Return what a run came to, or why that cannot be told; None while it is not done."""
    try:
        if part_done(folder) < 1:
            return None
        require_own(folder, settings)
        return outcome(Run(folder), measures)
    except SettingError as wrong:
        return wrong


def require_own(folder: Path, settings: Mapping[str, object]) -> None:
    """Raise `SettingError` for a folder that holds another run than that with these settings."""
    if not (folder / "config.json").is_file():
        return
    config = Run(folder).config
    try:
        asked = Config.of(settings).plain()
    except SettingError:  # of another version, or with a file that is gone
        return
    for name in settings.keys() - OF_THE_MACHINE - OF_ONE_RUN - (ON_RESUME - _LENGTHS):
        own, has = asked[name], config.get(name, default_of(name))
        rule = f"holds another run, with {name} {in_full(has)} and not {in_full(own)}"
        same = in_full(plain(own)) == in_full(plain(has))
        require(same, "runs_dir", str(folder), rule, "remove it, or name another folder")


def part_done(folder: Path) -> float:
    """Return the part of a run that is done, in [0, 1]; 0 if it has not begun.

    One that has sent its `until_bytes` is done.
    """
    if not (folder / "config.json").is_file():
        return 0.0
    run = Run(folder)
    if run.has_sent_enough:
        return 1.0
    steps = run.config.get("steps")
    if steps is not None:
        return min(1.0, run.step / float(steps))
    table = folder / "epochs.csv"
    ended = table.read_bytes().count(b"\n") - 1 if table.exists() else 0
    return min(1.0, max(0, ended) / (run.config.get("epochs") or 1))


def _numbers(
    row: "pd.Series[Any]", measures: Sequence[str], metrics: Sequence[Metric]
) -> list[str]:
    """Return the cells of a row of the table behind its combination."""
    if not row["seeds"]:
        return ["0", *("-" for _ in measures)]
    deviations = [math.nan if m in _WITHOUT_DEVIATION else row[f"{m}_std"] for m in measures]
    cells = (
        mean_in_words(measure, row[f"{measure}_mean"], deviation, metrics)
        for measure, deviation in zip(measures, deviations, strict=True)
    )
    return [str(int(row["seeds"])), *cells]
