"""All workers in one process.

Letters: L workers hosted here, L = W, n elements of one segment.
"""

from collections.abc import Sequence

from torch import Tensor

from ..messages import Dense, Message
from ..mixing import Mixing
from .contract import Passed, Transport, outcome


class InProcess(Transport):
    """All workers are rows of the tensors here."""

    def hosted(self, workers: int) -> slice:
        """Return all of them."""
        return slice(0, workers)

    def all_reduce_mean(self, message: Message) -> Tensor:
        """Return the mean over rows, [n]."""
        return message.sum().div_(len(message.parts[0].payload_bytes()))

    def gather_mean(self, message: Message) -> Tensor:
        """Return the mean over rows, [n]."""
        return self.all_reduce_mean(message)

    def mean_of_senders(self, message: Message) -> Tensor:
        """Return the mean over the rows that have an element, [n]."""
        return message.mean_of_senders()

    def vote(self, message: Message) -> Tensor:
        """Return the sign of the sum of the rows' signs, [n]."""
        return outcome(message.to_dense().sign().sum(0))

    def all_reduce_max(self, numbers: Tensor) -> Tensor:
        """Return the largest of the rows, [1, n]."""
        return numbers.amax(0, keepdim=True)

    def neighbor_mean(self, message: Message, mixing: Mixing) -> Tensor:
        """Return the weighted sums over neighbors, [W, n]."""
        return mixing.times(message.to_dense())

    def passed_on(self, message: Passed, sources: Sequence[int]) -> Passed:
        """Return the message with the rows of the sources."""
        return message.of_rows(sources)

    def swap(self, message: Dense, mixing: Mixing) -> Tensor:
        """Return the values that each neighbor has at the worker's place, [W, D, k]."""
        values = message.to_dense().unflatten(1, (mixing.neighbors.shape[1], -1))  # [W, D, k]
        known = (mixing.neighbors >= 0).to(values.device)
        here = mixing.neighbors.clamp(min=0).to(values.device)
        arrived: Tensor = values[here, mixing.places_back.clamp(min=0).to(values.device)]
        return arrived.where(known.unsqueeze(2), 0)

    def weighted_mean(self, message: Message, weights: Tensor) -> Tensor:
        """Return the weighted sum over rows, [n]."""
        values = message.to_dense()
        return weights.to(values) @ values

    def all_gather(self, message: Message) -> Tensor:
        """Return the rows, [W, n]."""
        return message.to_dense()

    def broadcast(self, message: Message) -> Message:
        """Return the message as it is."""
        return message

    def all_gather_rows(self, own: Tensor) -> Tensor:
        """Return the rows as they are."""
        return own
