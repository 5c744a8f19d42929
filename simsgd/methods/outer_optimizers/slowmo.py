"""SlowMo: momentum of what all workers' models move in a round, in units of their learning rate.

Letters: n elements of one segment, g the pseudo-gradient, a the common model, u the slow momentum.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...communication.messages import State
from ...registry import NOT_A_SETTING, register
from .contract import OuterOptimizer


@register("outer_optimizer", "slowmo")
@dataclass(frozen=True)
class SlowMo(OuterOptimizer):
    """Slow momentum over any local steps: u = m u + g / lr_inner, a = a - lr lr_inner u.

    lr_inner is that of the workers' optimizers at the exchange, so that a schedule does not change
    the weight of past rounds in u; where it stays, this is `sgd`. With m = 0 and lr = 1 it is the
    mean of the models.
    Wang, Tantia, Ballas, Rabbat, "SlowMo: Improving Communication-Efficient Distributed SGD with
    Slow Momentum", ICLR 2020, https://arxiv.org/abs/1910.00643.

    Differs from the paper: lr_inner times u is what is kept, so that an lr of 0 does no harm: the
    momentum begins anew behind it. The local steps are those of the algorithm, never gossip.
    """

    inner_lr: float | Tensor = field(default=1.0, repr=False, compare=False, metadata=NOT_A_SETTING)

    def at_rate(self, lr: float | Tensor) -> "SlowMo":
        """Return the optimizer while the workers' own have this lr, a number or [n]."""
        return replace(self, inner_lr=lr)

    def init(self, anchor: Tensor) -> State:
        """Return lr_inner u, zeros [1, n], and lr_inner of the last exchange, at first 0."""
        rate = torch.zeros_like(anchor[:, :1], dtype=torch.float64)
        return {"velocity": torch.zeros_like(anchor), "rate": rate}

    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Take a step along the slow momentum."""
        assert self.lr is not None
        assert self.momentum is not None
        before = state["rate"]  # [1, 1], or [1, n] where parameters differ
        rate = torch.as_tensor(self.inner_lr, dtype=torch.float64, device=before.device)
        share = torch.where(before > 0, self.momentum * (rate / before), 0.0)
        state["velocity"].mul_(share.to(anchor)).add_(gradient)
        anchor.sub_(state["velocity"], alpha=self.lr)
        state["rate"] = rate.expand(1, 1) if rate.dim() == 0 else rate.unsqueeze(0)
