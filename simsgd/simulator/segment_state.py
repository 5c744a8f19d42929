"""How the workers speak of one segment: its compressor, and what it, memory and exchange hold.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..communication.messages import State
from ..communication.segments import Segment
from ..methods.algorithms import Algorithm, AllReduce
from ..methods.compressors import Compressor
from ..methods.compressors.none import NoCompression
from ..methods.memories import Memory

Rows = Callable[[Tensor], Tensor]  # [W, ...] of [L, ...]


class SegmentState:
    """One segment's compressor and state; the memory's settings are the method's.

    With a `dtype`, what the memory holds is rounded to it between `store` and `recall`.
    """

    def __init__(
        self,
        segment: Segment,
        like: Tensor,
        memory: Memory,
        exchange: Algorithm | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.segment = segment
        self.like = like  # [L, n]; the parameters, where workers have their own
        self.memory = memory
        self.exchange = exchange or AllReduce()
        self.exchanged: State = self.exchange.init(like, segment)
        self.remembered: State = memory.init(like, segment.dense)
        self.compressor: Compressor = NoCompression()
        self.state: State = {}
        self.dtype = dtype
        self.store()

    def recall(self) -> State:
        """Return what the memory holds, in the dtype that it computes in, until `store`."""
        if self.dtype is not None:
            wide = self.like.dtype
            self.remembered = {name: held.to(wide) for name, held in self.remembered.items()}
        return self.remembered

    def store(self) -> None:
        """Round what the memory holds to the dtype that it is kept in."""
        if self.dtype is not None:
            narrow = {name: held.to(self.dtype) for name, held in self.remembered.items()}
            self.remembered = narrow

    def speak(self, compressor: Compressor) -> None:
        """Compress by this method from now on, with a new state; what is exempt stays whole."""
        if not self.segment.dense:
            self.compressor = compressor.for_shape(self.segment.shape)
            self.state = self.compressor.init(self.like)

    def state_dict(self, rows: Rows | None = None) -> dict[str, Any]:
        """Return what a resumed simulation needs: tensors and plain values, of all W workers.

        `rows` returns [W, ...] for [L, ...], where other processes host the other workers.
        """
        states = self._states()
        if rows is None:
            return states
        per_worker = self._of_each_worker()
        return {
            place: _with_rows(state, per_worker[place], rows) for place, state in states.items()
        }

    def load_state_dict(self, state: dict[str, Any], hosted: slice | None = None) -> None:
        """Take over what `state_dict` returned, of the workers hosted here if not of all."""
        per_worker = self._of_each_worker()
        for place, own in self._states().items():
            loaded = state[place]
            if hosted is not None:
                loaded = _with_rows(loaded, per_worker[place], lambda all: all[hosted])
            for name, value in loaded.items():
                device = own.get(name, self.like).device  # a counter may stay on the CPU
                own[name] = value.to(device, copy=True)

    def _states(self) -> dict[str, State]:
        return {"memory": self.remembered, "compressor": self.state, "exchange": self.exchanged}

    def _of_each_worker(self) -> dict[str, set[str]]:
        """Return which tensors of each state have a row a worker: two have two rows."""
        two = torch.empty(2, self.segment.n, dtype=self.like.dtype, device="meta")
        memory = self.memory.init(two, self.segment.dense)
        compressor = self.compressor.init(two) if self.state else {}
        exchange = self.exchange.init(two, self.segment)
        states = {"memory": memory, "compressor": compressor, "exchange": exchange}
        return {place: _of_two_rows(state) for place, state in states.items()}


def _of_two_rows(state: State) -> set[str]:
    return {name for name, value in state.items() if len(value) == 2}


def _with_rows(state: State, names: set[str], rows: Rows) -> State:
    return {name: rows(value) if name in names else value for name, value in state.items()}
