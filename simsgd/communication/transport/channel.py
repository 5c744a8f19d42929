"""Counts every message that leaves, carries it, and calls observers with it.

Letters: W workers, L hosted here, n elements of one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...settings import SettingError
from ..ledger import NEIGHBORS, Ledger, Transfer
from ..messages import Dense, Message
from ..mixing import Mixing
from ..segments import Segment
from ..wire import Wire
from .contract import Passed, Transport, operation_of


class Observer(Protocol):
    """Is called with every transfer that a channel counts."""

    def __call__(self, transfer: Transfer, message: Message | None) -> None:
        """Look at a transfer and its message as it arrives; None: only its size is known."""


@dataclass(frozen=True)
class Channel:
    """A transport with a ledger: what is sent is counted first, and observers see it.

    Every method goes through `_count`, the one place where a transfer enters the ledger.
    """

    transport: Transport
    ledger: Ledger
    wire: Wire
    observers: Sequence[Observer] = ()

    @property
    def hosted(self) -> slice:
        """Which of the workers are rows here."""
        return self.transport.hosted(self.ledger.workers)

    def all_reduce_mean(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages; return them as they arrive, and their mean over all workers, [n].

        What sums rides an all-reduce, all else an all-gather.
        """
        collective = "all-reduce" if message.summable else "all-gather"
        sent = self._send(message, segment, collective)
        return sent, self.transport.all_reduce_mean(sent)

    def mean_of_senders(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages; return them, and the mean of each element over those who sent it, [n].

        What sums rides an all-reduce, all else an all-gather.
        """
        sent = self._send(message, segment, "all-reduce" if message.summable else "all-gather")
        return sent, self.transport.mean_of_senders(sent)

    def all_reduce_max(self, numbers: Tensor, segment: Segment) -> Tensor:
        """Return the largest over all workers of `numbers` [L, 1], [1, 1], by an all-reduce."""
        message = Dense.of(numbers)
        self._count_all(message, segment, "all-reduce", operation="max")
        return self.transport.all_reduce_max(numbers)

    def vote(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages; return them as they arrive, and what they vote for, +-1 each, [n].

        One worker counts the votes. They are gathered, for the sum of W signs needs more than the
        one bit that each has; the outcome comes back to every worker as one bit an entry.
        """
        sent = self._send(message, segment, "gather")
        outcome = self.transport.vote(sent)
        for own, part in zip(segment.members, sent.parts, strict=True):
            payload = torch.full_like(part.payload_bytes(), -(-own.n // 8))
            operation = _operation(part.template)
            self._count(Transfer(own.name, "down", "broadcast", payload, operation=operation))
        return sent, outcome

    def all_gather(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages to all; return them, and what each stands for, [W, n]."""
        sent = self._send(message, segment, "all-gather")
        return sent, self.transport.all_gather(sent)

    def gather(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages to a server; return them, and what each stands for, [W, n]."""
        sent = self._send(message, segment, "gather")
        return sent, self.transport.all_gather(sent)

    def gather_mean(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages to a server; return them, and their mean, [n], which only it knows."""
        sent = self._send(message, segment, "gather")
        return sent, self.transport.gather_mean(sent)

    def all_to_all_mean(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send each worker its W-th of the messages; return them, and their mean, [n].

        A worker knows of the mean what it serves: its own W-th.
        """
        sent = self._send(message, segment, "all-to-all")
        return sent, self.transport.gather_mean(sent)

    def broadcast(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send a server's message [1, n] to every worker; return it as it arrives, and [n]."""
        sent = self.transport.broadcast(message.on_wire(self.wire))
        payload = sent.payload_bytes().expand(self._num_hosted)
        operation = _operation(sent.template)
        transfer = Transfer(segment.name, "down", "broadcast", payload, operation=operation)
        self._count(transfer, sent)
        return sent, sent.to_dense()[0]

    def weighted_mean(
        self, message: Message, segment: Segment, weights: Tensor
    ) -> tuple[Message, Tensor]:
        """Send the messages of weight above 0 to a server; return them, and the weighted sum, [n].

        `weights` [W]. The sum comes back whole to those who sent.
        """
        sent = message.on_wire(self.wire)
        payload = sent.payload_bytes()
        takes_part = (weights[self.hosted] > 0).to(payload.device)  # [L]
        payload, operation = payload * takes_part, _operation(sent.template)
        self._count(Transfer(segment.name, "up", "gather", payload, operation=operation), sent)
        mean = self.transport.weighted_mean(sent, weights)
        self.count_broadcast(mean, segment, takes_part)
        return sent, mean

    def neighbor_mean(
        self, message: Message, segment: Segment, mixing: Mixing
    ) -> tuple[Message, Tensor]:
        """Send the messages to all neighbors; return them, and sum_j w_ij of them, [L, n].

        Each neighbor gets a copy of its own.
        """
        sent = message.on_wire(self.wire)
        degree = mixing.degree.to(sent.parts[0].payload_bytes().device)
        self._count_all(sent, segment, NEIGHBORS, degree, mixing.links)
        return sent, self.transport.neighbor_mean(sent, mixing)

    def pass_on(self, message: Passed, segment: Segment, sources: Sequence[int]) -> Passed:
        """Send each worker's message to those that have it as source; return what arrives at each.

        `sources` are of all W workers. Row i of what is returned is the message of worker
        `sources[i]`; a worker that is its own source receives nothing and keeps its own.
        """
        sent = message.on_wire(self.wire)
        workers = torch.arange(self.ledger.workers)
        links = torch.zeros(len(workers), len(workers), dtype=torch.bool)
        links[workers, torch.tensor(sources)] = True
        links.fill_diagonal_(False)
        degree = links.sum(0).to(sent.index.device)
        operation = " ".join(map(str, sources))
        self._count_all(sent, segment, NEIGHBORS, degree, links, operation)
        return self.transport.passed_on(sent, sources)

    def swap(
        self, values: Tensor, segment: Segment, mixing: Mixing
    ) -> tuple[Dense, Tensor, Tensor]:
        """Send each neighbor values of its own; return the first's message [L, k], and all, twice.

        `values` [L, D, k] lie in the order of `mixing.neighbors`; what lies behind the last is not
        sent. They come back as they arrive, and then what the neighbors sent, [L, D, k].
        """
        sent = Dense.of(values.flatten(1)).on_wire(self.wire)  # [L, D k]
        rounded = sent.values.view_as(values)
        message = Dense(rounded[:, 0], sent.wire_dtype)
        degree = mixing.degree.to(values.device)
        self._count_all(message, segment, NEIGHBORS, degree, mixing.links, "swap")
        return message, rounded, self.transport.swap(sent, mixing)

    def relay(self, message: Message, segment: Segment, payload: Tensor | None = None) -> Message:
        """Send each worker's message to one other; return it as it arrives.

        The caller, who has all workers' rows, decides which. `payload` [L] are the bytes,
        where a worker passes on more than its own message. An algorithm that relays has
        `between_processes = False`. Raises `SettingError` where not all workers are hosted here.
        """
        if self.hosted != slice(0, self.ledger.workers):
            rule = "passes models on by relay, which needs all workers in one process"
            fix = "set between_processes = False in its class, or use neighbor_mean"
            raise SettingError("algorithm", None, rule, fix)
        sent = message.on_wire(self.wire)
        payload = sent.payload_bytes() if payload is None else payload
        degree = torch.ones_like(payload)
        self._count(Transfer(segment.name, "up", NEIGHBORS, payload, degree), sent)
        return sent

    def count_broadcast(
        self, values: Tensor, segment: Segment, receivers: Tensor | None = None
    ) -> None:
        """Count the bytes of `values` [n] sent by a server to all, or to `receivers` [L] of 1."""
        size = Dense.of(values.unsqueeze(0)).on_wire(self.wire).payload_bytes()  # [1]
        payload = size.expand(self._num_hosted)
        payload = payload if receivers is None else payload * receivers
        operation = _operation(values)
        self._count(Transfer(segment.name, "down", "broadcast", payload, operation=operation))

    @property
    def _num_hosted(self) -> int:
        """How many workers are rows here, L."""
        return len(range(*self.hosted.indices(self.ledger.workers)))

    def _send(self, message: Message, segment: Segment, collective: str) -> Message:
        """Count the workers' messages; return them as they arrive."""
        sent = message.on_wire(self.wire)
        operation = operation_of(sent) if collective == "all-reduce" else ""
        self._count_all(sent, segment, collective, operation=operation)
        return sent

    def _count_all(
        self,
        message: Message,
        segment: Segment,
        collective: str,
        degree: Tensor | None = None,
        links: Tensor | None = None,
        operation: str = "",
    ) -> None:
        """Record the messages of workers, of each segment that is joined by itself."""
        for own, part in zip(segment.members, message.parts, strict=True):
            payload, own_operation = part.payload_bytes(), _operation(part.template, operation)
            transfer = Transfer(own.name, "up", collective, payload, degree, links, own_operation)
            self._count(transfer, part)

    def _count(self, transfer: Transfer, message: Message | None = None) -> None:
        """Record a transfer, and call the observers with it."""
        self.ledger.add(transfer)
        for observer in self.observers:
            observer(transfer, message)


def _operation(values: Tensor, done: str = "") -> str:
    """Return what is done with values, and in which dtype: what differs cannot be one message."""
    dtype = str(values.dtype).removeprefix("torch.")
    if not done:
        return dtype
    return done if done.endswith(f" {dtype}") else f"{done}, {dtype}"
