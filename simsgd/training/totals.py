"""Adds up the steps of a run, and makes the rows of its tables.

Letters: W workers, L hosted here, B global batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

import torch
from torch import Tensor

from ..communication.ledger import NEIGHBORS, Transfer
from ..results.metric import Metric
from ..results.pricing import fused_messages
from ..results.tables import (
    EpochRow,
    LayerRow,
    NodeStepRow,
    NoiseStepRow,
    NonfiniteRow,
    SegmentRow,
    StepRow,
    TransferRow,
    WorkerRow,
    ratio,
)
from ..simulator.record import StepRecord


class Measures(TypedDict):
    """How well a model does: mean loss, errors in percent, a metric; nan if not measured."""

    loss: float
    error1: float
    error5: float
    metric: float  # a function of the user's own


@dataclass
class Totals:
    """Sums over the steps of this epoch, and over those of the whole run."""

    samples: int = 0  # of this epoch, or tokens
    steps: int = 0
    loss: float = 0.0
    wrong1: float = 0  # nan where targets are no classes
    wrong5: float = 0  # nan too where there are no more than five
    metric: float = 0.0  # of the user's own, times samples; nan: there is none
    seconds: float = 0.0
    lr: float = 0.0  # at the last step
    kept: float = 1.0
    payload_bytes: int = 0  # of the whole run, over all workers
    network_bytes: int = 0
    dense_bytes: int = 0  # of the whole run, of one worker

    def add(
        self,
        record: StepRecord,
        sums: Tensor,
        seconds: float,
        samples: int | None = None,
    ) -> StepRow:
        """Add a step and return its row of steps.csv; this waits for the device.

        `sums` [4] are those of `Metric.sums` over targets: samples, tokens or pixels. `samples` are
        those, or the tokens, that trained; None: as many.
        """
        payload, loss = record.payload_bytes, record.loss
        wrong1, wrong5, metric, targets = sums.tolist()
        guessed = int(targets)
        leaving, arriving = record.bytes.on_links()
        if not math.isnan(loss):  # else no worker has a loss that is finite
            self.samples += guessed
            self.steps += 1
            self.loss += loss
            self.wrong1 += wrong1
            self.wrong5 += wrong5
            self.metric += metric
        self.seconds += seconds
        self.lr, self.kept = record.lr, record.kept
        self.payload_bytes += sum(payload)
        self.network_bytes += record.network_bytes
        self.dense_bytes += record.dense_bytes
        row: StepRow = {
            "step": record.step,
            "epoch": record.epoch,
            "loss": loss,
            "lr": record.lr,
            "kept": record.kept,
            "payload_bytes": round(sum(payload) / len(payload)),
            "payload_bytes_min": min(payload),
            "payload_bytes_max": max(payload),
            "dense_bytes": record.dense_bytes,
            "network_bytes": round(record.network_bytes / len(payload)),
            "received_bytes": round(sum(arriving) / len(payload)),
            "received_bytes_max": max(arriving),
            "busiest_link_bytes": max(*leaving, *arriving),
            "sent_elements": round(sum(record.sent_elements) / len(payload)),
            "relative_error": record.relative_error,
            "memory_norm": record.memory_norm,
            "compute_seconds": record.timer.seconds("compute"),
            "compression_seconds": record.timer.seconds("compression"),
            "seconds": seconds,
            "samples": guessed if samples is None else samples,
        }
        return _with_nodes(_with_noise(row, record), record)

    def epoch_row(
        self, epoch: int, step: int, workers: int, measured: Measures, spread: float
    ) -> EpochRow:
        """Return the row of epochs.csv for an epoch that ended with `step` steps done.

        `measured` are those of the validation split, and `spread` is the consensus distance.
        """
        return {
            "epoch": epoch,
            "step": step,
            "lr": self.lr,
            "kept": self.kept,
            "train_loss": self.loss / self.steps if self.steps else math.nan,
            "train_error1": self.train_error1,
            "train_error5": self._mean(100 * self.wrong5),
            "val_loss": measured["loss"],
            "val_error1": measured["error1"],
            "val_error5": measured["error5"],
            "payload_bytes": round(self.payload_bytes / workers),
            "dense_bytes": self.dense_bytes,
            "network_bytes": round(self.network_bytes / workers),
            "ratio": ratio(self.dense_bytes, round(self.payload_bytes / workers)),
            "consensus_distance": spread,
            "seconds": self.seconds,
        }

    @property
    def train_error1(self) -> float:
        """Error@1 of this epoch's training batches so far, in percent."""
        return self._mean(100 * self.wrong1)

    def train_measures(self, metric: Metric) -> dict[str, float]:
        """Return the error, and a metric of the user's own, of this epoch's batches so far."""
        own = dict.fromkeys(metric.own_columns[:1], self._mean(self.metric))
        return {"train_error1": self.train_error1, **own}

    def own_measures(self, metric: Metric, measured: Measures) -> dict[str, float]:
        """Return the columns of a metric of the user's own, and what they are in this epoch."""
        values = self._mean(self.metric), measured["metric"]
        return dict(zip(metric.own_columns, values, strict=False))

    def _mean(self, total: float) -> float:
        return total / self.samples if self.samples else math.nan

    def next_epoch(self) -> None:
        """Begin the sums of an epoch anew."""
        self.samples = self.steps = 0
        self.wrong1 = self.wrong5 = self.loss = self.metric = self.seconds = 0.0

    def state_dict(self) -> dict[str, float]:
        """Return the sums as plain values."""
        return asdict(self)


