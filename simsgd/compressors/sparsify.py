"""Send few entries of each gradient.

Letters: L workers hosted here, n elements of one segment, k kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..draw import Draw
from ..messages import Sparse, State
from ..registry import register
from ..settings import count, require
from .contract import Compressor


@register("compressor", "topk")
@dataclass(frozen=True)
class TopK(Compressor):
    """Each worker sends its k largest entries by magnitude, exactly.

    k = max(1, ceil(ratio * n)), counted in decimal. Of equal magnitudes the lowest index goes.
    Biased: use it with a memory.
    Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017,
    https://arxiv.org/abs/1704.05021.
    """

    ratio: float  # fraction of entries sent, in (0, 1]
    biased = True

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "ratio", self.ratio, "must lie in (0, 1]")

    def compress(self, said: Tensor, state: State, draw: Draw) -> Sparse:
        """Return the k largest entries of each row of `said` [L, n]."""
        index = largest(said.abs(), count(self.ratio, said.shape[1]))  # [L, k]
        return Sparse.of(said.gather(1, index), index, said.shape[1])


def largest(size: Tensor, k: int) -> Tensor:
    """Return where the k largest entries of each row of `size` [L, n] are, [L, k] ascending.

    Of equal entries the ones with the lowest index are taken, on every device.
    """
    if size.is_cuda:
        order = size.sort(dim=1, descending=True, stable=True).indices
        return order[:, :k].sort(dim=1).values
    values, index = size.topk(k, dim=1, sorted=False)  # [L, k]
    least = values.amin(1, keepdim=True)  # [L, 1]
    tied = (size >= least).sum(1) > k  # [L]: topk chose among equals as it liked
    for row in tied.nonzero().flatten().tolist():
        index[row] = _lowest(size[row], least[row], k)
    return index.sort(dim=1).values


def _lowest(size: Tensor, least: Tensor, k: int) -> Tensor:
    above = (size > least).nonzero().flatten()
    equal = (size == least).nonzero().flatten()
    return torch.cat([above, equal[: k - len(above)]])
