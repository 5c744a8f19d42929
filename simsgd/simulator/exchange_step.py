"""What workers say in one step, segment by segment, and what they hear.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..communication.transport import Channel
from ..gradients.contract import Tensors
from ..keyed_random import RandomKey
from ..methods.algorithms import Algorithm, ExchangeContext, GradientAlgorithm, ParameterAlgorithm
from ..methods.compression_error import SegmentMeasures, measure, squared_norms
from ..methods.compressors.none import NoCompression
from .segment_state import SegmentState
from .step_settings import Method


@dataclass(frozen=True)
class ExchangeStep:
    """One step's talk: everything that all segments have in common."""

    exchange: Algorithm
    channel: Channel
    method: Method
    key: RandomKey  # at this step
    step: int  # steps done before this one
    epoch: int
    samples: Tensor | None  # that each worker holds, [W]; None: as many as the others

    def of_gradients(
        self,
        segment_states: Sequence[SegmentState],
        pieces: Sequence[Tensor],
        squares: Tensors | None,
    ) -> tuple[list[Tensor], list[SegmentMeasures]]:
        """Return what is heard of gradients `pieces` [L, n] of each segment, and the measures.

        `squares` are those of the samples' gradients, if a compressor wants them.
        """
        assert isinstance(self.exchange, GradientAlgorithm)
        memory, heard, measures = self.method.memory, [], []
        for segment_state, grad in zip(segment_states, pieces, strict=True):
            said = memory.compensate(grad, segment_state.recall())
            norms = squared_norms(said)
            speech = replace(
                self._speech(segment_state),
                gradient=grad,
                squares=_of_segment(segment_state, grad, squares),
            )
            message, answer = self.exchange.gradients(said, speech, segment_state.exchanged)
            memory.update(said, message, segment_state.remembered)
            heard.append(memory.on_aggregate(answer, segment_state.remembered))
            measures.append(
                measure(segment_state.segment, said, norms, message, segment_state.remembered)
            )
            segment_state.store()
        return heard, measures

    @torch.no_grad()
    def of_parameters(
        self, segment_states: Sequence[SegmentState], pieces: Sequence[Tensor]
    ) -> tuple[bool, list[SegmentMeasures]]:
        """Exchange the parameters `pieces` [L, n] of each segment, which are changed in place.

        Returns whether anything was said, and the measures.
        """
        assert isinstance(self.exchange, ParameterAlgorithm)
        measures, anything = [], False
        for segment_state, x in zip(segment_states, pieces, strict=True):
            segment_state.recall()
            spoken = self.exchange.parameters(
                x, segment_state.exchanged, self._speech(segment_state)
            )
            anything = anything or spoken is not None
            if spoken is None:
                own = SegmentMeasures.empty(segment_state.segment, len(x), x.device)
            else:
                about = spoken.said, spoken.norms, spoken.message, spoken.left
                own = measure(segment_state.segment, *about)
            measures.append(own)
            segment_state.store()
        return anything, measures

    def _speech(self, segment_state: SegmentState) -> ExchangeContext:
        return ExchangeContext(
            compressor=NoCompression() if self.method.flush else segment_state.compressor,
            state=segment_state.state,
            key=self.key.fold_in(segment_state.segment.name),
            segment=segment_state.segment,
            channel=self.channel,
            memory=self.method.memory,
            remembered=segment_state.remembered,
            step=self.step,
            epoch=self.epoch,
            samples=self.samples,
        )


def _of_segment(
    segment_state: SegmentState, gradient: Tensor, squares: Tensors | None
) -> Tensor | None:
    """Return the squares of one segment, [L, n], if its compressor wants them."""
    if squares is None or not segment_state.compressor.needs_squares:
        return None
    names = segment_state.segment.parameters
    return torch.cat([squares[name].reshape(len(gradient), -1) for name in names], dim=1)
