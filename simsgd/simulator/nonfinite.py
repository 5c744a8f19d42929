"""What a step does about gradients and messages that are not finite.

`stop` waits for nothing here: the numbers are read when the log is written. `skip` waits once a
step. With values in float16 on the network, `skip` and `zero` wait and copy what memories hold, as
an overflow shows after the memory was asked.

Letters: W workers, L hosted here, n elements of one segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..communication.segments import Layout
from ..gradients.contract import Gradients, Tensors
from ..methods.compression_error import SegmentMeasures
from .exchange_step import ExchangeStep
from .segment_state import SegmentState

Rows = Callable[[Tensor], Tensor]  # [W, ...] of [L, ...]


@dataclass
class Guard:
    """Keeps what is not finite out of memories, statistics and parameters, by `on_nonfinite`."""

    rule: str  # stop, skip or zero
    narrow: bool  # values travel in float16, and may overflow
    rows: Rows
    hosted: slice  # the L of all W workers
    wild: Tensor | None = field(default=None, init=False)  # [W] bool, of this step; None: not asked
    drawn: Tensor | None = field(default=None, init=False)  # [W] bool; None: all train
    passed: bool = field(default=True, init=False)  # whether the step is applied

    def judge(
        self, gradients: Gradients, before: Tensors, drawn: Tensor | None = None
    ) -> Gradients:
        """Return the gradients to go on with; `before` are the buffers before the step.

        A worker is wild if its loss or an entry of its gradient is not finite. With `skip` one wild
        worker of all W is enough, and the buffers are those of before; with `zero` the wild ones'
        gradients are 0 and their buffers those of before. So are those of wild workers that do not
        train in this round, by any rule, and nothing else comes of them; `drawn` [W] are those that
        train, None: all.
        """
        self.wild, self.passed, self.drawn = None, True, drawn
        if self.rule == "stop" and drawn is None:
            return gradients
        own = ~gradients.loss.isfinite()  # [L]
        for value in gradients.values.values():
            own = own | ~value.reshape(len(own), -1).isfinite().all(1)
        trains = torch.ones_like(own) if drawn is None else drawn[self.hosted].to(own.device)
        wild = self.rows(own & trains)
        self.wild = None if self.rule == "stop" else wild
        if self.rule == "skip":
            self.passed = not bool(wild.any())  # waits for the device
            if not self.passed:
                return replace(gradients, buffers=before)
        emptied = own if self.rule == "zero" else own & ~trains
        for value in [*gradients.values.values(), *(gradients.squares or {}).values()]:
            value.masked_fill_(_beside(emptied, value), 0)
        buffers = {
            name: torch.where(_beside(emptied, after), before[name], after)
            for name, after in gradients.buffers.items()
        }
        return replace(gradients, buffers=buffers)

    def heard(
        self,
        talk: ExchangeStep,
        segment_states: Sequence[SegmentState],
        pieces: Sequence[Tensor],
        squares: Tensors | None,
    ) -> tuple[list[Tensor], list[SegmentMeasures]]:
        """Return what `talk.of_gradients` does; with `passed` False if it is not to be applied.

        A message that overflows float16 makes its worker wild. With `zero` all is said once more
        with its gradient 0; if it overflows still, by what its memory holds, the step is skipped.
        Memories are then what they were.
        """
        if self.wild is None or not self.narrow:
            return talk.of_gradients(segment_states, pieces, squares)
        held = [_copied(segment_state.state_dict()) for segment_state in segment_states]
        for last in (self.rule == "skip", True):
            own_pieces = [piece.clone() for piece in pieces]
            heard, measures = talk.of_gradients(segment_states, own_pieces, squares)
            own = ~torch.stack([m.error.isfinite() for m in measures]).all(0)  # [L]
            sound = torch.stack([answer.isfinite().all() for answer in heard]).all()
            wild = self.rows(own | ~sound if last else own)
            if not bool(wild.any()) and bool(self.rows(sound.expand(len(own))).all()):
                return heard, measures
            self.wild = self.wild | wild
            for segment_state, state in zip(segment_states, held, strict=True):
                segment_state.load_state_dict(state)
            talk.channel.ledger.transfers.clear()
            if last:
                break
            for piece in pieces:
                piece.masked_fill_(own.unsqueeze(1), 0)
        self.passed = False
        return heard, [SegmentMeasures.empty(m.segment, len(own), own.device) for m in measures]


def silence(layout: Layout, workers: Tensor) -> list[SegmentMeasures]:
    """Return the measures of a step in which nobody of `workers` [L] spoke."""
    return [SegmentMeasures.empty(s, len(workers), workers.device) for s in layout.segments]


def _beside(own: Tensor, value: Tensor) -> Tensor:
    """Return `own` [L] in a shape that goes with `value` [L, ...]."""
    return own.view(-1, *[1] * (value.dim() - 1))


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {
        place: {name: value.clone() for name, value in held.items()}
        for place, held in state.items()
    }
