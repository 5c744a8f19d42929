"""Linear layers and embeddings of a folded batch: one product forward, each worker's own back.

Letters: L workers of the pass, b samples each, m vectors of one worker, i inputs, o outputs.

Autograd passes through these functions because their weights require a gradient; what it is told
for the weights is nothing, so that any gradient it does find comes from a use that is not known.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
        workers: int,
    ) -> Tensor:
        """Return [L * b, ..., o] of `x` [L * b, ..., i] and `weight` [o, i]."""
        node.save_for_backward(x, weight)
        node.names = rows.name(weight), rows.name(bias)
        node.rows, node.workers = rows, workers
        rows.use(node.names[0])
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, given that of the result."""
        x, weight = node.saved_tensors
        name, bias = node.names
        own = slope.reshape(node.workers, -1, slope.shape[-1])  # [L, m, o]
        if name is not None:
            inputs = x.reshape(node.workers, -1, x.shape[-1])  # [L, m, i]
            node.rows.add_product(name, own.transpose(1, 2), inputs)
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
        workers: int,
        padding: int | None,
    ) -> Tensor:
        """Return [L * b, ..., o] of `index` [L * b, ...]; that of `padding` gets no gradient."""
        node.save_for_backward(index)
        node.name, node.entries = rows.name(weight), len(weight)
        node.rows, node.workers = rows, workers
        node.padding = padding
        return F.embedding(index, weight)

    @staticmethod
    def backward(node: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Add what each entry was given, worker by worker, as entries of one long table."""
        (index,) = node.saved_tensors
        if node.padding is not None:
            padded = index == node.padding % node.entries
            slope = slope.masked_fill(padded.unsqueeze(-1), 0)
        first = torch.arange(node.workers, device=index.device).mul_(node.entries)  # [L]
        place = index.reshape(node.workers, -1) + first.unsqueeze(1)  # [L, m]
        total = torch.ops.aten.embedding_dense_backward(
            slope.reshape(-1, slope.shape[-1]),
            place.flatten(),
            node.workers * node.entries,
            -1,
            False,
        )
        node.rows.add(node.name, total.unflatten(0, (node.workers, node.entries)))
        return None, None, None, None, None
