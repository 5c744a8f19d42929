"""Reads the records of steps from the device, and writes their rows in blocks."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..config import Config
from ..results.tables import (
    SEGMENT_COLUMNS,
    LayerRow,
    NonfiniteRow,
    SegmentRow,
    TransferRow,
    read_table,
)
from ..simulator.record import StepRecord
from .errors import Diverged, last_good
from .loggers import Dashboards
from .run_folder import RunFolder
from .totals import (
    Totals,
    layer_rows,
    nonfinite_note,
    nonfinite_rows,
    segment_rows,
    transfer_rows,
)


@dataclass
class StepLog:
    """Adds steps to a totals, a run folder and the dashboards.

    A GPU's numbers wait until a block of `log_every` steps is written, so that nothing waits for
    them in between. On the CPU each step is read at once: the small tensors of records that stay
    would lie scattered between the large ones that come and go, until the heap has no hole left
    that a gradient fits, and grows by one at every step.
    """

    config: Config
    folder: RunFolder
    dashboards: Dashboards
    totals: Totals
    last: StepRecord | None = None  # that was read, of those unwritten
    unread: list[tuple[StepRecord, Tensor, float, int | None]] = field(default_factory=list)
    unwritten: int = 0  # steps
    transfers: list[TransferRow] = field(default_factory=list)
    layers: list[LayerRow] = field(default_factory=list)
    nonfinite: list[NonfiniteRow] = field(default_factory=list)
    segments: list[SegmentRow] = field(default_factory=list)
    ready: Mapping[str, tuple[float, float]] | None = None  # of `ready_segments`; None: not yet
    written: set[tuple[str, str]] | None = None  # segments and collectives in segments.csv

    def add(
        self,
        record: StepRecord,
        sums: Tensor,
        seconds: float,
        samples: int | None = None,
    ) -> None:
        """Add a step, of which `Totals.add` says the numbers.

        Raises `Diverged` once one is read whose numbers are not finite.
        """
        self.unread.append((record.without_output(), sums, seconds, samples))
        self.unwritten += 1
        if record.losses.device.type == "cpu":
            self.read()

    def write(self) -> StepRecord | None:
        """Have all steps in the folder's files, and return the last one, None if none was new.

        On a GPU this waits for it.
        """
        self.read()
        self.folder.flush_steps()
        self.folder.add_transfers(self.transfers)
        self.folder.add_segments(self.segments)
        self.folder.add_nonfinite(self.nonfinite)
        for step, rows in itertools.groupby(self.nonfinite, key=lambda row: row["step"]):
            self.folder.log(nonfinite_note(step, list(rows)))
        if self.config.log_layers:
            self.folder.add_layers(self.layers)
        self.transfers, self.layers, self.nonfinite, self.segments = [], [], [], []
        self.unwritten = 0
        self.dashboards.flush()
        last, self.last = self.last, None
        return last

    def read(self) -> None:
        """Add the steps that wait to the totals; on a GPU this waits for them."""
        unread, self.unread = self.unread, []
        for record, sums, seconds, samples in unread:
            self._require_finite(record)
            row = self.totals.add(record, sums, seconds, samples)
            self.folder.add_step(row)
            self.dashboards.step(row)
            self.transfers += transfer_rows(record)
            self.nonfinite += nonfinite_rows(record)
            self.segments += self._new_segments(record)
            if self.config.log_layers:
                self.layers += layer_rows(record)
            self.last = record

    def _new_segments(self, record: StepRecord) -> list[SegmentRow]:
        """Return the rows of segments that go a way for the first time."""
        if self.written is None:
            table = read_table(self.folder.folder / "segments.csv", SEGMENT_COLUMNS)
            self.written = set(zip(table["segment"], table["collective"], strict=True))
        pairs = {(t.segment, t.collective) for t in record.bytes.transfers}
        if pairs <= self.written:
            return []
        rows = segment_rows(record, self.ready or {})
        new = [r for r in rows if (r["segment"], r["collective"]) not in self.written]
        self.written |= pairs
        return new

    def _require_finite(self, record: StepRecord) -> None:
        if record.nonfinite is None and not record.losses_of_participants.isfinite().all():
            self._stop(record, "loss", record.losses_of_participants)
        for m in record.segments:
            if not m.compensated.isfinite().all():
                self._stop(record, f"norm of the gradient of {m.segment.name}", m.compensated)
            if not m.error.isfinite().all():
                half = "float16 " if self.config.value_dtype == "float16" else ""
                self._stop(record, f"{half}message of {m.segment.name}", m.error)

    def _stop(self, record: StepRecord, what: str, numbers: Tensor) -> None:
        """Write what came before, and raise for numbers [L] of which one is not finite."""
        self.write()
        worker = int((~numbers.isfinite()).nonzero()[0])
        stops = self.config.on_nonfinite == "stop"
        fix = "try a lower lr" + (", clip, or --on-nonfinite skip" if stops else " or clip")
        if record.step == 1 and what == "loss":  # which no lr has had a part in
            fix = "look for it in the data and the model's first parameters"
        text = (
            f"the {what} of worker {worker} became {float(numbers[worker])} at step "
            f"{record.step}, epoch {record.epoch}; {last_good(self.folder.folder)}; {fix}"
        )
        self.folder.log(text)
        raise Diverged(text)
