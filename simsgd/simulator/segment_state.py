"""What workers keep for one segment from step to step.

Letters: W workers, L hosted here, n elements of one segment.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..communication.messages import State
from ..communication.segments import Segment
from ..methods.algorithms import Algorithm, AllReduce
from ..methods.compressors import Compressor
from ..methods.compressors.none import NoCompression
from ..methods.memories import Memory
from ..settings import require
from .own_methods import OwnMethods, check_init, fitted

AllGather = Callable[[Tensor], Tensor]  # [W, ...] of [L, ...]
SavedState = dict[str, State]  # of memory, compressor and exchange


class SegmentState:
    """One segment's compressor, and the states of memory, compressor and algorithm.

    With a `dtype`, what the memory keeps is rounded to it between `round_memory` and
    `widen_memory`.
    """

    def __init__(
        self,
        segment: Segment,
        like: Tensor,
        memory: Memory,
        algorithm: Algorithm | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.segment = segment
        self.like = like  # [L, n]; the parameters, where workers have their own
        self.memory = memory
        self.algorithm = algorithm or AllReduce()
        self.algorithm_state: State = self.algorithm.init(like, segment)
        self.memory_state: State = memory.init(like, segment.dense)
        self.compressor: Compressor = NoCompression()
        self.compressor_state: State = {}
        self.dtype = dtype
        self.own = OwnMethods.of(self.algorithm, memory, self.compressor)  # None: no own ones
        check_init("algorithm", self.algorithm, self.algorithm_state, like)
        check_init("memory", memory, self.memory_state, like)
        self.round_memory()

    def widen_memory(self) -> None:
        """Bring what the memory keeps to the dtype that it computes in."""
        if self.dtype is not None:
            self.memory_state = {k: v.to(self.like.dtype) for k, v in self.memory_state.items()}

    def round_memory(self) -> None:
        """Round what the memory keeps to the dtype that it is kept in."""
        if self.dtype is not None:
            self.memory_state = {k: v.to(self.dtype) for k, v in self.memory_state.items()}

    def set_compressor(self, compressor: Compressor) -> None:
        """Compress by this method from now on, with a new state; what is exempt stays whole."""
        if not self.segment.dense:
            self.compressor = fitted(compressor, self.segment.shape)
            self.compressor_state = self.compressor.init(self.like)
            for part in compressor.parts:
                check_init("compressor", part, self.compressor_state, self.like)
            self.own = OwnMethods.of(self.algorithm, self.memory, compressor)

    def rows(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield what memory and algorithm keep of each worker: place, name, and [L, ...]."""
        per_worker = self._per_worker()
        for place in ("memory", "exchange"):
            for name, value in self._states()[place].items():
                if name in per_worker[place]:
                    yield place, name, value

    def state_dict(self, all_gather: AllGather | None = None) -> SavedState:
        """Return what a resumed simulation needs, of all W workers.

        `all_gather` returns [W, ...] for [L, ...], where other processes host the other workers.
        """
        states = self._states()
        if all_gather is None:
            return states
        per_worker = self._per_worker()
        return {
            place: _with_rows(state, per_worker[place], all_gather)
            for place, state in states.items()
        }

    def load_state_dict(self, state: SavedState, hosted: slice | None = None) -> None:
        """Take over what `state_dict` returned, of the workers hosted here if not of all.

        Raises `SettingError` for that of a compressor that keeps something else.
        """
        per_worker = self._per_worker()
        for place, own in self._states().items():
            loaded = state[place]
            if hosted is not None:
                loaded = _with_rows(loaded, per_worker[place], lambda rows: rows[hosted])
            if place == "compressor":
                _require_same(self.segment.name, loaded, own)
            for name, value in loaded.items():
                device = own.get(name, self.like).device  # a counter may stay on the CPU
                own[name] = value.to(device, copy=True)

    def _states(self) -> SavedState:
        return {
            "memory": self.memory_state,
            "compressor": self.compressor_state,
            "exchange": self.algorithm_state,
        }

    def _per_worker(self) -> dict[str, set[str]]:
        """Return which tensors of each state have a row a worker: two have two rows."""
        two = torch.empty(2, self.segment.n, dtype=self.like.dtype, device="meta")
        states = {
            "memory": self.memory.init(two, self.segment.dense),
            "compressor": self.compressor.init(two) if self.compressor_state else {},
            "exchange": self.algorithm.init(two, self.segment),
        }
        return {
            place: {name for name, value in state.items() if len(value) == 2}
            for place, state in states.items()
        }


def _with_rows(state: State, names: set[str], rows: AllGather) -> State:
    return {name: rows(value) if name in names else value for name, value in state.items()}


def _require_same(segment: str, saved: State, own: State) -> None:
    """Raise `SettingError` where a compressor begins with what was not saved so."""
    lacking = [name for name in own if name not in saved]
    fix = "resume with the compressor as it was, or train again"
    rule = f"lacks {', '.join(lacking)} of {segment}, which the compressor keeps by now"
    require(not lacking, "checkpoint", None, rule, fix)
    for name, value in own.items():
        before, now = list(saved[name].shape), list(value.shape)
        rule = f"has {name} of {segment} as {before}, and the compressor keeps {now} by now"
        require(before == now, "checkpoint", None, rule, fix)
