"""The adaptive optimizers of a server: FedAdam, FedYogi and FedAdagrad.

Letters: n elements of one segment, g the pseudo-gradient, a the common model, m and v its moments.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import State
from ...registry import register
from ...settings import require
from .contract import OuterOptimizer


@dataclass(frozen=True)
class Adaptive(OuterOptimizer):
    """What all have: m = momentum m + (1 - momentum) g, v of g^2, a = a - lr m / (sqrt(v) + tau).

    v begins at tau^2, and neither moment is corrected for its bias.
    """

    tau: float = 1e-3  # how little adaptive it is, greater than 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.tau < float("inf"), "tau", self.tau, "must be greater than 0")

    def init(self, anchor: Tensor) -> State:
        """Return both moments, [1, n]."""
        return {
            "momentum": torch.zeros_like(anchor),
            "variance": torch.full_like(anchor, self.tau**2),
        }

    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Take a step along the first moment, over the root of the second."""
        assert self.lr is not None
        assert self.momentum is not None
        momentum = state["momentum"].mul_(self.momentum).add_(gradient, alpha=1 - self.momentum)
        self.accumulate_(state["variance"], gradient.square())
        anchor.addcdiv_(momentum, state["variance"].sqrt().add_(self.tau), value=-self.lr)

    @abstractmethod
    def accumulate_(self, variance: Tensor, square: Tensor) -> None:
        """Take the squares [n] of a pseudo-gradient into the `variance` [1, n]."""


@dataclass(frozen=True)
class _Decaying(Adaptive):
    beta2: float = 0.99  # share of the variance that stays, in [0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "must lie in [0, 1)")


@register("outer_optimizer", "fedadam")
@dataclass(frozen=True)
class FedAdam(_Decaying):
    """Adam at a server: v = beta2 v + (1 - beta2) g^2, a = a - lr m / (sqrt(v) + tau).

    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.

    Unlike torch.optim.Adam, v begins at tau^2, m and v are not corrected for their bias, and beta2
    is 0.99; `momentum` is its first beta, tau its eps.
    """

    def accumulate_(self, variance: Tensor, square: Tensor) -> None:
        """Let the variance follow the squares."""
        variance.mul_(self.beta2).add_(square, alpha=1 - self.beta2)


@register("outer_optimizer", "fedyogi")
@dataclass(frozen=True)
class FedYogi(_Decaying):
    """Yogi at a server: v = v - (1 - beta2) sign(v - g^2) g^2, a = a - lr m / (sqrt(v) + tau).

    Where squares fall, v falls by their size, and not by its own as Adam's does. torch.optim has no
    Yogi.
    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.
    """

    def accumulate_(self, variance: Tensor, square: Tensor) -> None:
        """Move the variance towards the squares by a share of them."""
        variance.sub_((variance - square).sign_().mul_(square), alpha=1 - self.beta2)


@register("outer_optimizer", "fedadagrad")
@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """Adagrad at a server: v = v + g^2, a = a - lr m / (sqrt(v) + tau).

    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, where momentum is 0.

    Unlike torch.optim.Adagrad, v begins at tau^2 and not at 0, and there is a momentum.
    """

    def accumulate_(self, variance: Tensor, square: Tensor) -> None:
        """Add the squares to the variance."""
        variance.add_(square)
