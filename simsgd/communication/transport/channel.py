"""The scales that everything said passes over.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ledger import Ledger, Transfer
from ..messages import Dense, Message
from ..segments import Segment
from ..topology import Mixing
from ..wire import Wire
from .contract import Transport


@dataclass(frozen=True)
class Channel:
    """A transport with a ledger: nothing leaves without being weighed."""

    transport: Transport
    ledger: Ledger
    wire: Wire

    @property
    def hosted(self) -> slice:
        """Which of the workers are rows here."""
        return self.transport.hosted(self.ledger.workers)

    @property
    def _own(self) -> int:
        """How many workers are rows here, L."""
        return len(range(*self.hosted.indices(self.ledger.workers)))

    def all_reduce_mean(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages; return them as they arrive, and their mean over all workers, [n].

        What sums rides an all-reduce, all else an all-gather.
        """
        sent = message.on_wire(self.wire)
        collective = "all-reduce" if sent.summable else "all-gather"
        self.ledger.add(Transfer(segment.name, "up", collective, sent.payload_bytes()))
        return sent, self.transport.all_reduce_mean(sent)

    def gather_mean(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages to a server; return them, and their mean, [n], which only it knows."""
        sent = message.on_wire(self.wire)
        self.ledger.add(Transfer(segment.name, "up", "gather", sent.payload_bytes()))
        return sent, self.transport.all_reduce_mean(sent)

    def vote(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages; return them as they arrive, and what they vote for, +-1 each, [n].

        One worker counts the votes. They are gathered, for the sum of W signs needs more than the
        one bit that each has; the outcome comes back to every worker as one bit an entry.
        """
        sent = message.on_wire(self.wire)
        payload = sent.payload_bytes()
        self.ledger.add(Transfer(segment.name, "up", "gather", payload))
        heard = self.transport.vote(sent)
        outcome = torch.full_like(payload, -(-len(heard) // 8))
        self.ledger.add(Transfer(segment.name, "down", "broadcast", outcome))
        return sent, heard

    def all_reduce_max(self, numbers: Tensor, segment: Segment) -> Tensor:
        """Return the largest over all workers of `numbers` [L, 1], [1, 1], by an all-reduce."""
        payload = Dense.of(numbers).payload_bytes()
        self.ledger.add(Transfer(segment.name, "up", "all-reduce", payload))
        return self.transport.all_reduce_max(numbers)

    def neighbor_mean(
        self, message: Message, segment: Segment, mixing: Mixing
    ) -> tuple[Message, Tensor]:
        """Send the messages to all neighbors; return them, and sum_j w_ij of them, [L, n].

        Each neighbor gets a copy of its own.
        """
        sent = message.on_wire(self.wire)
        payload = sent.payload_bytes()
        degree = mixing.degree.to(payload.device)
        self.ledger.add(Transfer(segment.name, "up", "neighbours", payload, degree))
        return sent, self.transport.neighbor_mean(sent, mixing)

    def gather(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages to a server; return them, and what each says, [W, n]."""
        sent = message.on_wire(self.wire)
        self.ledger.add(Transfer(segment.name, "up", "gather", sent.payload_bytes()))
        return sent, self.transport.all_gather(sent)

    def relay(self, payload: Tensor, segment: Segment) -> None:
        """Weigh what each worker passes on to one other, [L] bytes."""
        degree = torch.ones_like(payload)
        self.ledger.add(Transfer(segment.name, "up", "neighbours", payload, degree))

    def broadcast(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send a server's message [1, n] to every worker; return it as it arrives, and [n]."""
        sent = self.transport.broadcast(message.on_wire(self.wire))
        told = sent.payload_bytes().expand(self._own)
        self.ledger.add(Transfer(segment.name, "down", "broadcast", told))
        return sent, sent.to_dense()[0]

    def weighted_mean(
        self, message: Message, segment: Segment, weights: Tensor
    ) -> tuple[Message, Tensor]:
        """Send the messages of weight above 0 to a server; return them, and the weighted sum, [n].

        `weights` [W]. The sum comes back whole to those who sent.
        """
        sent = message.on_wire(self.wire)
        said = (weights[self.hosted] > 0).to(sent.payload_bytes().device)  # [L]
        self.ledger.add(Transfer(segment.name, "up", "gather", sent.payload_bytes() * said))
        heard = self.transport.weighted_mean(sent, weights)
        self.count_broadcast(heard, segment, said)
        return sent, heard

    def count_broadcast(
        self, heard: Tensor, segment: Segment, hearers: Tensor | None = None
    ) -> None:
        """Weigh what a server tells each worker, `heard` [n]; of `hearers` [L] those that are."""
        size = Dense.of(heard.unsqueeze(0)).on_wire(self.wire).payload_bytes()  # [1]
        told = size.expand(self._own)
        told = told * hearers if hearers is not None else told
        self.ledger.add(Transfer(segment.name, "down", "broadcast", told))
