"""Segments whose state lies end to end, so that one call acts on all of them.

Letters: L workers hosted here, S segments, n elements of one of them, P of all.
"""

from collections.abc import Iterable, Sequence

from ..communication.cuts import Cuts, end_to_end
from ..communication.messages import State
from ..communication.segments import JoinedSegments, Segment
from ..methods.compressors import Compressor
from ..methods.compressors.none import NoCompression
from ..registry import is_own
from .segment_state import SegmentState

MOST = 1 << 24  # numbers of a group: what is larger fills a GPU by itself


class StateGroup:
    """What workers keep for S segments, end to end; each segment's state is a view of it."""

    def __init__(self, states: Sequence[SegmentState]) -> None:
        self.states = states
        self.segment = JoinedSegments.of([own.segment for own in states])
        self.cuts = Cuts(tuple(own.segment.n for own in states))
        self.memory_state: State = {}
        self.algorithm_state: State = {}

    def take(self) -> None:
        """Lay the states end to end, unless they lie so since the last time."""
        for own in self.states:
            own.widen_memory()
        self.memory_state = _joined([own.memory_state for own in self.states])
        self.algorithm_state = _joined([own.algorithm_state for own in self.states])

    def put(self) -> None:
        """Give each segment its part of the states, as they are now."""
        _cut(self.memory_state, [own.memory_state for own in self.states], self.cuts)
        _cut(self.algorithm_state, [own.algorithm_state for own in self.states], self.cuts)
        for own in self.states:
            own.round_memory()


class StateGroups:
    """The groups of a model's segments, found anew where a compressor changed.

    Unless they go `together`, each is by itself.
    """

    def __init__(self, states: Sequence[SegmentState], together: bool = False) -> None:
        self.states = states
        self.together = together
        self._apart = [StateGroup([own]) for own in states]
        self._known: list[tuple[Sequence[Compressor], list[StateGroup]]] = []

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in an order in which those of a group follow each other."""
        return [name for own in grouped(self._segments, self.together) for name in own.parameters]

    @property
    def _segments(self) -> list[Segment]:
        return [own.segment for own in self.states]

    def of(self, flush: bool = False, apart: bool = False) -> list[StateGroup]:
        """Return the groups, of which some are a single segment; all are if they go `apart`.

        With `flush` nothing is compressed.
        """
        if apart or not self.together:
            return self._apart
        now = [NoCompression() if flush else own.compressor for own in self.states]
        for compressors, groups in self._known:
            if all(a is b or a == b for a, b in zip(compressors, now, strict=True)):
                return groups
        self._known = [(now, list(_grouped(self.states, now))), *self._known[:1]]
        return self._known[0][1]


def grouped(segments: Sequence[Segment], together: bool) -> list[Segment]:
    """Return segments with those that go dense behind the others, if kinds go `together`."""
    return sorted(segments, key=lambda own: together and own.dense)


def _grouped(
    states: Sequence[SegmentState], compressors: Sequence[Compressor]
) -> Iterable[StateGroup]:
    """Return groups of segments with the same method and the same kind of state, in order."""
    found: dict[object, list[SegmentState]] = {}
    for number, (own, compressor) in enumerate(zip(states, compressors, strict=True)):
        found.setdefault(_key(own, compressor) or number, []).append(own)
    for group in found.values():
        for part in _limited(group):
            yield StateGroup(part)


def _key(own: SegmentState, compressor: Compressor) -> object:
    """Return what segments of a group have in common; None: this one is alone."""
    methods = own.algorithm, own.memory, compressor
    takes = own.algorithm.takes_groups or (own.segment.dense and own.algorithm.takes_dense_groups)
    apart = not (takes and own.memory.elementwise)
    if apart or compressor.group_key is None or any(map(is_own, methods)):
        return None
    kept = tuple((name, len(v)) for name, v in own.memory_state.items())
    like = own.like
    return compressor.group_key, own.segment.dense, kept, like.dtype, like.device, own.dtype


def _limited(states: Sequence[SegmentState]) -> Iterable[list[SegmentState]]:
    """Return the segments in parts of up to `MOST` numbers each, or of one that has more."""
    part: list[SegmentState] = []
    for own in states:
        if part and len(own.like) * sum(each.segment.n for each in [*part, own]) > MOST:
            yield part
            part = []
        part.append(own)
    yield part


def _joined(states: Sequence[State]) -> State:
    """Return {name: [L, P]} of a state {name: [L, n]} for each segment, which become views of it.

    They are that already, unless somebody put other tensors there.
    """
    joined = {}
    for name in states[0]:
        joined[name] = end_to_end([own[name] for own in states])
    return joined


def _cut(joined: State, states: Sequence[State], cuts: Cuts) -> None:
    for name, whole in joined.items():
        for own, piece in zip(states, cuts.split(whole), strict=True):
            own[name] = piece
