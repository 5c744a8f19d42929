"""Gradients over several passes before one exchange.

Letters: L workers hosted here, M passes, b samples each.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..keyed_random import RandomKey
from .contract import GradientEngine, Gradients, Tensors
from .cuda_graph import CudaGraphs
from .flat_rows import FlatRows
from .oom_retry import with_oom_retry
from .trees import cloned, leaves, mapped, row

Squares = Callable[..., Tensors]  # `sample_squares`


def accumulated(
    engine: GradientEngine,
    params: Tensors,
    buffers: Tensors,
    x: Tensor,
    y: Tensor,
    key: RandomKey,
    squares: Squares | None = None,
    graphs: CudaGraphs | None = None,
) -> Gradients:
    """Return the mean of the gradients of M passes; `x` and `y` are [L, M, b, ...].

    BatchNorm sees one pass after the other. With `squares`, the sums of squares of per-sample
    gradients are computed too. Shapes as in `GradientEngine`; the output is [L, M * b, ...].
    """
    passes = leaves(x)[0].shape[1]
    total: Gradients | None = None
    for number in range(passes):
        batch, target = (row(part, (slice(None), number)) for part in (x, y))
        keys = key.fold_in(number).keys()
        before = buffers if total is None else total.buffers
        samples = (batch, target) if squares is None else (cloned(batch), cloned(target))
        one = with_oom_retry(engine, graphs, params, before, batch, target, keys)
        if squares is not None:
            model, criterion = engine.model, engine.criterion
            own = squares(model, criterion, params, before, *samples, keys, engine.per_worker)
            one = replace(one, squares=own)
        if passes == 1:
            return one
        total = _copied(one) if total is None else _added(total, one)
    assert total is not None
    return _mean(total, passes)


def _copied(one: Gradients) -> Gradients:
    """Return the gradients in memory of their own, as the engine will use its again."""
    own = FlatRows(one.flat, one.values).mapped(Tensor.clone)
    return replace(one, values=own.values, flat=own.flat)


def _added(total: Gradients, one: Gradients) -> Gradients:
    """Return the sums, with the outputs one after the other and the buffers of the latter."""
    _add_(total.values, one.values)
    if total.squares is not None and one.squares is not None:
        _add_(total.squares, one.squares)
    output = mapped(_beside, total.output, one.output)
    unused = {n: own & one.unused[n] for n, own in total.unused.items() if n in one.unused}
    loss = total.loss + one.loss
    return replace(total, loss=loss, output=output, buffers=one.buffers, unused=unused)


def _beside(one: Tensor, other: Tensor) -> Tensor:
    """Return outputs [L, b, ...] of two passes, or numbers [L], one after the other."""
    return torch.cat([t if t.dim() > 1 else t.unsqueeze(1) for t in (one, other)], dim=1)


def _mean(total: Gradients, passes: int) -> Gradients:
    for tensors, scale in ((total.values, 1 / passes), (total.squares or {}, passes**-2)):
        for value in tensors.values():
            value.mul_(scale)
    return replace(total, loss=total.loss / passes)


def _add_(total: Tensors, terms: Tensors) -> None:
    for name, value in total.items():
        value.add_(terms[name])
