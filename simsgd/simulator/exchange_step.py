"""What workers say in one step, segment by segment, and what they hear.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..communication.transport import Channel
from ..gradients.contract import Tensors
from ..keyed_random import RandomKey
from ..methods.algorithms import Algorithm, ExchangeContext, GradientAlgorithm, ParameterAlgorithm
from ..methods.compression_error import SegmentMeasures, measured, squared_norms
from ..methods.compressors.none import NoCompression
from .segment_state import SegmentState
from .step_settings import Method


@dataclass(frozen=True)
class ExchangeStep:
    """One step's talk: everything that all segments have in common."""

    exchange: Algorithm
    channel: Channel
    method: Method
    draw: RandomKey  # at this step
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
            segment_state.tell(grad, squares)
            message, answer = self.exchange.gradients(
                said, self._speech(segment_state), segment_state.exchanged
            )
            memory.keep(said, message, segment_state.remembered)
            segment_state.forget()
            heard.append(memory.hear(answer, segment_state.remembered))
            measures.append(
                measured(segment_state.segment, said, norms, message, segment_state.remembered)
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
                own = SegmentMeasures.silent(segment_state.segment, len(x), x.device)
            else:
                about = spoken.said, spoken.norms, spoken.message, spoken.left
                own = measured(segment_state.segment, *about)
            measures.append(own)
            segment_state.store()
        return anything, measures

    def _speech(self, segment_state: SegmentState) -> ExchangeContext:
        return ExchangeContext(
            compressor=NoCompression() if self.method.flush else segment_state.compressor,
            state=segment_state.state,
            draw=self.draw.at(segment_state.segment.name),
            segment=segment_state.segment,
            channel=self.channel,
            memory=self.method.memory,
            remembered=segment_state.remembered,
            step=self.step,
            epoch=self.epoch,
            samples=self.samples,
        )
