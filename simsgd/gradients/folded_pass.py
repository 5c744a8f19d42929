"""One forward and one backward of some workers together.

Letters: L workers of the pass, b samples each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from . import folded_attention, folded_layers, folded_products  # noqa: F401 - register answers
from .contract import GradientEngine, Tensors, UnsupportedModel, carried
from .flat_rows import FlatRows
from .fold import Fold
from .folding import Folding
from .generators import untouched
from .grad_accumulator import Rows
from .model_cost import kind_of
from .own_weights import OwnWeights
from .plan import Plan
from .self_check import Batch
from .shared_weights import SharedWeights


@dataclass(frozen=True)
class Passed:
    """What a pass gives beside gradients and buffers."""

    losses: Tensor  # each worker's mean loss, [L]
    output: Tensor  # [L, b, ...]
    unused: list[str]  # parameters without gradient
    counted: frozenset[int]  # see `Folding`
    largest: int  # elements of a layer's largest result
    recurrent: bool  # whether a weight was used at every step of a sequence


@dataclass(frozen=True)
class FoldedPass:
    """A pass of an engine's model; raises `UnsupportedModel` for one that it does not know."""

    engine: GradientEngine
    plan: Plan
    counted: frozenset[int] | None  # None: to be found

    def __call__(self, batch: Batch, space: FlatRows) -> Passed:
        """Write the workers' gradients to `space`; the batch's buffers are updated in place."""
        model, workers = self.engine.model, len(batch.keys)
        turns = self.plan.by_turns or batch.per_worker
        states = carried(model)
        convolves = kind_of(model) == "convolutions"
        fold = Fold(workers, batch.x.shape[1], turns and convolves and not states)
        if batch.per_worker:
            return self._of_own(batch, space, fold)
        rows = Rows(batch.params, space.values, self._joined(space))
        weights = SharedWeights(rows, fold, self.plan)
        folding = Folding(weights, batch.buffers, batch.keys, fold, states, self.counted)
        losses, output = self._forward(batch, batch.params, folding)
        _backward(losses, batch.params, folding, rows.leaves)
        rows.finish()
        return self._passed(losses, output, rows.unused, folding, rows.recurrent)

    def _of_own(self, batch: Batch, space: FlatRows, fold: Fold) -> Passed:
        """Return the same where each worker has parameters of its own, [L, *shape]."""
        params = {name: p.detach().requires_grad_() for name, p in batch.params.items()}
        standing = {name: p[0].detach().requires_grad_() for name, p in batch.params.items()}
        rows = Rows(standing, space.values, self._joined(space))
        weights = OwnWeights(params, standing, rows, fold)
        states = carried(self.engine.model)
        folding = Folding(weights, batch.buffers, batch.keys, fold, states, self.counted)
        losses, output = self._forward(batch, standing, folding)
        past = {f"the model's {n}": p for n, p in self.engine.model.named_parameters()}
        found = _backward(losses, {**standing, **past}, folding, list(params.values()))
        with torch.no_grad():
            for name, gradient in zip(params, found, strict=True):
                if gradient is not None:
                    rows.add(name, gradient)
        rows.finish()
        return self._passed(losses, output, rows.unused, folding, rows.recurrent)

    def _joined(self, space: FlatRows) -> Tensor | None:
        """Return the [L, P] that all gradients are put into at the end, None for one by one."""
        return space.flat[0] if self.plan.joined and len(space.flat) == 1 else None

    def _forward(self, batch: Batch, params: Tensors, folding: Folding) -> tuple[Tensor, Tensor]:
        """Return losses [L] and output [L, b, ...]."""
        fold = folding.fold
        samples = fold.folded(batch.x)
        folding.take_apart(samples)
        with untouched(batch.keys.device):
            with folding:
                output = self.engine.output(params, folding.shared, samples)
            if not isinstance(output, Tensor):
                raise UnsupportedModel("its output is not one tensor")
            return self._losses(output, batch.y, fold), fold.unfolded(output)

    def _losses(self, output: Tensor, y: Tensor, fold: Fold) -> Tensor:
        """Return each worker's mean loss [L] of `output` [L * b, ...]."""
        criterion = self.engine.criterion
        if criterion is F.cross_entropy and not y.is_floating_point():
            each = F.cross_entropy(output, fold.folded(y), reduction="none")
            counted = (y != -100).flatten(1).sum(1)  # targets of -100 do not count
            losses: Tensor = fold.rows(each).flatten(1).sum(1) / counted
            return losses
        pairs = zip(fold.unfolded(output), y, strict=True)
        return torch.stack([criterion(own, target) for own, target in pairs])

    def _passed(
        self, losses: Tensor, output: Tensor, unused: list[str], folding: Folding, recurrent: bool
    ) -> Passed:
        folding.check_buffers()
        counted = frozenset(folding.found) if self.counted is None else self.counted
        return Passed(losses.detach(), output.detach(), unused, counted, folding.largest, recurrent)


def _backward(
    losses: Tensor, params: Tensors, folding: Folding, others: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Go back from the losses to parameters and others; return the gradients of the latter.

    Raises `UnsupportedModel` if autograd finds a way to `params` itself: one that is not answered.
    """
    trained = {name: p for name, p in params.items() if p.requires_grad}
    asked = [*trained.values(), *others]
    found = torch.autograd.grad(losses.sum(), asked, allow_unused=True)
    for name, gradient in zip(trained, found, strict=False):
        if gradient is not None:
            by = f" ({folding.foreign[name]})" if name in folding.foreign else ""
            raise UnsupportedModel(f"{name} is used by something onepass does not know{by}")
    return found[len(trained) :]
