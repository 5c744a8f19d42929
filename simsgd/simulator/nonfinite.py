"""Keeps gradients and messages that are not finite out of a step.

`stop` waits for nothing here: the numbers are read when the log is written. `skip` waits once a
step. With values in float16 on the network, `skip` and `zero` wait and copy what memories keep, as
an overflow shows only after the memory was updated.

Letters: W workers, L hosted here, n elements of one segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..communication.ledger import Ledger
from ..gradients.contract import Gradients, Tensors
from ..methods.compression_error import SegmentMeasures
from .segment_state import AllGather, SavedState, SegmentState

Exchanged = tuple[list[Tensor], list[SegmentMeasures]]  # aggregated [n] and measures, by segment
Exchange = Callable[[Sequence[Tensor]], Exchanged]  # of gradients [L, n], by segment


@dataclass
class NonfiniteGuard:
    """Keeps what is not finite out of memories, statistics and parameters, by `on_nonfinite`."""

    rule: str  # stop, skip or zero
    float16: bool  # values travel in float16, and may overflow
    all_gather: AllGather
    hosted: slice  # the L of all W workers
    nonfinite: Tensor | None = field(default=None, init=False)  # [W] bool; None: not asked
    participants: Tensor | None = field(default=None, init=False)  # [W] bool; None: all train
    applied: bool = field(default=True, init=False)  # whether the step changes the parameters

    def admit(
        self, gradients: Gradients, before: Tensors, participants: Tensor | None = None
    ) -> Gradients:
        """Return the gradients to continue with; `before` are the buffers before the step.

        A worker is nonfinite if its loss or an entry of its gradient is, or one of its buffers that
        was finite before. With `skip` one such
        worker of all W is enough, and the buffers are those of before; with `zero` their gradients
        are 0 and their buffers those of before. So are those of nonfinite workers that do not
        train in this round, by any rule, and nothing else comes of them; `participants` [W] are
        those that train, None: all.
        """
        self.nonfinite, self.applied, self.participants = None, True, participants
        if self.rule == "stop" and participants is None:
            return gradients
        own = ~gradients.loss.isfinite()  # [L]
        for value in gradients.values.values():
            own = own | ~_finite(value)
        for name, after in gradients.buffers.items():
            own = own | (~_finite(after) & _finite(before[name]))
        trains = torch.ones_like(own)
        if participants is not None:
            trains = participants[self.hosted].to(own.device)
        nonfinite = self.all_gather(own & trains)
        self.nonfinite = None if self.rule == "stop" else nonfinite
        if self.rule == "skip":
            self.applied = not bool(nonfinite.any())  # waits for the device
            if not self.applied:
                return replace(gradients, buffers=before)
        emptied = own if self.rule == "zero" else own & ~trains
        for value in [*gradients.values.values(), *(gradients.squares or {}).values()]:
            value.masked_fill_(_aligned(emptied, value), 0)
        buffers = {
            name: torch.where(_aligned(emptied, after), before[name], after)
            for name, after in gradients.buffers.items()
        }
        return replace(gradients, buffers=buffers)

    def protect(
        self,
        exchange: Exchange,
        gradients: Sequence[Tensor],
        states: Sequence[SegmentState],
        ledger: Ledger,
    ) -> Exchanged:
        """Return what `exchange` gives for `gradients`; `applied` is False if it must not be used.

        A worker whose message overflows float16 is nonfinite. With `zero` all is exchanged once
        more with its gradient 0; if it overflows still, by what its memory keeps, the step is
        skipped. Memories are then what they were.
        """
        if self.nonfinite is None or not self.float16:
            return exchange(gradients)
        saved = [_copied(state.state_dict()) for state in states]
        for last in (self.rule == "skip", True):
            aggregated, measures = exchange([gradient.clone() for gradient in gradients])
            own = ~torch.stack([m.error.isfinite() for m in measures]).all(0)  # [L]
            finite = torch.stack([each.isfinite().all() for each in aggregated]).all()
            nonfinite = self.all_gather(own | ~finite if last else own)
            if not bool(nonfinite.any()) and bool(self.all_gather(finite.expand(len(own))).all()):
                return aggregated, measures
            self.nonfinite = self.nonfinite | nonfinite
            for state, kept in zip(states, saved, strict=True):
                state.load_state_dict(kept)
            ledger.transfers.clear()
            if last:
                break
            for gradient in gradients:
                gradient.masked_fill_(own.unsqueeze(1), 0)
        self.applied = False
        return aggregated, [
            SegmentMeasures.empty(m.segment, len(own), own.device) for m in measures
        ]


def _finite(rows: Tensor) -> Tensor:
    """Return whether all numbers of each row are finite, [L] bool."""
    return rows.reshape(len(rows), -1).isfinite().all(1)


def _aligned(own: Tensor, value: Tensor) -> Tensor:
    """Return `own` [L] in a shape that goes with `value` [L, ...]."""
    return own.view(-1, *[1] * (value.dim() - 1))


def _copied(state: SavedState) -> SavedState:
    return {
        place: {name: value.clone() for name, value in kept.items()}
        for place, kept in state.items()
    }
