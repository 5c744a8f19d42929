"""The gradients that are nearest to their neighbors.

Letters: W workers, F of them may attack, n elements of the whole gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import register
from ...settings import require
from ...units import counted
from .contract import ServerRule


@register("aggregation", "krum")
@dataclass(frozen=True)
class Krum(ServerRule):
    """The mean of the m gradients that are nearest, in squares, to their W - F - 2 neighbors.

    m = 1 is Krum, more is multi-Krum; of equal ones the first workers' are taken. Whole gradients
    are compared, so it takes granularity model and compress_if all. It needs W >= 2 F + 3.
    Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017.
    """

    attackers: int  # F, how many may attack
    m: int = 1  # gradients that are averaged
    needs_whole_gradient = True

    def __post_init__(self) -> None:
        require(self.attackers >= 0, "attackers", self.attackers, "must be at least 0")
        require(self.m >= 1, "m", self.m, "must be at least 1")

    def check_workers(self, workers: int) -> None:
        """Raise `SettingError` for fewer than 2 F + 3 workers, or fewer than m."""
        least = 2 * self.attackers + 3
        rule = f"needs at least {least} workers for {counted(self.attackers, 'attacker')}"
        require(workers >= least, "aggregate", None, f"{rule}, and has {workers}")
        rule = f"takes {self.m} of {workers} workers"
        require(self.m <= workers, "aggregate", None, rule, "give a smaller m")

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return the mean [n] of the chosen of what all workers sent, [W, n]."""
        return rows[self.chosen(rows)].mean(0)

    def chosen(self, rows: Tensor) -> Tensor:
        """Return which m of the gradients [W, n] are nearest to their neighbors, [m] int64."""
        nearest = len(rows) - self.attackers - 2
        squares = torch.stack([(rows - row).square().sum(1) for row in rows])  # [W, W]
        squares.fill_diagonal_(float("inf"))
        scores = squares.sort(dim=1).values[:, :nearest].sum(1)
        return scores.sort(stable=True).indices[: self.m].sort().values
