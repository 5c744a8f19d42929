"""Gradients over several passes before one exchange.

Letters: L workers hosted here, M passes, b samples each.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..draw import Draw
from .contract import GradientEngine, Gradients, Tensors

Squares = Callable[..., Tensors]  # `sample_squares`


def accumulated(
    engine: GradientEngine,
    params: Tensors,
    buffers: Tensors,
    x: Tensor,
    y: Tensor,
    draw: Draw,
    squares: Squares | None = None,
) -> Gradients:
    """Return the mean of the gradients of M passes; `x` and `y` are [L, M, b, ...].

    BatchNorm sees one pass after the other. With `squares`, the sums of squares of per-sample
    gradients are computed too. Shapes as in `GradientEngine`; the output is [L, M * b, ...].
    """
    passes = x.shape[1]
    done: list[Gradients] = []
    for number, (batch, target) in enumerate(zip(x.unbind(1), y.unbind(1), strict=True)):
        keys = draw.at(number).keys()
        before = done[-1].buffers if done else buffers
        one = engine(params, before, batch, target, keys)
        if squares is not None:
            model, criterion = engine.model, engine.criterion
            own = squares(model, criterion, params, before, batch, target, keys)
            one = replace(one, squares=own)
        done.append(one)
    return done[0] if passes == 1 else _merged(done)


def _merged(done: list[Gradients]) -> Gradients:
    mean = 1 / len(done)
    squares = [one.squares for one in done if one.squares is not None]
    return Gradients(
        values=_total([one.values for one in done], mean),
        loss=torch.stack([one.loss for one in done]).mean(0),
        output=torch.cat([one.output for one in done], dim=1),
        buffers=done[-1].buffers,
        squares=_total(squares, mean**2) if squares else None,
    )


def _total(parts: list[Tensors], scale: float) -> Tensors:
    """Return the sum of the parts times `scale`; the first part's tensors are reused."""
    for name, total in parts[0].items():
        for part in parts[1:]:
            total.add_(part[name])
        total.mul_(scale)
    return parts[0]
