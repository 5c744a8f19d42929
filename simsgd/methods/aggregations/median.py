"""The median of each entry over the workers.

Letters: W workers, n elements of one segment.
"""

from dataclasses import dataclass

from torch import Tensor

from ...registry import register
from .contract import ServerRule


@register("aggregation", "median")
@dataclass(frozen=True)
class Median(ServerRule):
    """The median of each entry over the workers; of an even number the mean of the middle two.

    It holds as long as fewer than half of the workers attack.
    Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates", ICML 2018, https://arxiv.org/abs/1803.01498.
    """

    needs_every_entry = True

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return the median [n] of what all workers sent, [W, n]."""
        ranked, workers = rows.sort(dim=0).values, len(rows)
        return (ranked[(workers - 1) // 2] + ranked[workers // 2]) / 2
