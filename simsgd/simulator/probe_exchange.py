"""Runs the exchange of one segment for a round of steps, and says what was sent.

Letters: W workers, L of them as rows here, n elements of one segment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..communication.ledger import Ledger, Transfer, bytes_on_links
from ..communication.messages import Message
from ..communication.messages.contract import term
from ..communication.segments import Segment
from ..communication.transport import Channel, InProcess
from ..communication.wire import Wire
from ..keyed_random import RandomKey, derived
from ..methods.algorithms import (
    Algorithm,
    ExchangeContext,
    GradientAlgorithm,
    ParameterAlgorithm,
)
from ..methods.compressors import Compressor, StepInfo
from ..methods.compressors.none import NoCompression
from ..recipe import Recipe

if TYPE_CHECKING:
    from .step_bytes import SegmentSize

_BEGUN = 1_000_000  # an even step and epoch, so late that a method which begins late has begun


@dataclass(frozen=True)
class Sent:
    """What one collective carries of one segment."""

    collective: str  # as in the ledger
    direction: str  # up: from the workers; down: to them
    payload_bytes: int  # of one worker's buffers, a copy for each neighbor; the most of any worker
    network_bytes: int  # of all workers together
    received_bytes: int  # that reach one worker, the mean
    link_bytes: int  # one way on the busiest link
    words: str  # the arithmetic of the payload
    step: int = 0  # of the round
    operation: str = ""  # as in the ledger
    of_each: tuple[int, ...] = ()  # payload bytes by worker, if they differ


def busiest(every: Iterable[Sent]) -> int:
    """Return the bytes that the worker sends who sends most of one segment."""
    up = [sent for sent in every if sent.direction == "up"]
    differ = [sent.of_each for sent in up if sent.of_each]
    most = max(map(sum, zip(*differ, strict=True)), default=0)
    return most + sum(sent.payload_bytes for sent in up if not sent.of_each)


@dataclass(frozen=True)
class Exchange:
    """An algorithm and the settings that its exchange is tried with."""

    algorithm: Algorithm
    recipe: Recipe

    @property
    def period(self) -> int:
        """Steps of a round."""
        return self.algorithm.repeats_after(_BEGUN)

    @property
    def votes(self) -> bool:
        """Whether the workers vote."""
        return self.recipe.aggregate == "vote"

    @property
    def rows(self) -> int:
        """How many workers are simulated: one where all send alike, to all."""
        return 1 if self.algorithm.workers_send_alike else self.recipe.workers

    def drawn(self, n: int, dtype: torch.dtype, *place: str) -> Tensor:
        """Return gradients drawn from the normal distribution, [L, n]."""
        seed = derived(self.recipe.seed, "sizing", *place)
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.rows, n, generator=generator, dtype=dtype)

    def step_payloads(self, segments: "Sequence[SegmentSize]") -> tuple[int, ...]:
        """Return the bytes that a worker sends in each step of a round, of all segments."""
        return tuple(
            sum(busiest(sent for sent in own.sent if sent.step == step) for own in segments)
            for step in range(self.period)
        )

    def sent(
        self, segment: Segment, compressor: Compressor, gradient: Tensor, later: int = 0
    ) -> tuple[Sent, ...]:
        """Return what is sent of `gradient` [L, n], or of models that it lies between.

        The round begins at a late step, or some steps `later`.
        """
        wire = Wire(self.recipe.value_dtype, self.recipe.index_dtype)
        words: list[str] = []

        def explain(transfer: Transfer, message: Message | None) -> None:
            if message is None:  # the outcome of a vote
                words.append(term(segment.n, "vote", "votes", 1, "bit"))
            else:
                words.append(message.explained(int(transfer.handed_over.argmax())))

        channel = Channel(InProcess(), Ledger(self.recipe.workers), wire, [explain])
        own = NoCompression() if segment.dense else compressor.for_shape(segment.shape)
        state = own.init(gradient)
        begins = _BEGUN // self.period * self.period + later
        own.skip_to(begins, state)
        models = torch.zeros_like(gradient)
        kept = self.algorithm.init(models, segment)
        self.algorithm.skip_to(begins, kept)
        found: list[tuple[int, Transfer]] = []
        for step in range(self.period):
            key = RandomKey(self.recipe.seed, torch.arange(self.rows))
            key = key.fold_in(begins + step, segment.name)
            squares = torch.ones_like(gradient) if own.needs_squares else None
            info = StepInfo(
                key, begins + step, _BEGUN, segment.name, gradient=gradient, squares=squares
            )
            context = ExchangeContext(own, state, info, segment, channel)
            if isinstance(self.algorithm, GradientAlgorithm):
                self.algorithm.gradients(self.algorithm.to_send(gradient, kept), context, kept)
            elif isinstance(self.algorithm, ParameterAlgorithm):
                self.algorithm.parameters(models.add_(gradient), context, kept)
            found += [(step, transfer) for transfer in channel.ledger.transfers]
            channel.ledger.transfers.clear()
        explained = zip(found, words, strict=True)
        return tuple(self._priced(transfer, step, text) for (step, transfer), text in explained)

    def _priced(self, transfer: Transfer, step: int, words: str) -> Sent:
        workers, copies = self.recipe.workers, 1
        if transfer.degree is not None:
            copies = int(transfer.degree[int(transfer.handed_over.argmax())])
        whole = replace(transfer, payload=transfer.payload.expand(workers))
        leaving, arriving = bytes_on_links(whole)
        each = whole.handed_over
        return Sent(
            collective=transfer.collective,
            direction=transfer.direction,
            payload_bytes=int(transfer.handed_over.max()),
            network_bytes=int(whole.on_network(workers)),
            received_bytes=round(float(arriving.double().mean())),
            link_bytes=int(leaving.maximum(arriving).max()),
            words=words if copies == 1 else f"{copies} x ({words})",
            step=step,
            operation=transfer.operation,
            of_each=() if bool((each == each[0]).all()) else tuple(each.tolist()),
        )
