"""Counts what a model computes, and tells its kind by its layers.

Letters: L workers hosted here, b samples each.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from .contract import GradientEngine, Tensors
from .dropout import KeyedDropout
from .generators import seeded
from .trees import row


def multiplications(
    engine: GradientEngine, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
) -> int:
    """Return the multiplications of the first worker's forward, by matrices and convolutions.

    The arguments are those of a call of the engine, and left unchanged.
    """
    own = {name: buffer[0].clone() for name, buffer in buffers.items()}
    read = {n: p[0].detach() for n, p in params.items()} if engine.per_worker else params
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter, seeded(keys[0]), KeyedDropout(keys[0]):
        engine.loss(read, own, row(x, 0), row(y, 0))
    return int(counter.get_total_flops()) // 2


class CallCounter(TorchDispatchMode):
    """Within it, counts products of matrices and convolutions, and what they multiply."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.multiplications = 0

    @property
    def multiplications_a_call(self) -> float:
        """The mean over calls; 0 without any."""
        return self.multiplications / max(1, self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flops = flop_registry.get(func.overloadpacket)
        if flops is not None:
            self.calls += 1
            self.multiplications += flops(*args, **(kwargs or {}), out_val=out) // 2
        return out


def kind_of(model: nn.Module) -> str:
    """Return of which kind a model is: matrices, convolutions or recurrent layers."""
    kind = "matrices"
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            kind = "recurrent layers"
        elif isinstance(module, _ConvNd) and kind == "matrices":
            kind = "convolutions"
    return kind
