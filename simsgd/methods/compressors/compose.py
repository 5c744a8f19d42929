"""Select some entries of a gradient, then quantize what was selected.

Letters: L workers hosted here, n elements of one segment, k selected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import Message, SharedSparse, Sparse, State
from ...keyed_random import RandomKey
from ...registry import build
from ...settings import SettingError, require
from .contract import Compressor, Conversation, Quantizer
from .none import NoCompression

_ANSWERS = ("shared", "squares", "gradient")  # what others put into the state of a compressor
_FIX = "write a sparsifier, then one quantizer, as in topk:0.01+terngrad"


def composed(spec: str) -> Compressor:
    """Return the compressor of a spec, of one part or of a sparsifier and a quantizer.

    >>> composed("topk:0.01+sign")
    Composed(sparsifier=TopK(ratio=0.01), quantizer=Sign(scale='mean'))

    Raises `SettingError` where a part may not follow another.
    """
    parts: list[Compressor] = build("compressor", spec)
    for first, second in pairwise(parts):
        rule = "lets nothing follow a quantizer"
        require(not isinstance(first, Quantizer), "compressor", spec, rule, _FIX)
        rule = "lets nothing follow a method that selects nothing"
        whole = isinstance(first, NoCompression | Conversation)
        require(not whole, "compressor", spec, rule, _FIX)
        rule = "lets only a quantizer follow a sparsifier"
        require(isinstance(second, Quantizer), "compressor", spec, rule, _FIX)
    if len(parts) == 1:
        return parts[0]
    sparsifier, quantizer = parts
    assert isinstance(quantizer, Quantizer)
    rule = "cannot share a scale: workers are asked before anything is selected"
    asks = quantizer.ask(torch.zeros(1, 1)) is not None
    require(not asks, "compressor", spec, rule, "leave out shared_scale")
    return Composed(sparsifier, quantizer)


@dataclass(frozen=True)
class Composed(Compressor):
    """Each worker sends what a sparsifier selects, in the form that a quantizer gives it.

    A norm or mean of the quantizer is that of the selected entries. A memory keeps the entries that
    were not selected and the quantization error of those that were. Biased if either part is.
    Where all workers select the same entries it may ride an all-reduce if the quantized values can
    be summed (fp16, bf16).
    """

    sparsifier: Compressor  # its messages are Sparse or SharedSparse
    quantizer: Quantizer

    @property
    def biased(self) -> bool:
        """Whether one of the parts is."""
        return self.sparsifier.biased or self.quantizer.biased

    @property
    def needs_squares(self) -> bool:  # type: ignore[override]
        """Whether the sparsifier does."""
        return self.sparsifier.needs_squares

    @property
    def has_own_memory(self) -> bool:  # type: ignore[override]
        """Whether the sparsifier does."""
        return self.sparsifier.has_own_memory

    @property
    def needs_gradient(self) -> bool:  # type: ignore[override]
        """Whether the sparsifier does."""
        return self.sparsifier.needs_gradient

    def fitted(self, shape: Sequence[int]) -> Self:
        """Return the method with both parts fitted to a segment of this shape."""
        return replace(
            self, sparsifier=self.sparsifier.fitted(shape), quantizer=self.quantizer.fitted(shape)
        )

    def init(self, like: Tensor) -> State:
        """Return the states of both parts, the names of each behind its place."""
        state: State = {}
        _put(self.sparsifier.init(like), state, 0)
        _put(self.quantizer.init(like), state, 1)
        return state

    def ask(self, said: Tensor) -> Tensor | None:
        """Return the question of the sparsifier; the quantizer has none."""
        return self.sparsifier.ask(said)

    def compress(self, said: Tensor, state: State, draw: RandomKey) -> Message:
        """Return the entries of `said` [L, n] that are selected, quantized."""
        selecting, quantizing = _own(state, 0), _own(state, 1)
        message = self.sparsifier.compress(said, selecting, draw.at(0))
        if not isinstance(message, Sparse | SharedSparse):
            told = f"lets nothing follow {type(self.sparsifier).__name__}, which selects nothing"
            raise SettingError("compressor", None, told, _FIX)
        values = message.values  # [L, k]
        inner = self.quantizer.quantize(values, message.counts, quantizing, draw.at(1))
        _put(selecting, state, 0)
        _put(quantizing, state, 1)
        return replace(message, inner=inner)


def _own(state: State, place: int) -> State:
    """Return what a part sees of the state: its own, and for the first what others put there."""
    own = {name[2:]: value for name, value in state.items() if name.startswith(f"{place}.")}
    if place == 0:
        own |= {name: state[name] for name in _ANSWERS if name in state}
    return own


def _put(own: State, state: State, place: int) -> None:
    """Store the state of a part, in which a method may have put new tensors."""
    for name, value in own.items():
        state[name if name in _ANSWERS else f"{place}.{name}"] = value
