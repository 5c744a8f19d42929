"""What workers say in one step, segment by segment, and what they hear.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..communication.transport import Channel
from ..gradients.contract import Tensors
from ..keyed_random import Draw
from ..methods.algorithms import Exchange, GradientExchange, ParameterExchange, Speech
from ..methods.compression_error import SegmentMeasures, measured, squared_norms
from ..methods.compressors.none import NoCompression
from .segment_state import Voice
from .step_settings import Method


@dataclass(frozen=True)
class Round:
    """One step's talk: everything that all segments have in common."""

    exchange: Exchange
    channel: Channel
    method: Method
    draw: Draw  # at this step
    step: int  # steps done before this one
    epoch: int
    samples: Tensor | None  # that each worker holds, [W]; None: as many as the others

    def of_gradients(
        self, voices: Sequence[Voice], pieces: Sequence[Tensor], squares: Tensors | None
    ) -> tuple[list[Tensor], list[SegmentMeasures]]:
        """Return what is heard of gradients `pieces` [L, n] of each segment, and the measures.

        `squares` are those of the samples' gradients, if a compressor wants them.
        """
        assert isinstance(self.exchange, GradientExchange)
        memory, heard, measures = self.method.memory, [], []
        for voice, grad in zip(voices, pieces, strict=True):
            said = memory.compensate(grad, voice.recall())
            norms = squared_norms(said)
            voice.tell(grad, squares)
            message, answer = self.exchange.gradients(said, self._speech(voice), voice.exchanged)
            memory.keep(said, message, voice.remembered)
            voice.forget()
            heard.append(memory.hear(answer, voice.remembered))
            measures.append(measured(voice.segment, said, norms, message, voice.remembered))
            voice.store()
        return heard, measures

    @torch.no_grad()
    def of_parameters(
        self, voices: Sequence[Voice], pieces: Sequence[Tensor]
    ) -> tuple[bool, list[SegmentMeasures]]:
        """Exchange the parameters `pieces` [L, n] of each segment, which are changed in place.

        Returns whether anything was said, and the measures.
        """
        assert isinstance(self.exchange, ParameterExchange)
        measures, anything = [], False
        for voice, x in zip(voices, pieces, strict=True):
            voice.recall()
            spoken = self.exchange.parameters(x, voice.exchanged, self._speech(voice))
            anything = anything or spoken is not None
            if spoken is None:
                own = SegmentMeasures.silent(voice.segment, len(x), x.device)
            else:
                about = spoken.said, spoken.norms, spoken.message, spoken.left
                own = measured(voice.segment, *about)
            measures.append(own)
            voice.store()
        return anything, measures

    def _speech(self, voice: Voice) -> Speech:
        return Speech(
            compressor=NoCompression() if self.method.flush else voice.compressor,
            state=voice.state,
            draw=self.draw.at(voice.segment.name),
            segment=voice.segment,
            channel=self.channel,
            memory=self.method.memory,
            remembered=voice.remembered,
            step=self.step,
            epoch=self.epoch,
            samples=self.samples,
        )
