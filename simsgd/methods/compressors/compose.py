"""Select some entries of a gradient, then quantize what was selected.

Letters: L workers hosted here, n elements of one segment, k selected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from torch import Tensor

from ...communication.cuts import Cuts
from ...communication.messages import Joined, Message, SharedSparse, Sparse, State
from ...registry import build
from ...settings import SettingError
from .contract import Compressor, Quantizer, StepInfo
from .group import Group

_FIX = "write a sparsifier, then one quantizer, as in topk:0.01+terngrad"
_SHARED = "cannot share a scale after a sparsifier: it is found before entries are selected"


def composed(spec: str) -> Compressor:
    """Return the compressor of a spec, of one part or of a sparsifier and a quantizer.

    >>> composed("topk:0.01+sign")
    Composed(sparsifier=TopK(ratio=0.01), quantizer=Sign(scale='mean', zero='plus'))

    Raises `SettingError` where a part may not follow another.
    """
    parts: list[Compressor] = build("compressor", spec)
    for first, second in pairwise(parts):
        if isinstance(first, Quantizer):
            raise SettingError("compressor", spec, "must end with its quantizer", _FIX)
        if not first.selects:
            rule = "has a first part that selects no entries to quantize"
            raise SettingError("compressor", spec, rule, _FIX)
        if not isinstance(second, Quantizer):
            raise SettingError("compressor", spec, "must end with a quantizer", _FIX)
    if len(parts) == 1:
        return parts[0]
    sparsifier, quantizer = parts
    assert isinstance(quantizer, Quantizer)
    if quantizer.needs_global_max:
        raise SettingError("compressor", spec, _SHARED, "leave out shared_scale")
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
    def parts(self) -> Sequence[Compressor]:
        """The sparsifier and the quantizer."""
        return self.sparsifier, self.quantizer

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

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the method with both parts fitted to a segment of this shape."""
        return replace(
            self,
            sparsifier=self.sparsifier.for_shape(shape),
            quantizer=self.quantizer.for_shape(shape),
        )

    def init(self, like: Tensor) -> State:
        """Return the states of both parts, the names of each behind its place."""
        state: State = {}
        _put(self.sparsifier.init(like), state, 0)
        _put(self.quantizer.init(like), state, 1)
        return state

    @property
    def needs_global_max(self) -> bool:  # type: ignore[override]
        """Whether the sparsifier does; a quantizer that does is refused."""
        return self.sparsifier.needs_global_max

    def local_max(self, x: Tensor) -> Tensor:
        """Return the number of each worker that the sparsifier wants the maximum of, [L, 1]."""
        return self.sparsifier.local_max(x)

    def compress(self, x: Tensor, state: State, step: StepInfo) -> Message:
        """Return the entries of `x` [L, n] that are selected, quantized."""
        selecting, quantizing = _own(state, 0), _own(state, 1)
        message = self.sparsifier.compress(x, selecting, step.with_key(0))
        if not isinstance(message, Sparse | SharedSparse):
            rule = f"cannot quantize what {type(self.sparsifier).__name__} sends: it is not sparse"
            raise SettingError("compressor", None, rule, _FIX)
        values = message.values  # [L, k]
        inner = self.quantizer.quantize(values, message.counts, quantizing, step.with_key(1))
        _put(selecting, state, 0)
        _put(quantizing, state, 1)
        return replace(message, inner=inner)

    def compress_group(self, x: Tensor, group: Group) -> Joined | None:
        """Return the entries of `x` [L, P] that are selected, quantized."""
        if any(group.states):
            return None
        sparsifiers = [own.sparsifier for own in group.compressors if isinstance(own, Composed)]
        selecting = replace(group.of(group.cuts, 0), compressors=sparsifiers)
        selected = self.sparsifier.compress_group(x, selecting)
        if selected is None or type(selected.whole) is not Sparse:
            return None
        if selected.whole.counts is not None:  # a quantizer's group has as many in every row
            return None
        chosen = [part for part in selected.parts if isinstance(part, Sparse)]
        kept = Cuts(tuple(part.index.shape[1] for part in chosen))
        codes = self.quantizer.quantize_group(selected.whole.values, group.of(kept, 1))
        if codes is None or codes.whole is None:
            return None
        pairs = list(zip(chosen, codes.parts, strict=True))

        def split(sent: Message) -> list[Message]:
            assert isinstance(sent, Sparse)
            return [replace(part, inner=own, coding=sent.coding) for part, own in pairs]

        whole = replace(selected.whole, inner=codes.whole)
        return Joined.made_together(group.cuts, whole, split)


def _own(state: State, place: int) -> State:
    """Return the state of the part at `place`, under the names that it gave."""
    return {name[2:]: value for name, value in state.items() if name.startswith(f"{place}.")}


def _put(own: State, state: State, place: int) -> None:
    """Store the state of a part, in which a method may have put new tensors."""
    for name, value in own.items():
        state[f"{place}.{name}"] = value
