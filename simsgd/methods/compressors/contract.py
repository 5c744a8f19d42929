"""The contract of a compressor: settings, state and what it knows of a step.

Letters: L workers hosted here, n elements of one segment, k selected, m of one message.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import Field, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from ...communication.messages import Joined, Message, State
from ...gradients.generators import put_back
from ...keyed_random import RandomKey
from ...registry import contract, is_own
from ..method_class import MethodClass
from ..own_errors import explained

if TYPE_CHECKING:
    from .group import Group

Aggregated = tuple[Message, Tensor]  # a message as it arrived, and the mean over all workers
Rounds = Generator[Message, Aggregated, Aggregated]


@dataclass(frozen=True)
class StepInfo:
    """What a compressor may know of the step and the segment that it works for."""

    key: RandomKey  # of this step and segment: all random numbers come from it
    number: int = 0  # steps done before this one
    epoch: int = 0
    segment: str = ""  # its name
    gradient: Tensor | None = None  # of this step alone, [L, n]; see `needs_gradient`
    squares: Tensor | None = None  # of the samples' gradients, [L, n]; see `needs_squares`
    global_max: Tensor | None = None  # over all workers, [1, 1]; see `needs_global_max`
    last: bool = False  # no step of the run follows

    def with_key(self, *place: int | str) -> "StepInfo":
        """Return the same step with the random numbers of a place inside its own."""
        return replace(self, key=self.key.fold_in(*place))


@contract("compressor")
class Compressor(metaclass=MethodClass):
    """Settings of one method, as a frozen dataclass; its state lives apart.

    Row w of a call never depends on row v, so that worker w of a simulation is rank w of a real
    job: `compress(x)` of one worker alone is that worker's row.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]  # as of every dataclass
    needs_gradient: ClassVar[bool] = False  # reads step.gradient
    needs_squares: ClassVar[bool] = False  # reads step.squares, see `sample_squares`
    needs_global_max: ClassVar[bool] = False  # reads step.global_max, the maximum of `local_max`
    needs_mean: ClassVar[bool] = False  # chooses by a mean over all workers, none alone
    selects: ClassVar[bool] = True  # sends some entries, which a quantizer may follow
    compresses: ClassVar[bool] = True  # False: sends x as it is
    moves_zeros: ClassVar[bool] = False  # entries that are zero arrive as something else
    has_own_memory: ClassVar[bool] = False  # keeps what it does not send itself: use memory none

    @property
    @abstractmethod
    def biased(self) -> bool:
        """Whether the mean of the message differs from its input: use it with a memory."""

    @property
    def parts(self) -> "Sequence[Compressor]":
        """The methods that this one is made of: itself, unless it is composed."""
        return (self,)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the method for a segment that is one parameter of this shape.

        A segment of several parameters has the shape (n,).
        """
        return self

    def init(self, like: Tensor) -> State:
        """Return the state before the first step for a segment like `like`, [L, n]."""
        return {}

    def skip_to(self, step: int, state: State) -> None:
        """Bring a state from `init` to where it counts `step` steps done."""

    def local_max(self, x: Tensor) -> Tensor:
        """Return the number of each worker, [L, 1], whose maximum over all workers is wanted.

        It is called where `needs_global_max`, with the `x` [L, n] of `compress`; an all-reduce,
        which is counted, finds the maximum.
        """
        return x.abs().amax(1, keepdim=True)

    @abstractmethod
    def compress(self, x: Tensor, state: State, step: StepInfo) -> Message:
        """Return the message for `x` [L, n], the compensated gradients, which stay unchanged."""

    @property
    def group_key(self) -> object:
        """What segments that are compressed together have in common; None: each goes alone.

        By default it is the method and its settings.
        """
        return None if self.needs_squares or self.needs_global_max else self

    def compress_group(self, x: Tensor, group: "Group") -> Joined | None:
        """Return the messages for the segments of a group, end to end in `x` [L, P], all at once.

        They are those of `compress`, bit for bit. None: there is no such form of the method, and
        its segments are compressed one by one.
        """
        return None

    def probe(self, shape: Sequence[int] | None = None) -> Message:
        """Return the message of one worker for a segment of ones of this shape.

        It shows what kind of message the settings make, without a run. Without a shape the segment
        is small, but for methods of a user's own, which may want many entries.
        """
        own = [part for part in self.parts if is_own(part)]
        shape = shape or ((256, 256) if own else (2, 2))
        x = torch.ones(1, torch.Size(shape).numel())
        with explained([("compressor", part) for part in own]), put_back(x.device):
            fitted = self.for_shape(shape)
            return fitted.compress(x, fitted.init(x), probe_step(x))


class Quantizer(Compressor):
    """Sends every entry in few bits; it also takes what a sparsifier selected."""

    selects = False

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Message:
        """Return the message for all entries of `x` [L, n]."""
        return self.quantize(x, None, state, step)

    def compress_group(self, x: Tensor, group: "Group") -> Joined | None:
        """Return the messages for all entries of a group, `x` [L, P]."""
        return self.quantize_group(x, group)

    def quantize_group(self, values: Tensor, group: "Group") -> Joined | None:
        """Return the messages for the `values` [L, P] of a group, those of `quantize` bit for bit.

        None: there is no such form of the method.
        """
        return None

    @abstractmethod
    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Message:
        """Return the message for the first counts[w] entries of each row of `values` [L, k].

        `counts` [L] int64, None for all k; the other entries are padding of value 0, which neither
        counts in a mean nor is sent.
        """


class MultiRound(Compressor):
    """Sends several messages a step, each computed from the mean of the last one over all workers.

    An algorithm carries each round as it carries a message; nothing else of it is sent.
    """

    selects = False

    @abstractmethod
    def rounds(self, x: Tensor, state: State, step: StepInfo) -> Rounds:
        """Yield each message; get it back as it arrived, with its mean over all workers, [1, m].

        Returns the message that a memory takes out of `x` [L, n], and the aggregate, [1, n].
        """

    @property
    def group_key(self) -> object:
        """Nothing, unless the method has a form for groups."""
        return None

    def rounds_of_group(self, x: Tensor, group: "Group") -> Rounds:
        """Yield each round's messages for the segments of a group, end to end in `x` [L, P].

        They are those of `rounds`, bit for bit, and `group_key` says which have such a form.
        """
        raise NotImplementedError

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Message:
        """Return the message of workers whose means are each over themselves alone."""
        return run_rounds(self.rounds(x, state, step), lambda m: (m, m.to_dense()))[0]


def run_rounds(rounds: Rounds, carry: Callable[[Message], Aggregated]) -> Aggregated:
    """Return what the rounds come to when `carry` brings each of their messages over."""
    try:
        message = next(rounds)
        while True:
            message = rounds.send(carry(message))
    except StopIteration as end:
        aggregated: Aggregated = end.value
        return aggregated


def probe_step(x: Tensor) -> StepInfo:
    """Return a first step whose gradient, squares and maximum are those of `x` [L, n]."""
    key = RandomKey(0, torch.arange(len(x), device=x.device)).fold_in(0, "segment")
    peak = x.abs().amax().reshape(1, 1)
    return StepInfo(key, 0, 0, "segment", gradient=x, squares=x.abs(), global_max=peak)
