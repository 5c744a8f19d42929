"""The model to evaluate: the mean of the workers', or one worker's.

Letters: W workers, L hosted here.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor, nn

from .gradients.contract import Tensors
from .holding import Holding, Rows


@torch.no_grad()
def averaged_into(
    model: nn.Module,
    held: Holding,
    buffers: Tensors,
    carried: Collection[str],
    rows: Rows,
    how: str,
    worker: int | None,
) -> nn.Module:
    """Return the model with parameters and statistics to evaluate with; see `evaluation_model`.

    `buffers` are the workers' own, {name: [L, *shape]}, those in `carried` left alone; `how` is
    "mean" or "rank0".
    """
    average = held.average if worker is None else partial(held.of_worker, worker)
    params: dict[str, Tensor] = dict(model.named_parameters())
    for name, value in average(rows).items():
        params[name].copy_(value)
    for name, buffer in model.named_buffers():
        if name in carried:
            continue
        own = rows(buffers[name])  # [W, ...]
        averaged = how == "mean" and own.is_floating_point() and worker is None
        buffer.copy_(own.mean(0) if averaged else own[worker or 0])
    return model.eval()
