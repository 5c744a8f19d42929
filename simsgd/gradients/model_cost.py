"""Counts what a model computes, and tells its kind by its layers.

Letters: L workers hosted here, b samples each.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .contract import GradientEngine, Tensors
from .dropout import KeyedDropout
from .generators import seeded
from .trees import cloned, row


def work_of(
    engine: GradientEngine, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
) -> "CallCounter":
    """Return what the first worker's forward computes.

    The arguments are those of a call of the engine, and left unchanged. It is a forward with
    gradients, which a model may take within it.
    """
    own = {name: buffer[0].clone() for name, buffer in buffers.items()}
    read = params
    if engine.per_worker:
        read = {n: p[0].detach().requires_grad_() for n, p in params.items()}
    counter = CallCounter()
    with torch.enable_grad(), counter, seeded(keys[0]), KeyedDropout(keys[0]):
        engine.loss(read, own, cloned(row(x, 0)), cloned(row(y, 0)))
    return counter


class CallCounter(TorchDispatchMode):
    """Within it, counts products of matrices and convolutions, and what is computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0  # of products and convolutions
        self.multiplications = 0  # of these
        self.convolved = 0  # of the multiplications, those of convolutions
        self.elements = 0  # of all results, views apart

    @property
    def multiplications_a_call(self) -> float:
        """The mean over calls; 0 without any."""
        return self.multiplications / max(1, self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flops = flop_registry.get(func.overloadpacket)
        if flops is not None:
            found = flops(*args, **(kwargs or {}), out_val=out) // 2
            self.calls += 1
            self.multiplications += found
            self.convolved += found if "convolution" in func.overloadpacket.__name__ else 0
        first = out[0] if isinstance(out, tuple) and out else out
        if isinstance(first, Tensor) and not is_view(func):
            self.elements += first.numel()
        return out


def is_view(func: Any) -> bool:
    """Return whether a call of ATen gives its argument's memory in another form."""
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def kind_of(model: nn.Module) -> str:
    """Return of which kind a model is: matrices, convolutions or recurrent layers."""
    kind = "matrices"
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            kind = "recurrent layers"
        elif isinstance(module, _ConvNd) and kind == "matrices":
            kind = "convolutions"
    return kind
