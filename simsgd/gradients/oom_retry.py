"""Retries with fewer workers at a time when the device is out of memory.

Letters: L workers hosted here, b samples each.
"""

import torch
from torch import Tensor

from .contract import GradientEngine, Gradients, Tensors


def with_oom_retry(
    engine: GradientEngine, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
) -> Gradients:
    """Return what a call of the engine does; shapes as there.

    Once out of memory it is called once more, with half as many workers at a time, as it is from
    then on. Raises `torch.OutOfMemoryError` if that does not help or it is one already.
    """
    try:
        return engine(params, buffers, x, y, keys)
    except torch.OutOfMemoryError:
        if not engine.halve_chunk(len(keys)):
            raise
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # here, where the failed call no longer holds its tensors
    return engine(params, buffers, x, y, keys)
