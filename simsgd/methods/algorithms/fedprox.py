"""FedProx: clients are held near the common model.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n].
"""

import math
from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import State
from ...registry import register
from ...settings import require
from .fedavg import FedAvg


@register("algorithm", "fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients minimize their loss plus mu / 2 ||x - a||^2, a the round's first model.

    They step along g + mu (x - a). With mu = 0 it is fedavg.
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
    MLSys 2020, https://arxiv.org/abs/1812.06127.
    """

    mu: float = 0.01  # how strongly clients are held, at least 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.mu < math.inf, "mu", self.mu, "must be at least 0")

    def local_gradient(
        self, gradient: Tensor, x: Tensor, state: State, trains: Tensor | None
    ) -> Tensor:
        """Return the gradient of the loss and of the distance to the common model, [L, n]."""
        return gradient.add(x - state["anchor"], alpha=self.mu) if self.mu else gradient
