"""The record of one step.

Letters: W workers, L hosted here, b samples each, M passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..communication.ledger import StepBytes
from ..communication.node_bytes import WithinNodes
from ..communication.segments import Layout
from ..gradients import Gradients
from ..gradients.trees import Tree, leaves, mapped
from ..methods.algorithms import GradientAlgorithm
from ..methods.compression_error import SegmentMeasures, memory_norm, of_all_workers, relative_error
from .components import Components
from .gradient_noise import GradientNoise
from .step_settings import StepSettings
from .step_timer import StepTimer


@dataclass(frozen=True, repr=False)
class StepRecord:
    """What one step did. Reading a number waits for the device; holding the record does not."""

    step: int  # steps done, this one included
    epoch: int
    lr: float
    nominal: float | None  # fraction of compressed segments that is sent, if the settings say it
    losses: Tensor  # each worker's mean loss, [W]
    output: Tree  # the model's, for the samples of workers hosted here, [L * M * b, ...]
    bytes: StepBytes
    segments: list[SegmentMeasures]
    timer: StepTimer
    nonfinite: Tensor | None = None  # workers with such a number, [W] bool; None: not asked
    applied: bool = True  # False: the step was skipped
    participants: Tensor | None = None  # that train in this round, [W] bool, on the CPU; None: all
    noise: GradientNoise | None = None  # with the setting noise_scale
    within: WithinNodes | None = None  # bytes within nodes, with the setting cluster

    def without_output(self) -> "StepRecord":
        """Return the record with an empty output, so that many can be held."""
        return replace(self, output=leaves(self.output)[0].new_empty(0))

    @property
    def kept(self) -> float:
        """Fraction of the compressed segments that is sent: as set, else as it came out."""
        if self.nominal is not None:
            return self.nominal
        compressed = [m for m in self.segments if not m.segment.dense]
        entries = sum(m.entries.double().mean() for m in compressed)
        return float(entries / max(1, sum(m.segment.n for m in compressed)))

    @property
    def sent_elements(self) -> list[int]:
        """Numbers that each worker sent, indices and scales apart."""
        sent: list[int] = torch.stack([m.entries for m in self.segments]).sum(0).tolist()
        return sent

    @property
    def relative_error(self) -> float:
        """Norm of what was to be sent and was not, over the norm of what was to be sent."""
        return relative_error(self.segments)

    @property
    def memory_norm(self) -> float:
        """Norm of what stays behind, root mean square over workers."""
        return memory_norm(self.segments)

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale tr(Sigma) / |G|^2 in samples; nan if not measured, see `noise`."""
        return math.nan if self.noise is None else float(self.noise.scale)

    @property
    def loss(self) -> float:
        """Mean loss over the global batch: over the workers that train and are not `nonfinite`."""
        return self.mean_of(self.losses)

    @property
    def losses_of_participants(self) -> Tensor:
        """Losses [W], with 0 for the workers that do not train."""
        if self.participants is None:
            return self.losses
        return self.losses.where(self.participants.to(self.losses.device), 0.0)

    def mean_of(self, losses: Tensor) -> float:
        """Return the mean of losses [W] over the workers whose own count."""
        counted = torch.ones_like(losses, dtype=torch.bool)
        if self.participants is not None:
            counted &= self.participants.to(counted.device)
        if self.nonfinite is not None:
            counted &= ~self.nonfinite
        return float(losses[counted].mean())

    def of_participants(self, samples: Tree, hosted: slice) -> Tree:
        """Return those of `samples` [L * M * b, ...] whose workers, hosted here, train."""
        if self.participants is None:
            return samples
        own = self.participants[hosted]
        rows = own.nonzero().flatten()

        def of_leaf(leaf: Tensor) -> Tensor:
            each: Tensor = leaf.unflatten(0, (len(own), -1))  # [L, M * b, ...]
            return each[rows].flatten(0, 1)

        return mapped(of_leaf, samples)

    def num_of_participants(self, num: int) -> int:
        """Return how many of `num` samples or tokens, as many of each worker, count."""
        if self.participants is None:
            return num
        return num * int(self.participants.sum()) // len(self.participants)

    @property
    def payload_bytes(self) -> list[int]:
        """Bytes of each worker's messages."""
        payload: list[int] = self.bytes.payload.tolist()
        return payload

    @property
    def network_bytes(self) -> int:
        """Bytes that all workers together put on the network."""
        return int(self.bytes.network)

    @property
    def dense_bytes(self) -> int:
        """Bytes of one worker's uncompressed gradient."""
        return self.bytes.dense

    @property
    def ratio(self) -> float:
        """Dense bytes over payload bytes, mean over workers."""
        payload = self.payload_bytes
        return self.dense_bytes * len(payload) / sum(payload) if sum(payload) else math.inf

    def __repr__(self) -> str:
        return (
            f"StepRecord(step={self.step}, epoch={self.epoch}, loss={self.loss:.4f}, "
            f"lr={self.lr:g}, kept={self.kept:g}, ratio={self.ratio:.1f})"
        )


def record_of(
    parts: Components,
    settings: StepSettings,
    gradients: Gradients,
    measures: Sequence[SegmentMeasures],
    timer: StepTimer,
    step: int,
    epoch: int,
    unused: frozenset[str] = frozenset(),
    noise: GradientNoise | None = None,
) -> StepRecord:
    """Return the record of the step that just ended, of all W workers, and close its ledger.

    Where gradients are exchanged, segments of parameters that all are `unused` have none: they
    are not sent, and do not count as dense bytes.
    """
    gather = parts.transport.all_gather_rows
    without = unused if isinstance(parts.algorithm, GradientAlgorithm) else frozenset[str]()
    sent = [s.parameters for s in parts.layout.segments if not without.issuperset(s.parameters)]
    params = [parts.params[name] for names in sent for name in names]
    dense = sum(p.numel() * p.element_size() for p in params)
    return StepRecord(
        step=step,
        epoch=epoch,
        lr=settings.lr,
        nominal=settings.kept,
        losses=gather(gradients.loss),
        output=mapped(_flat, gradients.output),
        bytes=parts.channel.ledger.close(dense, gather),
        segments=list(measures) if parts.hosts_all else of_all_workers(measures, gather),
        timer=timer,
        nonfinite=parts.guard.nonfinite,
        applied=parts.guard.applied,
        participants=parts.guard.participants,
        noise=noise,
        within=_within(parts),
    )


def _within(parts: Components) -> WithinNodes | None:
    """Return what devices send within nodes that train: gradients to their first, models back."""
    if parts.recipe.devices == 1:
        return None
    participants, nodes = parts.guard.participants, parts.recipe.workers
    train = nodes if participants is None else int(participants.sum())
    groups: dict[torch.dtype, int] = {}
    for p in parts.params.values():
        groups[p.dtype] = groups.get(p.dtype, 0) + p.numel()
    sizes = [(n, dtype.itemsize) for dtype, n in groups.items()]
    return WithinNodes.of(sizes, parts.recipe.devices, nodes, train)


def _flat(output: Tensor) -> Tensor:
    return output.flatten(0, 1) if output.dim() > 1 else output  # also of one number a worker


def no_measures(layout: Layout, workers: Tensor) -> list[SegmentMeasures]:
    """Return the measures of a step in which none of `workers` [L] sent anything."""
    return [SegmentMeasures.empty(s, len(workers), workers.device) for s in layout.segments]
