"""Local SGD: workers step alone for a while, and then agree on a model.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], H steps
from one exchange to the next.
"""

from dataclasses import dataclass, field

from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Segment
from ...recipe import Recipe
from ...registry import register
from ...settings import SettingError, require
from .contract import ExchangeContext, Exchanged, ParameterAlgorithm


@register("algorithm", "local")
@dataclass(frozen=True)
class LocalSGD(ParameterAlgorithm):
    """Each worker takes H steps alone; then all continue from the mean of their models.

    Workers send the differences to the model that all began with, so that these can be compressed
    and a memory can keep what is left out: x = a + mean_i C(x_i - a + e_i), a = x.
    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019,
    https://arxiv.org/abs/1805.09767; with `post_local_from`, Lin, Stich, Patel, Jaggi, "Don't Use
    Large Mini-Batches, Use Local SGD", ICLR 2020, https://arxiv.org/abs/1808.07217.
    """

    local_steps: int = 8  # H, at least 1
    post_local_from: int = 0  # epoch from which on H holds; before it workers agree at every step
    final_exchange: bool = False  # workers agree after the last step of a run too
    inner_state: str = field(default="keep", kw_only=True)  # or average, or reset: momenta, then
    workers_send_alike = True
    takes_groups = True

    def __post_init__(self) -> None:
        require(self.local_steps >= 1, "local_steps", self.local_steps, "must be at least 1")
        if self.inner_state not in ("keep", "average", "reset"):
            rule = "must be keep, average or reset"
            raise SettingError("inner_state", self.inner_state, rule)
        rule = "must be at least 0"
        require(self.post_local_from >= 0, "post_local_from", self.post_local_from, rule)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the model that all began with, one row for all workers, [1, n]."""
        return {"anchor": x[:1].clone()}

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for settings that only an exchange of gradients has."""
        super().check(recipe)
        if recipe.lr_in_memory:
            rule = f"has no effect with algorithm {recipe.algorithm}"
            raise SettingError("lr_in_memory", None, f"{rule}, which does not exchange gradients")

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Agree on a model, if H steps have passed."""
        step = context.step
        current = self.round_of(step.key.seed, context.workers, step.number, step.epoch)
        waits = step.number + 1 < current.end
        if waits and not (step.last and self.final_exchange):
            return None
        memory, kept = context.memory, context.memory_state
        compensated = memory.compensate(x - state["anchor"], kept)
        sent, mean = self.aggregated(context.compress(compensated), context)
        exchanged = Exchanged.of(compensated, sent, kept)
        memory.update(compensated, sent, kept)
        self.move(state, memory.on_aggregate(mean, kept), context.lr)
        x.copy_(state["anchor"].expand_as(x))
        return exchanged

    def period(self, epoch: int) -> int:
        """Return the steps from one exchange to the next in an epoch."""
        return self.local_steps if epoch >= self.post_local_from else 1

    def aggregated(self, message: Message, context: ExchangeContext) -> tuple[Message, Tensor]:
        """Return the messages as they arrive, and their mean, [n]."""
        return context.channel.all_reduce_mean(message, context.segment)

    def move(self, state: State, mean: Tensor, lr: float | Tensor) -> None:
        """Move the common model along the mean difference, [n].

        `lr`, a number or [n], is that of the workers' optimizers.
        """
        state["anchor"].add_(mean)


def check_kept(inner_state: str, recipe: Recipe) -> None:
    """Raise `SettingError` unless optimizers keep their state, where parts are exchanged."""
    rule = f"must be keep with algorithm {recipe.algorithm}, which exchanges a part of the model"
    require(inner_state == "keep", "inner_state", inner_state, f"{rule} at a time")
