"""Where the other workers are, and the scales that everything said passes over.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from .layout import Segment
from .ledger import Ledger, Transfer
from .messages import Message
from .wire import Wire


class Transport(ABC):
    """Carries messages between workers."""

    @abstractmethod
    def mean(self, message: Message) -> Tensor:
        """Return the mean over all workers of what the messages stand for, [n]."""


class InProcess(Transport):
    """All workers are rows of the tensors here."""

    def mean(self, message: Message) -> Tensor:
        """Return the mean over rows, [n]."""
        return message.sum().div_(len(message.payload_bytes()))


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
