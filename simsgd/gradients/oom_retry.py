"""Retries with fewer workers at a time when the device is out of memory.

Letters: L workers hosted here, b samples each.
"""

import torch
from torch import Tensor

from .contract import GradientEngine, Gradients, Tensors
from .cuda_graph import CudaGraphs


def with_oom_retry(
    engine: GradientEngine,
    graphs: CudaGraphs | None,
    params: Tensors,
    buffers: Tensors,
    x: Tensor,
    y: Tensor,
    keys: Tensor,
) -> Gradients:
    """Return what a call of the engine does, by its graphs if it has some; shapes as there.

    Once out of memory it is called once more, with half as many workers at a time, as it is from
    then on. Raises `torch.OutOfMemoryError` if that does not help or it is one already.
    """
    compute = engine if graphs is None else graphs
    try:
        return compute(params, buffers, x, y, keys)
    except torch.OutOfMemoryError:
        if not engine.halve_chunk(len(keys)):
            raise
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # here, where the failed call no longer holds its tensors
    return compute(params, buffers, x, y, keys)
