"""Gradients as far from the mean as a robust rule lets pass.

Letters: W workers, F attackers, L hosted here, n elements of one segment.
"""

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from ...keyed_random import RandomKey
from ...registry import register
from ...settings import require
from .contract import Attack


@register("attack", "alie")
@dataclass(frozen=True)
class Alie(Attack):
    """The first F workers, who know all others, send mean - z std of the others' gradients.

    z is the largest for which enough others are farther from the mean than the attackers, the
    quantile (W - F - s) / (W - F) of the normal distribution, s = W // 2 + 1 - F, if it is not set.
    Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
    NeurIPS 2019, https://arxiv.org/abs/1902.06156. Differs: mean and standard deviation are those
    of the workers that do not attack, not estimated from the attackers' own data.
    """

    attackers: int  # F
    z: float | None = None  # standard deviations below the mean
    knows_others = True

    def check_workers(self, workers: int) -> None:
        """Raise `SettingError` for a number of attackers that has no z."""
        super().check_workers(workers)
        if self.z is None:
            fewest = workers // 2 + 1 - self.attackers
            rule = f"has no z for so many of {workers} workers"
            fix = f"name at most {workers // 2}, or give z"
            require(fewest >= 1, "attack", self.attackers, rule, fix)

    def sent(self, own: Tensor, others: Tensor, key: RandomKey) -> Tensor:
        """Return the same for every worker, [L, n]."""
        far = self._far(len(others))
        worst = others.mean(0) - far * others.std(0, correction=0)
        return worst.expand_as(own)

    def _far(self, others: int) -> float:
        if self.z is not None:
            return self.z
        fewest = (others + self.attackers) // 2 + 1 - self.attackers
        share = (others - fewest) / others
        return NormalDist().inv_cdf(share) if share > 0 else 0.0
