"""Shows the progress of a run: a bar on a terminal or in a notebook, lines elsewhere."""

import importlib
import importlib.util
import math
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..results.tables import EpochRow, ratio
from ..results.text_table import wrapped
from ..units import in_units

if TYPE_CHECKING:  # whose torch the process of a sweep does without
    from ..simulator.components import Components

_WIDGETS = importlib.util.find_spec("ipywidgets") is not None  # a notebook's own bar needs them
tqdm = importlib.import_module("tqdm.auto" if _WIDGETS else "tqdm").tqdm

_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_BESIDE = 30  # characters of the bar, the time and what is between, of a run of hours


def is_seen() -> bool:
    """Return whether there is somebody to look at a bar: at a terminal, or in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    return on_terminal or getattr(shell, "kernel", None) is not None


class Progress:
    """A bar over steps, and lines that also go to the log."""

    def __init__(self, total: int, done: int, quiet: bool, log: Callable[[str], None]) -> None:
        self.quiet = quiet
        self.log = log
        self.lowered = 0
        self.of_graphs = ""
        self.bar = tqdm(
            total=total,
            initial=done,
            unit="step",
            disable=quiet or not is_seen(),
            dynamic_ncols=True,
            leave=False,
            bar_format=_BAR,
        )

    def close(self) -> None:
        """Take the bar away."""
        self.bar.close()

    def advance(self) -> None:
        """Count one step."""
        self.bar.update()

    def show(self, loss: float, metric: str, sent: int) -> None:
        """Show the loss, the metric in training in words, and one worker's bytes.

        A narrow terminal shows as many of them as it has room for beside the bar.
        """
        parts = [f"train: loss {loss:.3f}", metric, f"sent {in_units(sent)}"]
        narrow = sys.stderr is not None and sys.stderr.isatty()  # a notebook makes room
        wide = shutil.get_terminal_size().columns if narrow else 1000
        room = wide - _BESIDE - 2 * len(str(self.bar.total))
        while len(parts) > 1 and len(", ".join(parts)) > room:
            parts.pop()
        self.bar.set_postfix_str(", ".join(parts))

    def note_gradients(self, parts: "Components") -> None:
        """Say once that the engine takes fewer workers at a time, and what comes of CUDA graphs."""
        lowered, of_graphs = parts.engine.reduced_chunk, parts.graphs.note if parts.graphs else ""
        if lowered != self.lowered:
            self.lowered = lowered
            self.write(f"note: out of memory; from here on {lowered} workers at a time")
        if of_graphs != self.of_graphs:
            self.of_graphs = of_graphs
            self.write(f"note: {of_graphs}")

    def write(self, text: str) -> None:
        """Print and log a text; log alone from when nobody reads what is printed."""
        self.log(text)
        self.quiet = self.quiet or not is_printed(text)


def is_printed(text: str) -> bool:
    """Print a text beside a bar; return whether anybody may read it."""
    if sys.stdout is None:
        return False
    try:
        tqdm.write(fitted(text))
        sys.stdout.flush()
    except (OSError, ValueError):  # closed, as by `| head`, or on a full disk
        return False
    return True


def fitted(text: str) -> str:
    """Return a text with its lines broken between words where a terminal is narrower."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    return wrapped(text, shutil.get_terminal_size().columns)


def epoch_line(row: EpochRow, metric: str, within: bool = False) -> str:
    """Return the line of an epoch, or of an evaluation within one, for the terminal and the log.

    `metric` is the validation metric in words.
    """
    place = f"step {row['step']}" if within else f"epoch {row['epoch']:3d}"
    saved = ratio(row["dense_bytes"], row["payload_bytes"])
    sent = "nothing sent" if saved == math.inf else f"sent 1/{saved:.1f} of dense"
    if math.isnan(row["val_loss"]) and metric.endswith(("nan", "nan %")):
        metric = ""  # a loop of one's own that was not evaluated
    loss = f"loss {row['val_loss']:.4f}"
    val = "".join(f"val {words}, " for words in dict.fromkeys([loss, metric])) if metric else ""
    return (
        f"{place}: lr {row['lr']:g}, kept {row['kept']:g}, "
        f"train loss {row['train_loss']:.4f}, {val}{sent} so far"
    )


def no_best_line(metric: str) -> str:
    """Return a note for the end of a run in which no evaluation was the best.

    >>> no_best_line("error@1")
    'note: error@1 was a number in no evaluation, so that none is the best: there is no best.pt'
    """
    never = f"{metric} was a number in no evaluation"
    return f"note: {never}, so that none is the best: there is no best.pt"


def ending_line(step: int, sent: int, until: int) -> str:
    """Return how a run ended that was to end once each worker had sent `until` bytes.

    >>> ending_line(12, 900, 1000)
    'ended after step 12: each worker has sent 900 bytes, fewer than the 1,000 of until_bytes'
    """
    ended = f"ended after step {step}: each worker has sent {sent:,} bytes"
    return (
        f"{ended}, until_bytes is {until:,}"
        if sent >= until
        else (f"{ended}, fewer than the {until:,} of until_bytes")
    )
