"""Squares of per-sample gradients, for compressors that weigh a gradient by its variance.

Letters: L workers hosted here, b samples each, P all parameters.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..settings import SettingError, one_line
from .contract import Criterion, Tensors, carried
from .dropout import SampleDropout

_NUMBERS = 1 << 22  # of per-sample gradients, held at once for each worker, if a sample's are fewer
_FIX = "use another compressor, or a model with GroupNorm or LayerNorm or without normalization"


def sample_squares(
    model: nn.Module,
    criterion: Criterion,
    params: Tensors,
    buffers: Tensors,
    x: Tensor,
    y: Tensor,
    keys: Tensor,
    per_worker: bool = False,
) -> Tensors:
    """Return the sum over each worker's samples z of (g_z / b)^2, {name: [L, *shape]}.

    g_z is the gradient of the loss of sample z alone; their mean is the gradient that an engine
    returns for the same arguments, if the criterion is a mean over samples. Shapes as in
    `GradientEngine`; the samples go through the model a few at a time, all workers together.
    Raises `SettingError` for a model that does not batch under vmap, and for BatchNorm in training:
    samples that are normalized together have no gradients of their own.
    """
    _refuse_batch_norm(model)
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        told = "variance needs the gradient of each sample, and takes batches of one tensor alone"
        raise SettingError("compressor", None, told, "use another compressor")
    squares_of = torch.func.vmap(
        _squares_of_samples(model, criterion),
        in_dims=(0 if per_worker or _is_recurrent(model) else None, 0, 0, 0, 0, None),
    )
    shared = {name: parameter.detach() for name, parameter in params.items()}
    b = x.shape[1]
    like = {name: p[0] if per_worker else p for name, p in shared.items()}
    if _is_recurrent(model) and not per_worker:
        shared = {name: p.expand(len(keys), *p.shape) for name, p in shared.items()}
    chunk = max(1, _NUMBERS // sum(p.numel() for p in like.values()))
    total = {name: p.new_zeros(len(keys), *p.shape) for name, p in like.items()}
    for first in range(0, b, chunk):
        now = slice(first, first + chunk)
        place = torch.arange(b, device=keys.device)[now]
        with _told():
            squares = squares_of(shared, buffers, x[:, now], y[:, now], keys, place)
        for name, value in total.items():
            value.add_(squares[name], alpha=b**-2)
    return total


@contextmanager
def _told() -> Iterator[None]:
    """Raise what vmap says of a model, whose gradients an engine has computed, in our words."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as wrong:
        rule = "variance needs the gradient of each sample, which vmap cannot compute of this model"
        fix = "use another compressor"
        raise SettingError("compressor", None, f"{rule}: {one_line(wrong)}", fix) from wrong


def _squares_of_samples(model: nn.Module, criterion: Criterion) -> Callable[..., Tensors]:
    """Return the function that sums the squared gradients of some samples of one worker."""
    states = carried(model)  # of each sample, whose own it begins with

    def loss(
        params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, key: Tensor, z: Tensor
    ) -> Tensor:
        own = {name: buffer.clone() for name, buffer in buffers.items()}  # changes are dropped
        own |= {name: buffers[name].index_select(0, z.reshape(1)) for name in states}
        with SampleDropout(key, z):
            output = torch.func.functional_call(model, (params, own), (x.unsqueeze(0),))
        return criterion(output, y.unsqueeze(0))

    alike = _is_recurrent(model)
    gradients = torch.func.vmap(
        torch.func.grad(loss),
        in_dims=(0 if alike else None, None, 0, 0, None, 0),
        randomness="error",
    )

    def summed(params: Tensors, buffers: Tensors, x: Tensor, *arguments: Any) -> Tensors:
        if alike:
            params = {name: p.expand(len(x), *p.shape) for name, p in params.items()}
        return {n: g.square().sum(0) for n, g in gradients(params, buffers, x, *arguments).items()}

    return summed


def _is_recurrent(model: nn.Module) -> bool:
    """Return whether a layer adds to its own results in place, as vmap has torch's LSTM do.

    Such a layer takes parameters only if they have a dimension for the samples, as the input has.
    """
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            told = "variance needs the gradient of each sample, which a model with BatchNorm lacks"
            where = f" ({name or 'the model'} is {type(module).__name__})"
            raise SettingError("compressor", None, told + where, _FIX)
