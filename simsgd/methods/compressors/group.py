"""One method for several segments, whose elements lie end to end.

Letters: L workers hosted here, S segments, n elements of one of them, P of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from ... import keyed_random
from ...communication.cuts import Cuts
from ...communication.messages import Joined, Message, State
from .contract import Compressor, MultiRound, Rounds, StepInfo


@dataclass(frozen=True, eq=False)
class Group:
    """What is known of S segments that are compressed together."""

    cuts: Cuts  # of the elements that are compressed
    compressors: Sequence[Compressor]  # one method, fitted to each segment
    states: Sequence[State]
    steps: Sequence[StepInfo]

    def of(self, cuts: Cuts, *place: int | str) -> "Group":
        """Return the group with other elements and the random numbers of a place inside its own."""
        return replace(self, cuts=cuts, steps=[step.with_key(*place) for step in self.steps])

    def uniform(self, like: Tensor) -> Tensor:
        """Return each segment's own numbers, uniform in [0, 1), [L, P], of the dtype of `like`."""
        keys = keyed_random.stacked([step.key for step in self.steps])  # [L, S]
        place = self.cuts.place(keys.device)
        return keyed_random.uniform_at(self.cuts.spread(keys), place, like.dtype)

    def one_by_one(self, x: Tensor) -> Joined:
        """Return the messages for `x` [L, P], each made by itself."""
        parts: list[Message] = []
        for compressor, own, state, step in zip(
            self.compressors, self.cuts.split(x), self.states, self.steps, strict=True
        ):
            if compressor.needs_gradient and step.gradient is None:
                step = replace(step, gradient=own)
            parts.append(compressor.compress(own, state, step))
        return Joined.of(self.cuts, parts)


@dataclass(frozen=True, eq=False)
class GroupCompressor(Compressor):
    """Compresses a group by the form that its method has for one, else one by one."""

    group: Group = field(repr=False)

    @property
    def biased(self) -> bool:
        """Whether the method is."""
        return self.group.compressors[0].biased

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Joined:
        """Return the messages for `x` [L, P]; states and steps are the group's own."""
        first = self.group.compressors[0]
        return first.compress_group(x, self.group) or self.group.one_by_one(x)


@dataclass(frozen=True, eq=False)
class GroupRounds(MultiRound):
    """The same for a method of several rounds."""

    group: Group = field(repr=False)

    @property
    def biased(self) -> bool:
        """Whether the method is."""
        return self.group.compressors[0].biased

    def rounds(self, x: Tensor, state: State, step: StepInfo) -> Rounds:
        """Yield the messages of each round for `x` [L, P]."""
        first = self.group.compressors[0]
        assert isinstance(first, MultiRound)
        return first.rounds_of_group(x, self.group)


def compressor_of(group: Group) -> Compressor:
    """Return the method of a group as one compressor of all its elements."""
    several = isinstance(group.compressors[0], MultiRound)
    return GroupRounds(group) if several else GroupCompressor(group)
