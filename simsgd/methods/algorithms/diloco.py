"""DiLoCo: local SGD with an outer optimizer.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n].
"""

import functools
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Layout, Segment
from ...recipe import Recipe
from ...registry import register
from ..aggregations import Aggregation, aggregated_by, aggregation_of
from ..aggregations.mean import rule_for
from ..compressors import Compressor
from ..outer_optimizers import OuterOptimizer, move_, outer_optimizer_of, state_of
from .contract import ExchangeContext
from .local import LocalSGD


@register("algorithm", "diloco")
@dataclass(frozen=True)
class DiLoCo(LocalSGD):
    """Local SGD whose mean difference is the gradient of an outer optimizer.

    The outer gradient is g = -mean_i (x_i - a), and the outer optimizer SGD with Nesterov momentum.
    The workers' own optimizers continue. `aggregate` is the rule that makes one difference of the
    workers' messages; what is exempt from compression is averaged, unless the rule takes it too.
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
    https://arxiv.org/abs/2311.08105.
    """

    outer_optimizer: str = "nesterov"  # its spec, of `simsgd list outer-optimizers`
    outer_lr: float = 0.7  # lr, greater than 0
    outer_momentum: float = 0.9  # m in [0, 1)
    aggregate: str = "mean"  # the rule's spec, of `simsgd list aggregations`
    takes_groups = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._outer, self._rule  # noqa: B018 - reads the specs, and refuses wrong ones

    @functools.cached_property
    def _outer(self) -> OuterOptimizer:
        return outer_optimizer_of(self.outer_optimizer, self.outer_lr, self.outer_momentum)

    @functools.cached_property
    def _rule(self) -> Aggregation:
        return aggregation_of(self.aggregate)

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for a number of workers that the rule cannot take."""
        super().check(recipe)
        self._rule.check_workers(recipe.workers)

    def for_layout(self, layout: Layout, workers: int) -> Self:
        """Return the algorithm. Raises `SettingError` for segments that the rule cannot take."""
        self._rule.check_layout(layout)
        return super().for_layout(layout, workers)

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor whose messages the rule cannot take."""
        super().check_compressor(compressor)
        self._rule.check_compressor(compressor)

    def aggregated(self, message: Message, context: ExchangeContext) -> tuple[Message, Tensor]:
        """Return the messages as they arrive, and what the rule makes of them, [n]."""
        rule = rule_for(self._rule, context.segment)
        return aggregated_by(rule, message, context.segment, context.channel)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the common model and the outer optimizer's state, [1, n]."""
        state = super().init(x, segment)
        return {**state, **state_of(self._outer, state["anchor"])}

    def move(self, state: State, mean: Tensor, lr: float | Tensor) -> None:
        """Take a step of the outer optimizer."""
        move_(self._outer.at_rate(lr), state["anchor"], mean.neg(), state)
