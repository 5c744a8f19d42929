"""The contract of a compressor.

Letters: L workers hosted here, n elements of one segment, k selected.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import ClassVar, Self

from torch import Tensor

from ...communication.messages import Message, State
from ...keyed_random import RandomKey

Answer = tuple[Message, Tensor]  # a message as it arrived, and the mean over all workers
Rounds = Generator[Message, Answer, Answer]


class Compressor(ABC):
    """Settings of one method, as a frozen dataclass; its state lives apart.

    Row w of a call never depends on row v, so that worker w of a simulation is rank w of a real
    job: `compress(said)` of one worker alone is that worker's row.
    """

    needs_squares: ClassVar[bool] = False  # wants state["squares"] [L, n], see `sample_squares`
    has_own_memory: ClassVar[bool] = False  # keeps what it does not send by itself: use memory none
    needs_gradient: ClassVar[bool] = False  # wants state["gradient"] [L, n], of this step alone

    @property
    @abstractmethod
    def biased(self) -> bool:
        """Whether the mean of the message differs from what was said: use it with a memory."""

    def fitted(self, shape: Sequence[int]) -> Self:
        """Return the method for a segment that is one parameter of this shape.

        A segment of several parameters has the shape (n,).
        """
        return self

    def init(self, like: Tensor) -> State:
        """Return the state before the first step for a segment like `like`, [L, n]."""
        return {}

    def ask(self, said: Tensor) -> Tensor | None:
        """Return a number of each worker, [L, 1], if the method wants to know the largest of all.

        The answer, [1, 1], is in state["shared"] when `compress` is called. The question is sent
        and counted.
        """
        return None

    @abstractmethod
    def compress(self, said: Tensor, state: State, draw: RandomKey) -> Message:
        """Return the message for what workers want to say, [L, n], which stays unchanged."""


class Quantizer(Compressor):
    """Sends every entry in few bits; it also takes what a sparsifier selected."""

    def compress(self, said: Tensor, state: State, draw: RandomKey) -> Message:
        """Return the message for all entries of `said` [L, n]."""
        return self.quantize(said, None, state, draw)

    @abstractmethod
    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, draw: RandomKey
    ) -> Message:
        """Return the message for the first counts[w] entries of each row of `values` [L, k].

        `counts` [L] int64, None for all k; the other entries are padding of value 0, which neither
        counts in a mean nor is sent.
        """


class Conversation(Compressor):
    """Speaks several times a step: what it says next depends on the mean of what all said before.

    An exchange carries each round as it carries a message; nothing else of it is sent.
    """

    @abstractmethod
    def rounds(self, said: Tensor, state: State, draw: RandomKey) -> Rounds:
        """Yield each message; get it back as it arrived, with its mean over all workers, [1, m].

        Returns the message that a memory takes out of `said` [L, n], and what is heard, [1, n].
        """

    def compress(self, said: Tensor, state: State, draw: RandomKey) -> Message:
        """Return the message of workers who each hear only themselves."""
        return converse(self.rounds(said, state, draw), lambda m: (m, m.to_dense()))[0]


def converse(rounds: Rounds, carry: Callable[[Message], Answer]) -> Answer:
    """Return what a conversation comes to when `carry` brings each of its messages over."""
    try:
        message = next(rounds)
        while True:
            message = rounds.send(carry(message))
    except StopIteration as end:
        answer: Answer = end.value
        return answer
