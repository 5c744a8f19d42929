"""SPARTA: a few parameters, the same of all workers, are averaged after every step.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], C the
compressor, H steps from one exchange of DiLoCo to the next.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...communication.messages import Message, Sparse, State
from ...recipe import Recipe
from ...registry import register
from ...settings import SettingError, require
from ..compressors import Compressor
from ..compressors.randomk import RandomK
from ..compressors.turns import Turns
from .contract import ExchangeContext, Exchanged, ParameterAlgorithm
from .diloco import DiLoCo
from .local import check_kept

SELECTORS = {"random": False, "shuffled": False, "partitioned": True}  # and whether turns are fresh


@register("algorithm", "sparta")
@dataclass(frozen=True)
class Sparta(ParameterAlgorithm):
    """After every step the workers' models take the mean of what the compressor selects.

    x_i = x_i - C(x_i) + mean_j C(x_j), where C selects the same entries of all: `randomk` with
    `shared=true`, `turns` or `block`. What is not selected stays each worker's own. Without
    compression workers average whole models at every step.
    Beton, Howes, Cheema, Ho, "SPARTA: Distributed training with sparse parameter averaging", MCDC
    workshop at ICLR 2025, https://openreview.net/forum?id=stFPf3gzq1.
    """

    has_own_memory = True
    workers_send_alike = True

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that selects other entries of each worker."""
        super().check_compressor(compressor)
        if isinstance(compressor.probe(), Sparse):
            rule = "selects other entries of each worker, and sparta averages the same of all"
            fix = "use randomk:0.005,shared=true or turns:0.005"
            raise SettingError("compressor", None, rule, fix)

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Average what the compressor selects."""
        model = x.clone()
        return Exchanged.of(model, share(x, context.compress(model), context))


@register("algorithm", "sparta_diloco")
@dataclass(frozen=True)
class SpartaDiLoCo(DiLoCo):
    """SPARTA after every step, and DiLoCo's exchange every H steps.

    The compressor acts on DiLoCo's differences. Both cost: DiLoCo's bytes every H steps, and a
    fraction of the model at every step.
    Beton, Howes, Cheema, Ho, "SPARTA: Distributed training with sparse parameter averaging", MCDC
    workshop at ICLR 2025, https://openreview.net/forum?id=stFPf3gzq1.
    """

    fraction: float = 0.005  # of parameters averaged after every step, in (0, 1]
    selector: str = "random"  # which: random, shuffled (each in its turn) or partitioned (anew)
    selectors: ClassVar = tuple(SELECTORS)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.fraction <= 1, "fraction", self.fraction, "must lie in (0, 1]")
        rule = f"must be one of {', '.join(self.selectors)}"
        require(self.selector in self.selectors, "selector", self.selector, rule)

    @property
    def _selection(self) -> Compressor:
        if self.selector == "random":
            return RandomK(self.fraction, shared=True)
        return Turns(self.fraction, SELECTORS[self.selector])

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for an epoch from which local steps apply."""
        super().check(recipe)
        check_kept(self.inner_state, recipe)
        rule = "has no effect with algorithm sparta_diloco"
        require(self.post_local_from == 0, "post_local_from", self.post_local_from, rule)

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Average a few parameters, and exchange models if H steps have passed."""
        model = x.clone()
        message = self._selection.compress(model, {}, context.step.with_key("sparta"))
        shared = Exchanged.of(model, share(x, message, context))
        return super().parameters(x, context, state) or shared


def share(x: Tensor, message: Message, context: ExchangeContext) -> Message:
    """Send a message of the models `x` [L, n], which take the mean of what it holds, in place.

    Returns the message as it arrived.
    """
    sent, mean = context.channel.all_reduce_mean(message, context.segment)
    x.sub_(sent.to_dense()).add_(mean)
    return sent
