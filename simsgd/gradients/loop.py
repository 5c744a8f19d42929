"""Per-worker gradients by one ordinary backward for each worker: the obviously correct engine.

Letters: L workers hosted here, b samples each.
"""

import torch
from torch import Tensor

from ..registry import register
from .contract import GradientEngine, Gradients, Tensors, require_gradient, unused_by
from .dropout import ReplayedDropout
from .generators import put_back
from .places import lent
from .trees import row, stacked


@register("engine", "loop")
class Loop(GradientEngine):
    """One worker after another; takes any model that autograd can differentiate.

    The model is each worker's in turn, from the start of its forward to the end of its backward,
    and so are torch's, Python's and numpy's generators, which are seeded with its key.
    """

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`."""
        workers = len(keys)
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        space, done = self.space(params, workers), []
        values = space.values
        with put_back(keys.device) as generators:
            for w, key in enumerate(keys.tolist()):
                generators.seed(key)
                dropout = ReplayedDropout(keys[w])
                done.append(self.one(w, params, after, values, row(x, w), row(y, w), dropout))
        losses, outputs, missing = zip(*done, strict=True)
        unused = unused_by(missing)
        return Gradients(
            values, torch.stack(losses), stacked([*outputs]), after, unused=unused, flat=space.flat
        )

    def one(
        self,
        w: int,
        params: Tensors,
        buffers: Tensors,
        values: Tensors,
        x: Tensor,
        y: Tensor,
        dropout: ReplayedDropout,
    ) -> tuple[Tensor, Tensor, list[str]]:
        """Return worker `w`'s loss, output and the parameters that got no gradient.

        `x` [b, ...], `y` [b, ...] and `dropout` are the worker's own.
        Its row of `values` gets the gradient, and its row of `buffers` what the model leaves there.
        """
        own = {name: buffer[w] for name, buffer in buffers.items()}  # views, updated in place
        read = {name: p[w] for name, p in params.items()} if self.per_worker else params
        with lent(self.model, read, own) as trained, dropout:
            loss, output = self.loss({}, {}, x, y)
            dropout.finished = True
            require_gradient(loss)
            # of an edge, not the tensor, whose backward would not be within `dropout`
            edge = torch.autograd.graph.get_gradient_edge(loss)
            torch.autograd.backward(edge, torch.full_like(loss, self.scale))
            for name, p in trained.items():
                self._write(values[name][w], p.grad)
            missing = [name for name, p in trained.items() if p.grad is None]
        return loss.detach(), output, missing

    @torch.no_grad()
    def _write(self, row: Tensor, grad: Tensor | None) -> None:
        """Write a gradient to a worker's row, zeros where there is none."""
        if grad is None:
            row.zero_()
        elif self.scale == 1:
            row.copy_(grad.to_dense() if grad.is_sparse else grad)
        else:
            torch.div(grad, self.scale, out=row)
