"""A run's folder: read, summed up and drawn."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..units import in_units
from .network import networks_of
from .perplexity import told
from .run_tables import RunTables
from .step_times import in_words
from .tables import ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Run(RunTables):
    """What a run left in its folder, read again at each look.

    `epochs` and `steps` are pandas DataFrames; `plot` draws, `summary` sums up.
    """

    def plot(
        self, x: str = "epoch", y: str | Sequence[str] = "val_error1", path: Path | None = None
    ) -> "Figure":
        """Draw columns of epochs.csv or steps.csv against epoch, step or bytes."""
        from .figures.plot import plot_results  # here: drawing lies above reading

        return plot_results([self], x=x, y=y, path=path)

    def summary(self, networks: Sequence[str] = ()) -> str:
        """Return the closing table in plain text, with a line for each network, such as "10gbe"."""
        facts = [*self._facts(), *self._on(networks)]
        width = max(len(what) for what, _ in facts)
        return "\n".join(f"{what:<{width}}  {value}" for what, value in facts)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(what)}</th><td>{html.escape(value)}</td></tr>"
            for what, value in self._facts()
        )
        return f"<table>{rows}</table>{self.epochs.tail(5).to_html(index=False)}"

    def _facts(self) -> list[tuple[str, str]]:
        where = ("run folder", str(self.folder))
        if self.epochs.empty:
            return [where, ("epochs", "none has ended yet")]
        last = self.last
        return [
            self._validation(),
            ("sent per worker", _both(last.payload_bytes)),
            ("dense equivalent", _both(last.dense_bytes)),
            ("ratio", f"{last.ratio:.1f} over the run, {self._steady():.1f} in the last epoch"),
            ("on the network per worker", _both(last.network_bytes)),
            *self._wild(),
            ("time", f"{self.epochs['seconds'].sum():.1f} s"),
            where,
        ]

    def _wild(self) -> list[tuple[str, str]]:
        rows = self.nonfinite
        each = [f"{part.step.nunique()} steps {did}" for did, part in rows.groupby("did")]
        return [("not finite", ", ".join(each))] if each else []

    def _validation(self) -> tuple[str, str]:
        last, best, tokens = self.last, self.best, self.config.get("tokens")
        if tokens is None:
            what, now, least = "error@1", *(f"{e.val_error1:.2f} %" for e in (last, best))
        else:
            what, now = told(last.val_loss, tokens).split(" ", 1)
            least = told(best.val_loss, "word").split(" ", 1)[1]
        return (
            f"validation {what}",
            f"{now} after {last.epoch + 1} epochs (best {least} in epoch {best.epoch})",
        )

    def _on(self, networks: Sequence[str]) -> list[tuple[str, str]]:
        return [(f"on {link.name}", in_words(self, link)) for link in networks_of(networks)]

    def _steady(self) -> float:
        epochs = self.epochs[["dense_bytes", "payload_bytes"]]
        dense, payload = epochs.diff().fillna(epochs).iloc[-1]
        return ratio(dense, payload)


def _both(num_bytes: int) -> str:
    return f"{in_units(num_bytes)} ({num_bytes:,} bytes)"
