"""0/1 Adam: the variance is seldom updated, and later the workers step alone between exchanges.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], g their
gradients, m their momenta, v the variance that all share, a the model of the last exchange.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import Dense, Message, State
from ...communication.segments import Layout, Segment
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, require
from ..compressors import Compressor
from .contract import ExchangeContext, Exchanged, ParameterAlgorithm, Round
from .server_chunks import check_quantizer, chunk_state, mean_both_ways


@register("algorithm", "zero_one_adam")
@dataclass(frozen=True)
class ZeroOneAdam(ParameterAlgorithm):
    """Adam whose gradients are sent as signs, except to update v; then local steps with v frozen.

    Up to `freeze_step` m = beta m + (1 - beta) g and x = x - lr m / (sqrt(v) + eps), where g is the
    mean gradient: whole in steps in which v = beta2 v + (1 - beta2) g^2 too, else compressed both
    ways with error feedback. After `kappa` such steps the interval between them doubles. Then each
    worker steps along its own m_i, and in an exchange u_i = (a - x_i) (sqrt(v) + eps) is compressed
    both ways: m = u / (sum of lr since then), x = a = a - u / (sqrt(v) + eps). The interval between
    exchanges doubles every `local_scaler` steps, up to `most_local`. Each worker serves a W-th of
    the entries, as with onebit_adam. The optimizer has to be SGD: it has the weight decay alone.
    Lu, Li, Zhang, De Sa, He, "Maximizing Communication Efficiency for Large-scale Training via 0/1
    Adam", ICLR 2023, https://arxiv.org/abs/2202.06009.

    Differs from the paper: steps are local only once v is frozen, and eps is outside the root, both
    as in DeepSpeed. As there, no bias is corrected.
    """

    freeze_step: int = 100  # steps before v is frozen and steps are local, at least 1
    kappa: int = 16  # updates of v until their interval doubles, at least 1
    local_scaler: int = 100  # steps until the interval between exchanges doubles, at least 1
    most_local: int = 16  # that interval at most, a power of 2
    beta: float = 0.9  # of the momentum, in [0, 1)
    beta2: float = 0.999  # of the variance, in [0, 1)
    eps: float = 1e-8  # greater than 0
    final_exchange: bool = False  # workers agree after the last step of a run too
    workers: int = field(default=1, repr=False, metadata=NOT_A_SETTING)  # W
    has_own_memory = True

    def __post_init__(self) -> None:
        for name in ("freeze_step", "kappa", "local_scaler"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        most = self.most_local
        require(most >= 1 and most.bit_count() == 1, "most_local", most, "must be a power of 2")
        for name in ("beta", "beta2"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "must lie in [0, 1)")
        require(0 < self.eps < float("inf"), "eps", self.eps, "must be greater than 0")

    def check_optimizer(self, name: str) -> None:
        """Raise `SettingError` for an optimizer that would step beside the algorithm."""
        if name != "SGD":
            rule = "must be SGD with algorithm zero_one_adam, which has the steps of Adam itself"
            raise SettingError("optimizer", name, rule)

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that does not send every entry in few bits."""
        super().check_compressor(compressor)
        check_quantizer(compressor, "zero_one_adam")

    def for_layout(self, layout: Layout, workers: int) -> Self:
        """Return the algorithm for W workers."""
        return replace(self, workers=workers)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return g and m [L, n], v and a [1, n], the sum of lr, and what is left out."""
        state = {
            "gradient": torch.zeros_like(x),
            "momentum": torch.zeros_like(x),
            "variance": torch.zeros_like(x[:1]),
            "anchor": x[:1].clone(),
            "rates": torch.zeros_like(x[:1]),
        }
        return state if segment.dense else {**state, **chunk_state(x, self.workers)}

    def period(self, epoch: int) -> int:
        """Return the most steps from one exchange to the next."""
        return self.most_local

    def round_of(self, seed: int, workers: int, step: int, epoch: int) -> Round:
        """Return the round of a step, which is how many were done before it."""
        steps = self.interval(step)
        begin = max(step - step % steps, self.freeze_step if step >= self.freeze_step else step)
        return Round(step // steps, begin, step - step % steps + steps - begin)

    def interval(self, step: int) -> int:
        """Return the steps between exchanges where `step` are done."""
        if step < self.freeze_step:
            return 1
        doubled = (step - self.freeze_step) // self.local_scaler
        return min(1 << min(doubled, 30), self.most_local)

    def updates_variance(self, step: int) -> bool:
        """Return whether v is updated where `step` are done: kappa times each at 1, 2, 4 ... steps.

        >>> [step for step in range(20) if ZeroOneAdam(kappa=3).updates_variance(step)]
        [0, 1, 2, 3, 5, 7, 9, 13, 17]
        """
        interval = 1 << (step // self.kappa + 1).bit_length() - 1
        return (step - self.kappa * (interval - 1)) % interval == 0

    def local_gradient(
        self, gradient: Tensor, x: Tensor, state: State, trains: Tensor | None
    ) -> Tensor:
        """Keep the gradient for the algorithm's own step; the optimizer gets zeros."""
        state["gradient"].copy_(gradient)
        return torch.zeros_like(gradient)

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Take a step of Adam with the mean gradient, or alone, and then exchange if it is time."""
        step, momentum = context.step, state["momentum"]
        if step.number < self.freeze_step:
            given, sent, mean = self._mean_gradient(context, state)
            exchanged = Exchanged.of(given, sent)
            momentum.mul_(self.beta).add_(mean, alpha=1 - self.beta)
            x.sub_(momentum * context.lr / self._scale(state))
            state["anchor"].copy_(x[:1])
            return exchanged
        momentum.mul_(self.beta).add_(state["gradient"], alpha=1 - self.beta)
        x.sub_(momentum * context.lr / self._scale(state))
        state["rates"].add_(context.lr)
        waits = (step.number + 1) % self.interval(step.number)
        if waits and not (step.last and self.final_exchange):
            return None
        moved = (state["anchor"] - x) * self._scale(state)  # u
        given, sent, mean = self._mean(moved, context, state)
        exchanged = Exchanged.of(given, sent)
        known = state["rates"] > 0
        momentum.copy_(torch.where(known, mean / state["rates"].where(known, 1), momentum))
        state["anchor"].sub_(mean / self._scale(state))
        state["rates"].zero_()
        x.copy_(state["anchor"].expand_as(x))
        return exchanged

    def _mean_gradient(
        self, context: ExchangeContext, state: State
    ) -> tuple[Tensor, Message, Tensor]:
        gradient = state["gradient"]
        if not self.updates_variance(context.step.number):
            return self._mean(gradient, context, state)
        sent, mean = context.channel.all_reduce_mean(Dense.of(gradient), context.segment)
        state["variance"].mul_(self.beta2).add_(mean.square(), alpha=1 - self.beta2)
        return gradient, sent, mean

    def _mean(
        self, own: Tensor, context: ExchangeContext, state: State
    ) -> tuple[Tensor, Message, Tensor]:
        """Return what is sent of `own` [L, n], the messages, and what all then know, [n]."""
        if "residual" not in state:
            return own, *context.channel.all_reduce_mean(Dense.of(own), context.segment)
        given = own + state["residual"]
        return given, *mean_both_ways(given, context, state)

    def _scale(self, state: State) -> Tensor:
        return state["variance"].sqrt().add_(self.eps)
