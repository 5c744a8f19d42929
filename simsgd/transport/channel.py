"""The scales that everything said passes over.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layout import Segment
from ..ledger import Ledger, Transfer
from ..messages import Dense, Message
from ..wire import Wire
from .contract import Transport


@dataclass(frozen=True)
class Channel:
    """A transport with a ledger: nothing leaves without being weighed."""

    transport: Transport
    ledger: Ledger
    wire: Wire

    def mean(self, message: Message, segment: Segment) -> tuple[Message, Tensor]:
        """Send the messages; return them as they arrive, and their mean over all workers, [n].

        What sums rides an all-reduce, all else an all-gather.
        """
        sent = message.on_wire(self.wire)
        collective = "all-reduce" if sent.summable else "all-gather"
        self.ledger.add(Transfer(segment.name, "up", collective, sent.payload_bytes()))
        return sent, self.transport.mean(sent)

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

    def largest(self, numbers: Tensor, segment: Segment) -> Tensor:
        """Return the largest over all workers of `numbers` [L, 1], [1, 1], by an all-reduce."""
        payload = Dense.of(numbers).payload_bytes()
        self.ledger.add(Transfer(segment.name, "up", "all-reduce", payload))
        return self.transport.largest(numbers)
