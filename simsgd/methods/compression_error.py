"""Norms, errors and bytes of each segment of a step, kept on the device until they are read.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from ..communication.cuts import Cuts
from ..communication.messages import Dense, Joined, Message, State
from ..communication.segments import Segment


@dataclass(frozen=True)
class SegmentMeasures:
    """One segment's numbers, each [L]; norms are squared."""

    segment: Segment
    payload: Tensor  # bytes, int64
    entries: Tensor  # numbers sent, int64
    compensated: Tensor  # of what was to be sent
    error: Tensor  # of what was to be sent less what was sent
    memory: Tensor  # of what stays behind

    @classmethod
    def empty(cls, segment: Segment, workers: int, device: torch.device) -> "SegmentMeasures":
        """Return the measures of a segment of which L `workers` sent nothing."""
        nothing = _zeros(workers, torch.int64, device)
        return cls(segment, nothing, nothing, *[_zeros(workers, torch.float64, device)] * 3)

    @property
    def relative_error(self) -> float:
        """Norm of the error over the norm of what was to be sent, over all workers."""
        return float((self.error.sum() / self.compensated.sum().clamp(min=1e-300)).sqrt())


def row_norms(x: Tensor) -> Tensor:
    """Return the norm of each row of `x` [L, n], [L]."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=1)
    return norms


def norms_of(x: Tensor, message: Message) -> Tensor:
    """Return the norm of each row of `x` [L, n], [L]; by segment, [S, L], if several are joined."""
    return group_norms(x, message.cuts) if isinstance(message, Joined) else row_norms(x)


def group_norms(x: Tensor, cuts: Cuts) -> Tensor:
    """Return the norm of each row of each segment in `x` [L, P], [S, L], all at once."""
    rows = [row for piece in cuts.split(x) for row in piece.unbind(0)]
    return torch.stack(torch._foreach_norm(rows)).view(len(cuts.sizes), -1)


def squared(measures: Sequence[SegmentMeasures]) -> list[SegmentMeasures]:
    """Return the measures of all segments with their norms squared, float64, all at once."""
    if not measures:
        return []
    norms = [(m.compensated, m.error, m.memory) for m in measures]
    squares = torch.stack([norm for own in norms for norm in own]).double().square()
    pairs = zip(measures, squares.view(len(measures), 3, -1).unbind(0), strict=True)
    return [replace(m, compensated=own[0], error=own[1], memory=own[2]) for m, own in pairs]


def measure(
    segment: Segment, compensated: Tensor, norms: Tensor, message: Message, memory_state: State
) -> SegmentMeasures:
    """Return the measures of a segment after its exchange, their norms not yet `squared`.

    `norms` are `row_norms` of `compensated` [L, n], taken before the memory took out what was
    sent; it may be the residual by now. A message that overflows has an infinite error.
    """
    residual = memory_state.get("residual")
    if residual is not None:
        error = memory = row_norms(residual)
    else:
        memory = _zeros(len(norms), norms.dtype, norms.device)
        whole = segment.dense or _is_whole(message, compensated)
        error = memory if whole else row_norms(_rest(compensated, message))
    lost = overflowed(message, len(norms))
    if lost is not None:
        error = torch.where(lost, torch.inf, error)
    return SegmentMeasures(
        segment, message.payload_bytes(), message.entries(), norms, error, memory
    )


def measure_group(
    segments: Sequence[Segment],
    compensated: Tensor,
    norms: Tensor,
    message: Joined,
    memory_state: State,
) -> list[SegmentMeasures]:
    """Return the measures of S `segments` that were exchanged together, as `measure` does.

    `norms` [S, L] are those of each one in `compensated` [L, P].
    """
    residual = memory_state.get("residual")
    whole = segments[0].dense or _is_whole(message.whole, compensated)
    memory = error = torch.zeros_like(norms)
    if residual is not None:
        memory = error = group_norms(residual, message.cuts)
    elif not whole:
        error = group_norms(_rest(compensated, message), message.cuts)
    lost = _overflowed_of_group(message, norms.shape[1])
    if lost is not None:
        error = torch.where(lost, torch.inf, error)
    numbers = zip(segments, message.parts, norms, error, memory, strict=True)
    return [
        SegmentMeasures(segment, part.payload_bytes(), part.entries(), *own)
        for segment, part, *own in numbers
    ]


def _overflowed_of_group(message: Joined, workers: int) -> Tensor | None:
    """Return the same as `overflowed` of each segment's messages, [S, L]."""
    whole = message.whole
    if isinstance(whole, Dense):
        if whole.wire_dtype != torch.float16:
            return None
        return group_norms((~whole.values.isfinite()).float(), message.cuts) > 0
    lost = [overflowed(part, workers) for part in message.parts]
    found = [own for own in lost if own is not None]
    return torch.stack(found) if found else None


def overflowed(message: Message, workers: int) -> Tensor | None:
    """Return which of L `workers`' messages hold what float16 cannot, [L]; None: not in float16."""
    if isinstance(inner := getattr(message, "inner", None), Message):
        return overflowed(inner, workers)
    if getattr(message, "wire_dtype", None) != torch.float16:
        return None
    numbers = [x for x in vars(message).values() if isinstance(x, Tensor) and x.is_floating_point()]
    rows = [~x.reshape(len(x), -1).isfinite().all(1) for x in numbers]
    return torch.stack([r if len(r) == workers else r.any().expand(workers) for r in rows]).any(0)


def of_all_workers(
    measures: Sequence[SegmentMeasures], rows: Callable[[Tensor], Tensor]
) -> list[SegmentMeasures]:
    """Return the measures with the numbers of all W workers; `rows` returns [W, ...] for [L, ...].

    Counts of up to 2**53 stay exact on the way.
    """
    names = ("payload", "entries", "compensated", "error", "memory")
    own = torch.stack([getattr(m, name).double() for m in measures for name in names], dim=1)
    numbers = rows(own).unflatten(1, (len(measures), len(names))).unbind(1)  # [W, 5] each
    return [
        SegmentMeasures(m.segment, payload.long(), entries.long(), *norms)
        for m, (payload, entries, *norms) in zip(
            measures, (each.unbind(1) for each in numbers), strict=True
        )
    ]


def relative_error(measures: Sequence[SegmentMeasures]) -> float:
    """Return the norm of all errors over that of all compensated gradients, where compressed."""
    compressed = [m for m in measures if not m.segment.dense]
    if not compressed:
        return 0.0
    norms = torch.stack([m.compensated for m in compressed]).sum()
    error = torch.stack([m.error for m in compressed]).sum()
    return float((error / norms.clamp(min=1e-300)).sqrt())


def memory_norm(measures: Sequence[SegmentMeasures]) -> float:
    """Return the norm of what stays behind, root mean square over workers."""
    return float(torch.stack([m.memory for m in measures]).sum(0).mean().sqrt())


@lru_cache(maxsize=64)  # every segment has the same, to be read only
def _zeros(workers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(workers, dtype=dtype, device=device)


def _is_whole(message: Message | None, compensated: Tensor) -> bool:
    """Return whether what was to be sent is what was sent, in the same memory."""
    return isinstance(message, Dense) and message.values.data_ptr() == compensated.data_ptr()


def _rest(compensated: Tensor, message: Message) -> Tensor:
    rest = compensated.clone()
    message.subtract_from_(rest)
    return rest
