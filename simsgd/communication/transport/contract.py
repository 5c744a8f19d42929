"""The contract of a transport, which carries messages between workers.

Letters: W workers, L hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from ..messages import Dense, Joined, Message, Places, SharedSparse, Sparse
from ..mixing import Mixing

if TYPE_CHECKING:
    from .node_ranks import NodeRanks

Passed = TypeVar("Passed", Sparse, Places)  # what goes from one worker to another
Rides = Callable[[Sequence[str], int], bool]


class Transport(ABC):
    """Carries messages between workers."""

    fuses: bool = False  # exchanges go side by side, and what waits together is one message
    rides: Rides | None = None  # whether so many bytes go with a collective, not by an all-reduce
    node: "NodeRanks | None" = None  # whose devices are other processes; None: none are

    @abstractmethod
    def hosted(self, workers: int) -> slice:
        """Return which of `workers` workers are rows here.

        Raises `SettingError` if they cannot be divided among the ranks.
        """

    @abstractmethod
    def all_reduce_mean(self, message: Message) -> Tensor:
        """Return the mean over all workers of what the messages stand for, [n]."""

    @abstractmethod
    def gather_mean(self, message: Message) -> Tensor:
        """Return the same mean of what a server gathers, [n]."""

    @abstractmethod
    def mean_of_senders(self, message: Message) -> Tensor:
        """Return the mean of each element over the workers whose messages have it, [n]."""

    @abstractmethod
    def vote(self, message: Message) -> Tensor:
        """Return the sign of the sum over all workers of the messages' signs, +1 if 0, [n].

        What is joined to votes and summable is averaged.
        """

    @abstractmethod
    def all_reduce_max(self, numbers: Tensor) -> Tensor:
        """Return the largest over all workers of `numbers` [L, n], [1, n]."""

    @abstractmethod
    def neighbor_mean(self, message: Message, mixing: Mixing) -> Tensor:
        """Return sum_j w_ij m_j of what the messages stand for, [L, n]; all go to neighbors."""

    @abstractmethod
    def passed_on(self, message: Passed, sources: Sequence[int]) -> Passed:
        """Return the message whose row i is that of worker `sources[i]`, of all W workers.

        A worker that is its own source receives nothing and keeps its own.
        """

    @abstractmethod
    def swap(self, message: Dense, mixing: Mixing) -> Tensor:
        """Return what each neighbor sent to a worker, [L, D, k], zeros behind the last.

        Row i of the message has k values for each of D places of `mixing.neighbors`, which receive
        them alone; those who receive send too.
        """

    @abstractmethod
    def weighted_mean(self, message: Message, weights: Tensor) -> Tensor:
        """Return the sum over workers of `weights` [W] times what each message stands for, [n].

        Messages of weight 0 are not sent.
        """

    @abstractmethod
    def all_gather(self, message: Message) -> Tensor:
        """Return what each worker's message stands for, [W, n]."""

    @abstractmethod
    def broadcast(self, message: Message) -> Message:
        """Return a server's message [1, n] as it arrives; the server is where rank 0 is."""

    @abstractmethod
    def all_gather_rows(self, own: Tensor) -> Tensor:
        """Return the rows of all workers, [W, ...], for those of the hosted ones, [L, ...].

        This is for records and checkpoints; it is no part of a method, and not counted.
        """


def operation_of(message: Message) -> str:
    """Return what an all-reduce does with a message, "" if it is not summable."""
    first = message.parts[0]
    first = first.inner if isinstance(first, SharedSparse) else first
    if not (message.summable and isinstance(first, Dense)):
        return ""
    return f"sum of {str(first.wire_dtype).removeprefix('torch.')}"


def rides_all_reduce(message: Message) -> bool:
    """Return whether ranks add the message up in the dtype that its values travel in."""
    if isinstance(message, Joined):
        return all(rides_all_reduce(part) for part in message.parts)
    return isinstance(message, Dense) and message.wire_dtype == message.values.dtype


def outcome(votes: Tensor) -> Tensor:
    """Return +1 where the sum of signs `votes` [n] is 0 or more, else -1."""
    return votes.ge(0).to(votes.dtype).mul_(2).sub_(1)
