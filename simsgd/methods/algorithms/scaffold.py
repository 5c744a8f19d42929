"""SCAFFOLD: control variates correct the drift of clients.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], K local
steps, N clients, S those drawn.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...communication.messages import Dense, State
from ...communication.segments import Segment
from ...registry import register
from .contract import ExchangeContext, Exchanged
from .fedavg import FedAvg


@register("algorithm", "scaffold")
@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg whose clients step along g - c_i + c, control variates of each client and of all.

    After K steps from a to y_i: c_i' = c_i - c + (a - y_i) / (K lr); a = a + lr_g mean_S (y_i - a);
    c = c + |S| / N mean_S (c_i' - c_i). So the changes of models and of variates go up, and both
    come down: twice the bytes of fedavg, both ways. Variates are never compressed.
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
    Federated Learning", ICML 2020, https://arxiv.org/abs/1910.06378, with option II.

    Differs from the paper: c_i' is kept as what it is with plain SGD, the mean of the K gradients
    g; so it is right with momentum, Adam and an lr that changes within a round too. Models are
    weighted by samples where clients differ.
    """

    passing = frozenset({"gradients", "steps"})

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return fedavg's state, c_i [L, n] and c [1, n], the sum of gradients and their number."""
        return {
            **super().init(x, segment),
            "control": torch.zeros_like(x),
            "common_control": torch.zeros_like(x[:1]),
            "gradients": torch.zeros_like(x),
            "steps": torch.zeros_like(x[:, :1]),
        }

    def begin_round(self, x: Tensor, state: State) -> None:
        """Let all go on from the common model, with no gradients yet."""
        super().begin_round(x, state)
        state["gradients"].zero_()
        state["steps"].zero_()

    def local_gradient(
        self, gradient: Tensor, x: Tensor, state: State, trains: Tensor | None
    ) -> Tensor:
        """Return g - c_i + c, [L, n], and add g to those of the round of who trains."""
        who = torch.ones_like(state["steps"]) if trains is None else trains.to(x).unsqueeze(1)
        state["gradients"].addcmul_(gradient, who)
        state["steps"].add_(who)
        return gradient - state["control"] + state["common_control"]

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Agree on a model and on the control variates, if the round ends."""
        exchanged = super().parameters(x, context, state)
        if exchanged is not None:
            self._exchange_controls(context, state)
        return exchanged

    def _exchange_controls(self, context: ExchangeContext, state: State) -> None:
        step, channel = context.step, context.channel
        drawn = self.drawn(step.key.seed, context.workers, step.number, step.epoch)  # [W]
        steps = state["steps"]
        new = state["gradients"] / steps.clamp(min=1)
        change = torch.where(steps > 0, new - state["control"], 0)  # of who was drawn
        weights = drawn.to(torch.float64) / (self.clients or context.workers)
        _, mean = channel.weighted_mean(Dense.of(change), context.segment, weights)
        state["control"].add_(change)
        state["common_control"].add_(mean)
        state["gradients"].zero_()
        steps.zero_()