def mean_measures(each: Sequence[Measures]) -> Measures:
    """Return the mean over workers."""
    n = len(each)
    return {
        "loss": sum(one["loss"] for one in each) / n,
        "error1": sum(one["error1"] for one in each) / n,
        "error5": sum(one["error5"] for one in each) / n,
        "metric": sum(one["metric"] for one in each) / n,
    }


def worker_row(epoch: int, worker: int, step: int, measured: Measures) -> WorkerRow:
    """Return a row of workers.csv."""
    return {
        "epoch": epoch,
        "worker": worker,
        "step": step,
        "val_loss": measured["loss"],
        "val_error1": measured["error1"],
        "val_error5": measured["error5"],
    }


def _with_noise(row: StepRow, record: StepRecord) -> StepRow:
    """Return a row of steps.csv with the gradient noise of the step, if it was measured."""
    if record.noise is None:
        return row
    square, variance = float(record.noise.square), float(record.noise.variance)
    return NoiseStepRow(
        **row,
        gradient_square=square,
        gradient_variance=variance,
        noise_scale=record.noise_scale,
    )


def _with_nodes(row: StepRow, record: StepRecord) -> StepRow:
    """Return a row of steps.csv with the bytes within nodes, if workers are such."""
    if record.within is None:
        return row
    mean, most = record.within.mean, record.within.busiest
    return NodeStepRow(**row, within_bytes=mean, within_link_bytes=most)


def layer_rows(record: StepRecord) -> list[LayerRow]:
    """Return a step's rows of layers.csv; this waits for the device."""
    return [
        {
            "step": record.step,
            "segment": m.segment.name,
            "elements": m.segment.n,
            "payload_bytes": round(m.payload.double().mean().item()),
            "sent_elements": round(m.entries.double().mean().item()),
            "relative_error": m.relative_error,
            "memory_norm": m.memory.mean().sqrt().item(),
        }
        for m in record.segments
    ]


def nonfinite_rows(record: StepRecord) -> list[NonfiniteRow]:
    """Return a step's rows of nonfinite.csv, one a worker; none if all was finite."""
    if record.nonfinite is None:
        return []
    did = "zeroed" if record.applied else "skipped"
    workers = record.nonfinite.nonzero().flatten().tolist()
    return [{"step": record.step, "worker": worker, "did": did} for worker in workers]


def nonfinite_note(step: int, rows: Sequence[NonfiniteRow]) -> str:
    """Return the line of the log for a step's rows of nonfinite.csv."""
    workers = ", ".join(str(row["worker"]) for row in rows)
    what = "the step was skipped" if rows[0]["did"] == "skipped" else "its gradient was zeroed"
    return f"note: not finite at step {step}, worker {workers}: {what}"


def transfer_rows(record: StepRecord) -> list[TransferRow]:
    """Return a step's rows of transfers.csv; this waits for the device."""
    by_collective: dict[str, list[Transfer]] = {}
    for transfer in record.bytes.transfers:
        by_collective.setdefault(transfer.collective, []).append(transfer)
    return [
        _transfer_row(record, collective, transfers)
        for collective, transfers in by_collective.items()
    ]


def _transfer_row(
    record: StepRecord, collective: str, transfers: Sequence[Transfer]
) -> TransferRow:
    payload = torch.stack([t.payload for t in transfers])  # [transfers, W]
    each = payload.sum(0)  # [W]
    sums = torch.stack([each.sum(), each.max(), payload.amax(1).sum()])
    total, most, slowest = sums.tolist()
    degrees = [int(t.degree.max()) for t in transfers if t.degree is not None]
    return {
        "step": record.step,
        "collective": collective,
        "segments": len(record.segments),
        "messages": len(transfers),
        "rounds": fused_messages((t.segment, t.operation) for t in transfers),
        "degree": max(degrees, default=0),
        "payload_bytes": round(total / payload.shape[1]),
        "payload_bytes_max": most,
        "slowest_bytes": slowest,
        "sending": len({t.segment for t in record.bytes.transfers}),
    }


def segment_rows(record: StepRecord, ready: Mapping[str, tuple[float, float]]) -> list[SegmentRow]:
    """Return a row of segments.csv for each segment, collective and operation of a step.

    `ready` are parts of the backward pass by segment, as `ready_segments` returns them. Messages
    between neighbors are counted in place of their operation: to whom they go may change from step
    to step. This waits for the device.
    """
    known = {m.segment.name: m.segment for m in record.segments}  # of the model
    sent: dict[tuple[str, str], list[Transfer]] = {}
    ways: dict[tuple[str, str, str], list[Transfer]] = {}
    for transfer in record.bytes.transfers:
        name, collective = transfer.segment, transfer.collective
        every = sent.setdefault((name, collective), [])
        every.append(transfer)
        operation = f"message {len(every)}" if collective == NEIGHBORS else transfer.operation
        ways.setdefault((name, collective, operation), []).append(transfer)
    return [
        {
            "step": record.step,
            "segment": name,
            "elements": known[name].n if name in known else 0,
            "compressed": int(name in known and not known[name].dense),
            "ready": ready.get(name, (1.0, 1.0))[0],
            "sendable": ready.get(name, (1.0, 1.0))[1],
            "collective": collective,
            "operation": operation,
            "messages": len(transfers),
            "payload_bytes": round(
                torch.stack([t.payload for t in transfers]).sum(0).double().mean().item()
            ),
        }
        for (name, collective, operation), transfers in ways.items()
    ]
