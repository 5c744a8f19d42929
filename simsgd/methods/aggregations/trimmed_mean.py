"""The mean of each entry over the workers without the largest and the smallest.

Letters: W workers, n elements of one segment.
"""

from dataclasses import dataclass
from decimal import Decimal

from torch import Tensor

from ...registry import register
from ...settings import require
from .contract import ServerRule


@register("aggregation", "trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(ServerRule):
    """The mean of each entry without the floor(beta W) largest and as many smallest.

    It holds as long as at most floor(beta W) workers attack.
    Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates", ICML 2018, https://arxiv.org/abs/1803.01498.
    """

    beta: float = 0.2  # fraction of the workers left out at each end, in [0, 0.5)
    needs_every_entry = True

    def __post_init__(self) -> None:
        require(0 <= self.beta < 0.5, "beta", self.beta, "must lie in [0, 0.5)")

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return the trimmed mean [n] of what all workers sent, [W, n]."""
        cut = int(Decimal(str(self.beta)) * len(rows))
        return rows.sort(dim=0).values[cut : len(rows) - cut].mean(0)
