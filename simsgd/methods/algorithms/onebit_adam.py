"""1-bit Adam: workers send their momenta, in one bit an entry, once the variance is frozen.

Letters: W workers, L hosted here, n elements of one segment, c = ceil(n / W) of a chunk, m the
momentum that all share [n], v the variance.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import Dense, Message, State
from ...communication.segments import Layout, Segment
from ...recipe import Recipe
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, require
from ..compressors import Compressor
from .contract import ExchangeContext, GradientAlgorithm, OptimizerSteps, check_without_memory
from .server_chunks import check_quantizer, chunk_state, mean_both_ways


@register("algorithm", "onebit_adam")
@dataclass(frozen=True)
class OneBitAdam(GradientAlgorithm):
    """Adam at first; then v is frozen, and momenta are sent as signs, with error feedback twice.

    From `freeze_step` on: m_i = beta m + (1 - beta) g_i; c_i = C(m_i + e_i), e_i = m_i + e_i - c_i.
    Each worker serves a W-th of the entries: of its chunk it takes the mean of all c_i, and sends
    C(mean + d) to all, d = mean + d - C(mean + d); that is m, and x = x - lr m / (sqrt(v) + eps).
    With optimizer Adam or AdamW, whose first coefficient beta must be.
    Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", ICML 2021, https://arxiv.org/abs/2102.02888.

    Differs from the code of DeepSpeed: v is corrected for its bias as it stood when it froze, so
    that steps do not become longer then; sign(0) = + moves entries that never get a gradient, as
    there without a mask.
    """

    freeze_step: int = 100  # steps of Adam before the variance is frozen
    beta: float = 0.9  # of the momentum, in [0, 1)
    workers: int = field(default=1, repr=False, metadata=NOT_A_SETTING)  # W
    has_own_memory = True

    def __post_init__(self) -> None:
        require(self.freeze_step >= 1, "freeze_step", self.freeze_step, "must be at least 1")
        require(0 <= self.beta < 1, "beta", self.beta, "must lie in [0, 1)")

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for a memory beside its own."""
        check_without_memory(recipe)

    def check_optimizer(self, name: str) -> None:
        """Raise `SettingError` for an optimizer without the variance of Adam."""
        if name not in ("Adam", "AdamW"):
            rule = "keeps no variance that algorithm onebit_adam can freeze"
            raise SettingError("optimizer", name, rule, "use Adam or AdamW")

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that does not send every entry in few bits."""
        super().check_compressor(compressor)
        check_quantizer(compressor, "onebit_adam")

    def for_layout(self, layout: Layout, workers: int) -> Self:
        """Return the algorithm for W workers."""
        return replace(self, workers=workers)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return m [1, n], steps done, and what workers [L, n] and their chunks [L, c] left out."""
        state = {"steps": torch.zeros(1, dtype=torch.int64), "momentum": torch.zeros_like(x[:1])}
        if segment.dense:
            return state
        return {**state, **chunk_state(x, self.workers)}

    def skip_to(self, step: int, state: State) -> None:
        """Set the number of steps done."""
        state["steps"].fill_(step)

    def to_send(self, gradient: Tensor, state: State) -> Tensor:
        """Return the gradients [L, n] or, once the variance is frozen, momenta and residuals."""
        if int(state["steps"][0]) < self.freeze_step:
            return gradient
        momenta = state["momentum"] * self.beta + gradient * (1 - self.beta)
        return momenta.add_(state["residual"]) if "residual" in state else momenta

    def gradients(
        self, compensated: Tensor, context: ExchangeContext, state: State | None = None
    ) -> tuple[Message, Tensor]:
        """Return the messages, and the mean gradient or the momentum that all share, [n]."""
        assert state is not None
        channel, segment = context.channel, context.segment
        frozen = int(state["steps"][0]) >= self.freeze_step
        state["steps"].add_(1)
        if not frozen:
            sent, mean = channel.all_reduce_mean(Dense.of(compensated), segment)
            state["momentum"].mul_(self.beta).add_(mean, alpha=1 - self.beta)
            return sent, mean
        if "residual" not in state:
            sent, momentum = channel.all_reduce_mean(Dense.of(compensated), segment)
        else:
            sent, momentum = mean_both_ways(compensated, context, state)
        state["momentum"].copy_(momentum)
        return sent, momentum

    def apply(self, optimizer: OptimizerSteps, aggregated: dict[str, Tensor]) -> None:
        """Take a step of Adam, or one along the momentum where the variance is frozen."""
        optimizer.step_frozen_after(self.freeze_step, aggregated)
