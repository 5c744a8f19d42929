"""Counts what a model computes, and tells its kind by its layers.

Letters: L workers hosted here, b samples each.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils.flop_counter import FlopCounterMode

from .contract import GradientEngine, Tensors
from .dropout import KeyedDropout
from .generators import seeded


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
        engine.loss(read, own, x[0], y[0])
    return int(counter.get_total_flops()) // 2


def kind_of(model: nn.Module) -> str:
    """Return of which kind a model is: matrices, convolutions or recurrent layers."""
    kind = "matrices"
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            kind = "recurrent layers"
        elif isinstance(module, _ConvNd) and kind == "matrices":
            kind = "convolutions"
    return kind
