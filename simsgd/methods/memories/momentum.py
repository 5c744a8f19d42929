"""Send each worker's momentum in place of its gradient.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...registry import register
from ...settings import require
from .contract import Memory


@register("memory", "momentum")
@dataclass(frozen=True)
class LocalMomentum(Memory):
    """Each worker sends its momentum, and what is not sent is lost.

    u = m u + g (Nesterov: g + m u is sent). With compressor `sign:scale=none` and aggregate vote
    this is Signum.
    Bernstein et al., "signSGD", ICML 2018, https://arxiv.org/abs/1802.04434.

    Differs from the paper: g is not multiplied by 1 - m, which changes no sign, and weight decay
    has a momentum of its own.
    """

    elementwise = True

    momentum: float | None = None  # m in [0, 1); None: the regime's
    nesterov: bool | None = None  # Nesterov's form; None: the regime's

    def __post_init__(self) -> None:
        check_momentum(self.momentum)

    def init(self, like: Tensor, dense: bool) -> State:
        """Return u: zeros, [L, n]."""
        return {"momentum": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return the momentum, [L, n]."""
        return move(state["momentum"], grad, self.momentum, self.nesterov)

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Keep nothing."""


def check_momentum(m: float | None) -> None:
    """Raise `SettingError` for a momentum out of range."""
    require(m is None or 0 <= m < 1, "momentum", m, "must lie in [0, 1)")


def move(u: Tensor, grad: Tensor, m: float | None, nesterov: bool | None) -> Tensor:
    """Return u = m u + g, in place; Nesterov: u = m (u + g) in place, and u + g."""
    if nesterov:
        return u.add_(grad).mul_(m or 0.0) + grad
    return u.mul_(m or 0.0).add_(grad)
