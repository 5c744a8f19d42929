"""The contract of an outer optimizer.

Letters: n elements of one segment.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import State
from ...registry import contract
from ...settings import SettingError


@contract("outer_optimizer")
@dataclass(frozen=True)
class OuterOptimizer(ABC):
    """Moves the common model along the pseudo-gradient g = -mean_i (x_i - a), once an exchange.

    A frozen dataclass of settings; what the spec leaves open is the algorithm's.
    """

    lr: float | None = None  # greater than 0
    momentum: float | None = None  # in [0, 1)

    def __post_init__(self) -> None:
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise SettingError("lr", self.lr, "must be greater than 0")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise SettingError("momentum", self.momentum, "must lie in [0, 1)")

    def filled(self, lr: float, momentum: float) -> "OuterOptimizer":
        """Return the optimizer with these where its own settings leave them open."""
        return dataclasses.replace(
            self,
            lr=lr if self.lr is None else self.lr,
            momentum=momentum if self.momentum is None else self.momentum,
        )

    def init(self, anchor: Tensor) -> State:
        """Return the state before the first exchange, for a common model `anchor` [1, n]."""
        return {}

    @abstractmethod
    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Move the common model `anchor` [1, n], in place, along the pseudo-gradient [n]."""
