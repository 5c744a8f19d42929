"""Per-worker gradients by one ordinary backward for each worker: the obviously correct engine.

Letters: L workers hosted here, b samples each.
"""

import torch
from torch import Tensor

from ..registry import register
from .contract import GradientEngine, Gradients, Tensors
from .dropout import KeyedDropout


@register("engine", "loop")
class Loop(GradientEngine):
    """One worker after another; takes any model that autograd can differentiate."""

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`."""
        workers = len(keys)
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        values = self.space(params, workers)
        done = [self.one(w, params, after, values, x[w], y[w], keys[w]) for w in range(workers)]
        losses, outputs = zip(*done, strict=True)
        return Gradients(values, torch.stack(losses), torch.stack(outputs), after)

    def one(
        self,
        w: int,
        params: Tensors,
        buffers: Tensors,
        values: Tensors,
        x: Tensor,
        y: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return worker `w`'s loss and output for its `x` [b, ...], `y` [b, ...] and `key`.

        Its row of `values` gets the gradient, and its row of `buffers` what the model leaves there.
        """
        own = {name: buffer[w] for name, buffer in buffers.items()}  # views, updated in place
        read = self._read(params, w)
        with KeyedDropout(key):
            loss, output = self.loss(read, own, x, y)
        scaled = loss if self.scale == 1 else loss * self.scale
        grads = torch.autograd.grad(scaled, list(read.values()), materialize_grads=True)
        for row, grad in zip(values.values(), grads, strict=True):
            row[w].copy_(grad)
            if self.scale != 1:
                row[w].div_(self.scale)
        return loss.detach(), output

    def _read(self, params: Tensors, worker: int) -> Tensors:
        """Return the parameters at which a worker takes its gradient."""
        if not self.per_worker:
            return params
        return {name: p[worker].detach().requires_grad_() for name, p in params.items()}
