"""Answers to sums and products of samples and weights, see `folding`.

Samples are taken apart, [outer, L, inner, ...], and a weight is each worker's own, [L, 1, ...]: the
result broadcasts as it would in a worker's own batch, and so does the way back.

Letters: L workers of the pass, b samples each, B = L * b.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .dropout import Function
from .folding import EXPANDING, MIXED, Folding, answers

_NAMES = (
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "pow",
    "maximum", "minimum", "where", "lerp", "addcmul", "addcdiv", "atan2", "hypot", "logaddexp",
)  # fmt: skip
_DUNDERS = ("radd", "rmul", "rsub", "rdiv", "rtruediv", "rpow", "pow", "add", "mul", "sub")
_OPERATORS = tuple(f"__{name}__" for name in _DUNDERS)
_IN_PLACE = tuple(f"{name}_" for name in _NAMES if name != "add")  # which is for buffers too


def _functions(names: Sequence[str]) -> list[Function]:
    """Return the functions and methods of torch by these names."""
    places = (torch, Tensor)
    return [getattr(place, name) for name in names for place in places if hasattr(place, name)]


@answers(MIXED, *_functions([*_NAMES, *_OPERATORS, *_IN_PLACE]))
def elementwise(folding: Folding, func: Function, *args: Any, **kwargs: Any) -> Tensor | None:
    """Answer a function that goes element by element and broadcasts."""
    given = [a for a in [*args, *kwargs.values()] if isinstance(a, Tensor)]
    n = max(t.dim() for t in given)
    apart = {id(t): _apart(folding, t, n) for t in given}
    if any(own is None for own in apart.values()):
        return None
    if func.__name__.endswith("_") and not func.__name__.startswith("__"):
        return _in_place(folding, func, apart, args, kwargs)
    out = func(*(apart.get(id(a), a) for a in args), **_replaced(apart, kwargs))
    return folding.fold.joined(out)


def _in_place(
    folding: Folding,
    func: Function,
    apart: dict[int, Tensor | None],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Tensor | None:
    if folding.is_weight(args[0]):
        return None
    func(*(apart.get(id(a), a) for a in args), **_replaced(apart, kwargs))  # its first is a view
    own: Tensor = args[0]
    return own


def _replaced(apart: dict[int, Tensor | None], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: apart.get(id(value), value) for name, value in kwargs.items()}


def _apart(folding: Folding, t: Tensor, n: int) -> Tensor | None:
    """Return a tensor as it broadcasts with samples of `n` dimensions that were taken apart.

    None if it is not known how.
    """
    if folding.is_weight(t):
        return _own(folding, t, n)
    if t.dim() == n and folding.fold.holds(t):
        return folding.fold.apart(t)
    if folding.has_samples(t):
        return None
    if t.dim() < n:
        return t
    return t.unsqueeze(0).unsqueeze(0) if len(t) == 1 else None


def _own(folding: Folding, weight: Tensor, n: int) -> Tensor | None:
    """Return each worker's own weight, [L, 1, ...] of n + 1 dimensions, beside samples of n."""
    own = folding.weights.own(weight)  # [L, *shape]
    if weight.dim() == n and n > 0:
        if len(weight) != 1:
            return None
        own = own.squeeze(1)
    return own.reshape(len(own), 1, *[1] * (n - own.dim()), *own.shape[1:])


@answers(
    MIXED,
    torch.matmul,
    Tensor.matmul,
    Tensor.__matmul__,
    torch.mm,
    Tensor.mm,
    torch.bmm,
    Tensor.bmm,
)
def matmul(folding: Folding, func: Function, left: Tensor, right: Tensor) -> Tensor | None:
    """Answer a product of matrices."""
    return _matmul(folding, left, right)


@answers(MIXED, Tensor.__rmatmul__)
def reversed_matmul(folding: Folding, func: Function, right: Tensor, left: Tensor) -> Tensor | None:
    """Answer `left @ right`."""
    return _matmul(folding, left, right)


def _matmul(folding: Folding, left: Tensor, right: Tensor) -> Tensor | None:
    if folding.is_weight(right) and right.dim() == 2 and folding.fold.holds(left):
        if left.dim() < 2 or folding.is_weight(left):
            return None
        transposed = folding.weight(Tensor.t, right)
        return folding.seen(folding.weights.linear(left, transposed, None))
    n = max(left.dim(), right.dim())
    if n < 3 or min(left.dim(), right.dim()) < 2:
        return None
    pair = [_apart(folding, t, n) for t in (left, right)]
    if pair[0] is None or pair[1] is None:
        return None
    return folding.fold.joined(torch.matmul(pair[0], pair[1]))


