"""Linear layers and embeddings of a folded batch: one product forward, each worker's own back.

Letters: L workers of the pass, b samples each, m vectors of one worker, i inputs, o outputs.

Autograd passes through these functions because their weights require a gradient; what it is told
for the weights is nothing, so that any gradient it does find comes from a use that is not known.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .fold import Fold
from .grad_accumulator import Rows


class Linear(torch.autograd.Function):
    """`F.linear(x, weight, bias)`, whose backward adds the workers' gradients to `rows`."""

    @staticmethod
    def forward(
        node: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Rows,
        fold: Fold,
    ) -> Tensor:
        """Return [L * b, ..., o] of `x` [L * b, ..., i] and `weight` [o, i]."""
        node.save_for_backward(x, weight)
        node.names = rows.name(weight), rows.name(bias)
        node.rows, node.fold = rows, fold
        rows.use(node.names[0])
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, given that of the result."""
        x, weight = node.saved_tensors
        name, bias = node.names
        own = _vectors(node.fold, slope)  # [L, m, o]
        if name is not None:
            node.rows.add_product(name, own.transpose(1, 2), _vectors(node.fold, x))
        if bias is not None:
            node.rows.add_sum(bias, own)
        back = slope.matmul(weight) if node.needs_input_grad[0] else None
        return back, None, None, None, None


class Embedding(torch.autograd.Function):
    """`F.embedding(index, weight)`, whose backward adds the workers' gradients to `rows`."""

    @staticmethod
    def forward(
        node: Any,
        index: Tensor,
        weight: Tensor,
        rows: Rows,
        fold: Fold,
        padding: int | None,
    ) -> Tensor:
        """Return [L * b, ..., o] of `index` [L * b, ...]; that of `padding` gets no gradient."""
        node.save_for_backward(index)
        node.name, node.entries = rows.name(weight), len(weight)
        node.rows, node.fold = rows, fold
        node.padding = padding
        return F.embedding(index, weight)

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Add what each entry was given, worker by worker, as entries of one long table."""
        (index,) = node.saved_tensors
        if node.padding is not None:
            padded = index == node.padding % node.entries
            slope = slope.masked_fill(padded.unsqueeze(-1), 0)
        workers = node.fold.workers
        first = torch.arange(workers, device=index.device).mul_(node.entries)  # [L]
        place = node.fold.apart(index.flatten(1) if index.dim() > 1 else index.unsqueeze(1))
        place = place + first.view(-1, 1, 1)  # [outer, L, inner, ...]
        total = torch.ops.aten.embedding_dense_backward(
            slope.reshape(-1, slope.shape[-1]),
            place.flatten(),
            workers * node.entries,
            -1,
            False,
        )
        node.rows.add(node.name, total.unflatten(0, (workers, node.entries)))
        return None, None, None, None, None


def _vectors(fold: Fold, t: Tensor) -> Tensor:
    """Return the vectors of each worker, [L, m, n], of `t` [L * b, ..., n]."""
    own: Tensor = fold.rows(t).reshape(fold.workers, -1, t.shape[-1])
    return own
