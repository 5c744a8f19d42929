"""The result of comparing a simulation with real processes: numbers, verdict, figure."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ..config import Config
from ..results.figures.style import (
    BLUE,
    DARK_GRAY,
    GREEN,
    PURPLE,
    THEMES,
    VERMILION,
    save,
    screen_look,
)
from ..results.tables import columns_of, replace_table, table_of
from .link_times import LinkStep, LinkTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ComparedColumns(TypedDict):
    """The columns of verify.csv that compare a step."""

    step: int  # counted from 1
    loss: float  # simulated, mean over workers
    real_loss: float
    parameter_difference: float  # largest, relative
    loss_difference: float  # of one worker, largest, over the mean loss
    ledger_bytes: int  # of all workers in this step
    sent_bytes: int  # in the buffers that the processes handed to the network
    bytes_agree: int  # 1 if those two do, for each worker, else 0


class FlipColumns(TypedDict):
    """The columns of verify.csv that tell of a flip."""

    flip: str  # the step's first: message, kink, or empty for none
    flipped_worker: int  # -1: none
    flipped_segment: str
    flipped_entries: int  # of all messages of the step, that were decided differently
    decided_entries: int  # that either side sent, in a step with such a flip


class VerifyRow(ComparedColumns, FlipColumns):
    """A row of verify.csv."""


COLUMNS = columns_of(VerifyRow)
LIMITS = {"float64": (1e-10, 1e-10), "float32": (1e-5, 1e-2)}  # of parameters, of losses
_FEW, _SHARE = 2, 0.01  # so many flips of a step, or such a share of what was decided, are rounding
_BUSY = "their price, as beside other work: repeat it on an idle machine, with more steps"
_LINES = 10  # of the report


@dataclass
class Verdict:
    """How far a simulation and a real job agree, step by step."""

    dtype: str
    steps: int  # asked for
    plain: bool  # held to DistributedDataParallel and torch.optim
    folder: Path
    rows: list[VerifyRow] = field(default_factory=list)  # of verify.csv
    times: LinkTimes | None = None  # behind links

    def add(self, row: VerifyRow) -> None:
        """Take a step's row of verify.csv."""
        self.rows.append(row)

    def add_times(self, step: LinkStep) -> None:
        """Take what was measured in a step behind links."""
        assert self.times is not None
        self.times.add(step)

    @property
    def flips(self) -> list[VerifyRow]:
        """The steps in which something was decided differently."""
        return [row for row in self.rows if row["flip"]]

    @property
    def held(self) -> list[VerifyRow]:
        """The steps in which parameters must agree: in float32 those without a flip."""
        return [row for row in self.rows if self.dtype == "float64" or not row["flip"]]

    @property
    def parted(self) -> int:
        """The first step in which parameters must agree and do not; 0 for none."""
        most = LIMITS[self.dtype][0]
        return next((r["step"] for r in self.held if not r["parameter_difference"] <= most), 0)

    @property
    def parameters_agree(self) -> bool:
        """Whether parameters stay within their limit, and what flipped is as little as rounding."""
        few = [
            row["flipped_entries"] <= max(_FEW, _SHARE * row["decided_entries"])
            for row in self.flips
        ]
        return not self.parted and all(few)

    @property
    def losses_agree(self) -> bool:
        """Whether the mean losses stay within their limit."""
        most = LIMITS[self.dtype][1]
        pairs = [(row["loss"], row["real_loss"]) for row in self.rows]
        return all(abs(loss - real) <= most * abs(loss) for loss, real in pairs)

    @property
    def bytes_agree(self) -> bool:
        """Whether every worker sent what the ledger counts in every step, to the byte."""
        return all(row["bytes_agree"] for row in self.rows)

    @property
    def holds(self) -> bool:
        """Whether simulation and real run agree."""
        agree = self.parameters_agree and self.losses_agree and self.bytes_agree
        agree = agree and not (self.times and self.times.failed)
        return agree and len(self.rows) == self.steps

    def opening(self, config: Config) -> str:
        """Return what is compared with what."""
        what = f"prune {config.prune:g}" if config.prune else config.compressor or "no compression"
        what += f", {config.compress_layers}" if config.compress_layers else ""
        real = "of DistributedDataParallel and torch.optim" if self.plain else "of one worker each"
        real = real if config.devices == 1 else "of one device each"
        ranks = config.workers * config.devices
        behind = "" if self.times is None else f", behind links of {self.times.rate_in_words}"
        return (
            f"{config.model} on {config.dataset}, {what}, memory {config.memory}, {self.dtype}: "
            f"simulated, and as {ranks} real processes {real}{behind}"
        )

    def is_shown(self, row: VerifyRow) -> bool:
        """Return whether a step has a line of the report."""
        every = max(1, self.steps // _LINES)
        return row["step"] % every == 0 or row["step"] == 1 or not row["bytes_agree"]

    def line(self, row: VerifyRow) -> str:
        """Return a step's line of the report."""
        return (
            f"step {row['step']:4d}: loss {row['loss']:.6f}, "
            f"parameters differ by {row['parameter_difference']:.1e}, "
            f"losses by {row['loss_difference']:.1e}, "
            f"sent {row['sent_bytes']:,} of {row['ledger_bytes']:,} bytes in the ledger"
        )

    def summary(self) -> str:
        """Return the closing lines."""
        most = max(self.held or self.rows, key=lambda row: row["parameter_difference"])
        apart = max(row["loss_difference"] for row in self.rows)
        sent, weighed = (sum(row[c] for row in self.rows) for c in ("sent_bytes", "ledger_bytes"))
        facts = {
            "parameters differ by": f"{most['parameter_difference']:.1e} at step {most['step']}",
            "losses differ by": f"{apart:.1e}",
            "flips": self._flips(),
            "bytes really sent": f"{sent:,}",
            "bytes in the ledger": f"{weighed:,}",
            "verdict": self._judgement(),
            "run folder": str(self.folder),
        }
        width = max(map(len, facts))
        lines = [f"{what:<{width}}  {value}" for what, value in facts.items()]
        return "\n".join(lines if self.times is None else [self.times.summary(), *lines])

    def write(self) -> None:
        """Write verify.csv and verify.png into the run folder, behind links links.csv too."""
        if self.times is not None:
            self.times.write(self.folder)
        replace_table(self.folder / "verify.csv", table_of(self.rows, COLUMNS))
        save(self.figure(), self.folder / "verify.png", THEMES["screen"].dpi)

    @screen_look()
    def figure(self) -> "Figure":
        """Return both trajectories of the loss, and what lies between them."""
        from ..results.figures.canvas import NotebookFigure  # here: it imports matplotlib

        steps = [row["step"] for row in self.rows]
        figure = NotebookFigure(5.6, 5.4)
        above, below = figure.subplots(2, 1, sharex=True)
        above.plot(steps, [r["real_loss"] for r in self.rows], color=VERMILION, lw=3, label="real")
        simulated = {"color": BLUE, "linestyle": "--", "label": "simulated"}
        above.plot(steps, [r["loss"] for r in self.rows], **simulated)
        above.set_ylabel("training loss")
        above.legend()
        differences = {
            "parameter difference": ([row["parameter_difference"] for row in self.rows], GREEN),
            "loss difference": ([row["loss_difference"] for row in self.rows], PURPLE),
        }
        for label, (values, color) in differences.items():
            below.semilogy(steps, [max(value, 1e-18) for value in values], color=color, label=label)
        below.axhline(LIMITS[self.dtype][0], color=DARK_GRAY, lw=0.8, ls=":", label="limit")
        below.set(xlabel="step", ylabel="relative difference")
        below.legend()
        return figure

    def _flips(self) -> str:
        if not self.flips:
            return "none"
        first = self.flips[0]
        where = f"{first['flipped_segment']} of worker {first['flipped_worker']}"
        what = "at a kink, in" if first["flip"] == "kink" else "in the message for"
        steps = f"in {len(self.flips)} of {len(self.rows)} steps"
        return f"{steps}, the first at step {first['step']} {what} {where}"

    def _judgement(self) -> str:
        if self.holds:
            return "simulation and processes agree"
        short = len(self.rows) < self.steps
        failed = [f"only {len(self.rows)} of {self.steps} steps ran"] if short else []
        if self.parted:
            failed += [f"parameters from step {self.parted} on"]
        elif not self.parameters_agree:
            failed += ["more flips than rounding makes"]
        failed += [] if self.losses_agree else ["losses"]
        failed += [] if self.bytes_agree else ["bytes"]
        if self.times and self.times.failed and self.times.only_slower and not failed:
            seconds = ", ".join(self.times.failed)
            return f"inconclusive: parameters, losses and bytes agree, {seconds} are over {_BUSY}"
        failed += [] if self.times is None else self.times.failed
        return "they differ: " + ", ".join(failed)
