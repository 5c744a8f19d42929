"""Where the other workers are, and the scales that everything said passes over.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from .layout import Segment
from .ledger import Ledger, Transfer
from .messages import Dense, Message
from .wire import Wire


class Transport(ABC):
    """Carries messages between workers."""

    @abstractmethod
    def mean(self, message: Message) -> Tensor:
        """Return the mean over all workers of what the messages stand for, [n]."""

    @abstractmethod
    def largest(self, numbers: Tensor) -> Tensor:
        """Return the largest over all workers of `numbers` [L, 1], [1, 1]."""


class InProcess(Transport):
    """All workers are rows of the tensors here."""

    def mean(self, message: Message) -> Tensor:
        """Return the mean over rows, [n]."""
        return message.sum().div_(len(message.payload_bytes()))

    def largest(self, numbers: Tensor) -> Tensor:
        """Return the largest of the rows, [1, 1]."""
        return numbers.amax(0, keepdim=True)


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

    def largest(self, numbers: Tensor, segment: Segment) -> Tensor:
        """Return the largest over all workers of `numbers` [L, 1], [1, 1], by an all-reduce."""
        payload = Dense.of(numbers).payload_bytes()
        self.ledger.add(Transfer(segment.name, "up", "all-reduce", payload))
        return self.transport.largest(numbers)
