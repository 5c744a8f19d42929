"""Answers what a model calls while several workers' batches go through it as one.

What uses a weight is answered, so that its backward keeps the workers apart; dropout draws from
each worker's own stream; all else goes through as it is. The answers are functions in
`folded_layers`, `folded_products` and `folded_attention`.

Letters: L workers of the pass, b samples each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..keyed_random import uniform
from .contract import Tensors, UnsupportedModel
from .dropout import KeyedDropout, drops
from .fold import Fold
from .weights import Layer, Weights

Answer = Callable[..., object]  # (folding, function, *its arguments); None: it goes through
Kind = TypeVar("Kind", bound=Answer)
_NUMBERS: set[Layer] = {  # what gives Python a tensor's numbers, by which it may go on
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__complex__,
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__contains__, Tensor.equal,
    Tensor.allclose, torch.equal, torch.allclose, torch.is_nonzero, Tensor.is_nonzero,
}  # fmt: skip
LAYERS: dict[Layer, Answer] = {}  # what is answered at every call
MIXED: dict[Layer, Answer] = {}  # what is answered where it is given a weight
EXPANDING: set[Layer] = set()  # of MIXED, what makes a weight as long as the batch


def answers(table: dict[Layer, Answer], *functions: Layer) -> Callable[[Kind], Kind]:
    """Register an answer to calls of these functions."""

    def registered(answer: Kind) -> Kind:
        table.update(dict.fromkeys(functions, answer))
        return answer

    return registered


class Folding(KeyedDropout):
    """Within it, a forward pass of [L * b, ...] is that of L workers with b samples each.

    `buffers` {name: [L, *shape]} are updated in place; the model is to be given `shared`. Those in
    `carried` are [L, b, ...], contiguous: a state of each sample, which the model changes itself.

    A function of weights and constants alone gives a weight, unless its result has the length of
    the batch: whether that is by chance, or one part for each sample, is `counted`, numbers of the
    calls of which it may be asked. None: all are, and `found` has them after the pass.
    """

    def __init__(
        self,
        weights: Weights,
        buffers: Tensors,
        keys: Tensor,
        fold: Fold,
        carried: Sequence[str] = (),
        counted: frozenset[int] | None = None,
    ) -> None:
        super().__init__(keys)
        self.weights, self.buffers, self.fold = weights, buffers, fold
        states = {name: buffers[name].flatten(0, 1) for name in carried}  # views, [L * b, ...]
        self.shared = {name: buffer[0] for name, buffer in buffers.items()} | states
        self.foreign: dict[str, str] = {}  # parameters that another function was given
        self.largest = 0  # elements of the largest result of a layer
        self.kept: set[str] = set(carried)  # buffers that are updated for every worker
        self.statistical: set[str] = set()  # those that differ between workers
        self.found: set[int] = set()
        self._counted, self._number = counted, 0
        self._names = {id(buffer): name for name, buffer in self.shared.items()}
        self._given = dict(self.shared)
        self._written = {name: _written(buffer) for name, buffer in self.shared.items()}
        self._read: set[str] = set()  # buffers that another function was given
        self._origin: dict[int, set[str]] = {}  # parameters that weights were computed from
        self._of_samples = WeakIdKeyDictionary()
        for state in states.values():
            self.take_apart(state)

    def __torch_function__(
        self,
        func: Layer,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Answer calls of functions that use weights or a worker's randomness or statistics."""
        kwargs = kwargs or {}
        given = [*_tensors(args), *_tensors(kwargs.values())]
        weighted = any(id(t) in self.weights.names for t in given)
        alone = weighted and not any(self.has_samples(t) for t in given)
        if func in _NUMBERS and any(self.has_samples(t) for t in given):
            name = getattr(func, "__name__", str(func)).strip("_")
            raise UnsupportedModel(f"the model reads numbers of all workers' samples ({name})")
        if alone and not self._counts(func, args, kwargs):
            return self._of_weights(func, given, args, kwargs)
        answer = LAYERS.get(func) or (MIXED.get(func) if weighted else None)
        out = None if answer is None else answer(self, func, *args, **kwargs)
        if out is None:
            self._note(func, given)
            out = super().__torch_function__(func, types, args, kwargs)
        for tensor in _tensors([out]):
            if not tensor.requires_grad and any(self.has_samples(t) for t in given):
                self.take_apart(tensor)
        return out

    def take_apart(self, tensor: Tensor) -> None:
        """Remember that a tensor without gradient has parts of samples."""
        self._of_samples[tensor] = True

    def has_samples(self, tensor: Tensor) -> bool:
        """Return whether a tensor follows from the samples of a batch."""
        if tensor.requires_grad:
            return id(tensor) not in self.weights.names
        return tensor in self._of_samples

    def is_weight(self, value: object) -> bool:
        """Return whether this is a weight."""
        return id(value) in self.weights.names

    def weight(self, func: Layer, weight: Tensor, *args: object) -> Tensor:
        """Return what a function gives of a weight: another one."""
        out = self.weights.computed(func, (weight, *args), {})
        assert isinstance(out, Tensor)
        return out

    def split(self, func: Layer, x: Tensor, samples: bool = False) -> None:
        """Raise `UnsupportedModel` unless `x` is of samples, or of parts of them, at first."""
        even = self.fold.holds(x) and (not samples or len(x) == self.fold.samples)
        if not even:
            raise UnsupportedModel(
                f"{func.__name__} acts on {tuple(x.shape)}, which is not one part for each sample"
            )

    def wanted(self, *used: Tensor | None) -> bool:
        """Return whether to answer a call with these weights: some of ours, none of unknown origin.

        Of unknown origin is one that requires a gradient and is none of ours: autograd finds it.
        """
        ours = [self.weights.name(t) is not None for t in used]
        strange = [
            t is not None and t.requires_grad and not own for t, own in zip(used, ours, strict=True)
        ]
        return any(ours) and not any(strange)

    def seen(self, out: Tensor) -> Tensor:
        """Take note of the size of a layer's result, and return it."""
        self.largest = max(self.largest, out.numel())
        return out

    def buffer(self, given: Tensor) -> str | None:
        """Return the name of one of the model's buffers, None for any other tensor."""
        return self._names.get(id(given))

    def check_buffers(self) -> None:
        """Raise `UnsupportedModel` if a buffer changed for one worker, or was read for all."""
        for name in self.statistical & self._read:
            raise UnsupportedModel(f"the buffer {name} is read by something other than batch_norm")
        for name, buffer in self._given.items():
            if self.shared[name] is not buffer:
                raise UnsupportedModel(f"the buffer {name} is made anew by the model")
            if name not in self.kept and _written(buffer) != self._written[name]:
                raise UnsupportedModel(
                    f"the buffer {name} is changed by something onepass does not know"
                )

    def _of_weights(
        self, func: Layer, given: list[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> object:
        if drops(func) or func is F.batch_norm:
            name = "dropout" if drops(func) else "batch_norm"
            raise UnsupportedModel(f"{name} acts on something that is not one part for each sample")
        self._note_buffers(func, given)
        out = self.weights.computed(func, args, kwargs)
        from_these = {name for t in given for name in self._origins(t)}
        self._origin |= {id(t): from_these for t in _tensors([out]) if id(t) not in self._origin}
        return out

    def _origins(self, weight: Tensor) -> set[str]:
        """Return the parameters that a weight was computed from."""
        name = self.weights.name(weight)
        return set() if name is None else self._origin.get(id(weight), {name})

    def _counts(self, func: Layer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call without samples has one part for each of them, by its length."""
        first = args[0] if args else None
        if func in EXPANDING:
            long = _lengthens(func(*args, **kwargs), args[0], self.fold.samples)
        elif func in LAYERS and isinstance(first, Tensor) and self.weights.name(first) is None:
            long = self.fold.holds(first)
        else:
            return False
        self._number += 1
        if self._counted is None:
            if long:
                self.found.add(self._number)
            return long
        if self._number in self._counted and not long:
            raise UnsupportedModel(f"{func.__name__} is given other shapes than at first")
        return self._number in self._counted

    def _note(self, func: Layer, given: Sequence[Tensor]) -> None:
        """Remember which weights and buffers a function was given that is not answered."""
        for tensor in given:
            for name in self._origins(tensor):
                self.foreign[name] = getattr(func, "__name__", str(func))
        self._note_buffers(func, given)

    def _note_buffers(self, func: Layer, given: Sequence[Tensor]) -> None:
        if getattr(func, "__name__", "") != "__get__":
            self._read |= {self._names[id(t)] for t in given if id(t) in self._names}

    def _draws(self, n: int) -> Tensor:
        if n % self.fold.samples:
            raise UnsupportedModel("dropout acts on something that is not one part for each sample")
        draws = uniform(self.key + self.calls, n // self.fold.workers)  # [L, ...]
        return self.fold.folded(draws.unflatten(1, (self.fold.each, -1))).flatten()


def _tensors(given: Sequence[Any] | Any) -> Iterator[Tensor]:
    for value in given:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (one for one in value if isinstance(one, Tensor))


def _lengthens(out: object, weight: Tensor, samples: int) -> bool:
    """Return whether a weight was repeated along a first dimension as long as the batch."""
    if not isinstance(out, Tensor) or out.dim() == 0 or len(out) != samples:
        return False
    return weight.dim() < out.dim() or len(weight) == 1


def _written(buffer: Tensor) -> tuple[int, int]:
    """Return where a buffer lies, and how often it was written."""
    return buffer.data_ptr(), buffer._version