@answers(MIXED, torch.addmm, Tensor.addmm)
def addmm(
    folding: Folding,
    func: Function,
    input: Tensor,
    left: Tensor,
    right: Tensor,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor | None:
    """Answer `input + left @ right`."""
    if (beta, alpha) != (1, 1):
        return None
    product = _matmul(folding, left, right)
    if product is None:
        return None
    return elementwise(folding, Tensor.add, product, input)


@answers(MIXED, torch.einsum)
def einsum(folding: Folding, func: Function, equation: Any, *operands: Any) -> Tensor | None:
    """Answer a sum of products by letters, in which the first letter of samples is theirs."""
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    terms, result = equation.replace(" ", "").split("->")
    written = _apart_terms(folding, terms.split(","), operands)
    samples = {term[0] for term, t in zip(terms.split(","), operands, strict=True)
               if not folding.is_weight(t)}  # fmt: skip
    if written is None or samples != {result[:1]} or any(c in terms for c in "XYZ"):
        return None
    changed, tensors = written
    out = torch.einsum(f"{','.join(changed)}->XYZ{result[1:]}", *tensors)
    return folding.fold.joined(out)


def _apart_terms(
    folding: Folding, terms: Sequence[str], operands: Sequence[Tensor]
) -> tuple[list[str], list[Tensor]] | None:
    """Return terms and operands with the letters X, Y and Z for outer, L and inner."""
    letters = {t[:1] for t, o in zip(terms, operands, strict=True) if not folding.is_weight(o)}
    changed, tensors = [], []
    for term, operand in zip(terms, operands, strict=True):
        if folding.is_weight(operand):
            if letters & set(term):
                return None
            changed.append("Y" + term)
            tensors.append(folding.weights.own(operand))
        elif folding.fold.holds(operand):
            changed.append("XYZ" + term[1:])
            tensors.append(folding.fold.apart(operand))
        else:
            return None
    return changed, tensors


def lengthened(folding: Folding, own: Tensor) -> Tensor:
    """Return [B, ...] of each worker's own [L, ...]: one for each of its samples."""
    fold = folding.fold
    outer, inner = (fold.each, 1) if fold.by_turns else (1, fold.each)
    whole = own.unsqueeze(1).unsqueeze(0)  # [1, L, 1, ...]
    return fold.joined(whole.expand(outer, -1, inner, *own.shape[1:]))


@answers(MIXED, Tensor.expand, Tensor.broadcast_to, torch.broadcast_to)
def expand(
    folding: Folding, func: Function, weight: Tensor, *sizes: Any, **kwargs: Any
) -> Tensor | None:
    """Answer an expansion of a weight to all samples."""
    sizes = tuple(kwargs.get("size", sizes))
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    return _repeated(folding, weight, lambda t: t.expand(1, *sizes[1:]), len(sizes))


@answers(MIXED, Tensor.expand_as)
def expand_as(folding: Folding, func: Function, weight: Tensor, other: Tensor) -> Tensor | None:
    """Answer an expansion of a weight to the shape of samples."""
    if len(other) != folding.fold.samples:
        return None
    return _repeated(folding, weight, lambda t: t.expand(1, *other.shape[1:]), other.dim())


@answers(MIXED, Tensor.repeat)
def repeat(
    folding: Folding, func: Function, weight: Tensor, *sizes: Any, **kwargs: Any
) -> Tensor | None:
    """Answer a repetition of a weight, once for each sample."""
    sizes = tuple(kwargs.get("repeats", sizes))
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    return _repeated(folding, weight, lambda t: t.repeat(1, *sizes[1:]), len(sizes))


def _repeated(folding: Folding, weight: Tensor, one: Function, n: int) -> Tensor | None:
    """Return [B, ...] of a weight, of which `one` gives [1, ...] with n dimensions."""
    if not folding.is_weight(weight) or (weight.dim() == n and len(weight) != 1):
        return None
    of_one = folding.weight(one, weight)
    return lengthened(folding, folding.weights.own(of_one).squeeze(1))


EXPANDING |= {Tensor.expand, Tensor.broadcast_to, torch.broadcast_to, Tensor.repeat}
