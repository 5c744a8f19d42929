"""A run, read from its folder: its tables, its summary, its figures."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..units import counted, in_units
from . import html as page
from .network import networks_of
from .network_prices import price_in_words
from .noise_scale import noise_scale_of
from .run_tables import RunTables
from .tables import ratio
from .used_settings import value_in_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .figures.plot import PlotSettings

_IN_SUMMARY = (  # settings of the summary, as they were used
    "model", "workers", "cluster", "batch_size", "method", "compressor", "compress_layers", "prune",
    "memory", "algorithm", "aggregate", "collective", "attack", "topology", "local_steps",
    "optimizer", "lr", "momentum", "weight_decay",
)  # fmt: skip
_IN_NOTEBOOK = ("epoch", "step", "lr", "payload_bytes", "ratio", "train_loss", "val_loss")
_WIDEST = 50  # characters of a line of settings


class Run(RunTables):
    """A run folder, read again once its files have changed.

    `epochs` and `steps` are pandas DataFrames; `plot` draws, `summary` sums up.
    """

    @classmethod
    def of(cls, run: RunTables) -> "Run":
        """Return the run of a folder, with the tables that were read of it."""
        made = cls(run.folder)
        made._kept = run._kept
        return made

    def plot(
        self,
        x: str | None = None,
        y: str | Sequence[str] | None = None,
        output: Path | str | None = None,
        **settings: "Unpack[PlotSettings]",
    ) -> "Figure":
        """Draw the run; takes the settings of `plot_results`."""
        from .figures.plot import plot_results  # here: drawing lies above reading

        return plot_results([self], x, y, output, **settings)

    def summary(self, networks: str | Sequence[str] = ()) -> str:
        """Return the results in plain text, with a line for each network, such as "10gbe"."""
        facts = [*self._facts(), *self._on(networks)]
        width = max(len(what) for what, _ in facts)
        indent = "\n" + " " * (width + 2)
        lines = [f"{what:<{width}}  {value}" for what, value in facts]
        return "\n".join(line.replace("\n", indent) for line in lines)

    def _repr_html_(self) -> str:
        rows = self.evaluations
        shown = [name for name in (*_IN_NOTEBOOK, *self._metric_columns) if name in rows]
        last = rows[shown].dropna(axis=1, how="all").tail(5)
        return page.facts(self._facts()) + last.to_html(index=False, float_format="{:.4g}".format)

    @property
    def _metric_columns(self) -> list[str]:
        column = self.metric.column
        return [] if column == "loss" else [f"train_{column}", f"val_{column}"]

    def _facts(self) -> list[tuple[str, str]]:
        where = ("run folder", str(self.folder))
        if self.evaluations.empty:
            return [where, ("epochs", "none has ended yet")]
        last = self.last
        return [
            self._validation() if self._measured else self._training(),
            ("sent per worker", _both(last.payload_bytes)),
            *self._uneven(),
            ("dense equivalent", _both(last.dense_bytes)),
            ("ratio", self._ratio()),
            ("on the network per worker", _both(last.network_bytes)),
            *self._nonfinite(),
            *self._noise(),
            ("time", f"{self.seconds:.1f} s"),
            *self._settings(),
            where,
        ]

    def _uneven(self) -> list[tuple[str, str]]:
        """Return what is sent in a step, on average and at most, where it is not always as much."""
        most = self.peak_bytes
        if math.isnan(most):
            return []
        sent = f"{in_units(self.mean_bytes)} on average, {in_units(most)} at most"
        return [("sent in a step", sent)]

    def _nonfinite(self) -> list[tuple[str, str]]:
        rows = self.nonfinite
        each = [f"{part.step.nunique()} steps {did}" for did, part in rows.groupby("did")]
        return [("not finite", ", ".join(each))] if each else []

    def _noise(self) -> list[tuple[str, str]]:
        scale = noise_scale_of(self)
        shown = [] if math.isnan(scale) else [f"{scale:.4g} samples, over the last epoch"]
        return [("gradient noise scale", each) for each in shown]

    def _validation(self) -> tuple[str, str]:
        last, best, metric = self.last, self.best, self.metric
        now = metric.row_in_words(last).removeprefix(f"{metric.title} ")
        least = metric.in_words(metric.value(best)).removeprefix(f"{metric.title} ")
        return (
            f"validation {metric.title}",
            f"{now} after {_length(last)} (best {least} {_place(best)})",
        )

    @property
    def _measured(self) -> bool:
        """Whether an evaluation measured anything, as a loop of one's own need not."""
        columns = self.evaluations[["val_loss", self.metric.score_column]]
        return bool(columns.notna().any(axis=None))

    def _training(self) -> tuple[str, str]:
        loss = self.last.train_loss
        return "training loss", f"{loss:.4f} after {_length(self.last)} (never evaluated)"

    def _settings(self) -> list[tuple[str, str]]:
        used = {name: self.used.get(name) for name in _IN_SUMMARY}
        usual = {"aggregate": "mean", "collective": "allgather"}
        used = {name: value for name, value in used.items() if usual.get(name) != value}
        listed = [f"{n} {value_in_words(v)}" for n, v in used.items() if v not in (None, "", 0)]
        return [("settings", _lines_of(listed))] if listed else []

    def _on(self, networks: str | Sequence[str]) -> list[tuple[str, str]]:
        return [(f"on {link.name}", price_in_words(self, link)) for link in networks_of(networks)]

    def _ratio(self) -> str:
        rows = self.evaluations[["dense_bytes", "payload_bytes"]]
        dense, payload = rows.diff().fillna(rows).iloc[-1]
        if not self.last.payload_bytes:
            return "nothing was sent"
        steady = f"{ratio(dense, payload):.1f}" if payload else "nothing sent"
        return f"{self.last.ratio:.1f} over the run, {steady} in the last epoch"


def _length(row: "pd.Series[Any]") -> str:
    whole = row.epochs == row.epoch + 1
    return counted(int(row.epochs), "epoch") if whole else counted(int(row.step), "step")


def _place(row: "pd.Series[Any]") -> str:
    return f"in epoch {row.epoch}" if row.epochs == row.epoch + 1 else f"at step {row.step}"


def _both(num_bytes: int) -> str:
    return f"{in_units(num_bytes)} ({num_bytes:,} bytes)"


def _lines_of(parts: Sequence[str]) -> str:
    """Return parts with semicolons between, in as many lines of a narrow terminal as they need."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) > _WIDEST:
            lines.append(part)
        else:
            lines[-1] += f"; {part}"
    return "\n".join(lines)
