"""Streaming DiLoCo: fragments of the model are exchanged one after the other, and arrive late.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], H steps
from one exchange of a fragment to the next, P fragments, tau steps on the way.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import State
from ...communication.segments import Layout, Segment
from ...recipe import Recipe
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, require
from .contract import ExchangeContext, Exchanged
from .diloco import DiLoCo
from .local import check_kept


@register("algorithm", "streaming")
@dataclass(frozen=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo that exchanges a fragment of the model at a time, while training goes on.

    The layers are dealt out to P fragments, of which one is exchanged every H / P steps. At step t
    workers send x_i - a of its parameters; at step t + tau the outer optimizer moves a along the
    mean, and x_i = alpha x_i + (1 - alpha) a. As many bytes as DiLoCo sends, but a P-th of them at
    a time, and with tau steps to arrive. With P = 1 and tau = alpha = 0 it is DiLoCo.
    Douillard et al., "Streaming DiLoCo with Overlapping Communication: Towards a Distributed Free
    Lunch", 2025, https://arxiv.org/abs/2501.18512.

    Differs from the paper: the embedding and what follows the last layer count as layers.
    """

    fragments: int | None = None  # P: divides local_steps, at most the layers; none: 3, 2 or 1
    delay: int = 0  # tau in steps, below local_steps / fragments
    mixing: float = 0.0  # alpha in [0, 1]: share of a worker's own parameters that stays
    pattern: str = "strided"  # layers of a fragment: strided (p, p + P ...), or sequential
    begins: tuple[tuple[str, int], ...] = field(  # step of the round at which each segment is sent
        default=(), repr=False, metadata=NOT_A_SETTING
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.mixing <= 1, "mixing", self.mixing, "must lie in [0, 1]")
        if self.pattern not in ("strided", "sequential"):
            raise SettingError("pattern", self.pattern, "must be strided or sequential")

    @property
    def parts(self) -> int:
        """P, the number of fragments; unless given, the largest up to 3 that divides the steps."""
        if self.fragments is not None:
            return self.fragments
        return next(parts for parts in (3, 2, 1) if self.local_steps % parts == 0)

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for fragments or a delay that do not fit into the local steps.

        And for an epoch from which local steps apply.
        """
        super().check(recipe)
        steps, parts = self.local_steps, self.parts
        fits = 1 <= parts <= steps and steps % parts == 0
        rule = f"has fragments {parts}, which must divide the {steps} local steps"
        require(fits, "algorithm", recipe.algorithm, rule)
        fits, between = 0 <= self.delay < steps // parts, f"[0, {steps // parts})"
        rule = f"has delay {self.delay}, which must lie in {between}, the steps between fragments"
        require(fits, "algorithm", recipe.algorithm, rule)
        check_kept(self.inner_state, recipe)
        rule = "has no effect with algorithm streaming"
        require(self.post_local_from == 0, "post_local_from", self.post_local_from, rule)

    def for_layout(self, layout: Layout, workers: int) -> Self:
        """Return the algorithm with the layers of a model dealt out to fragments.

        Raises `SettingError` for more fragments than layers.
        """
        super().for_layout(layout, workers)
        self._rule.check_layout(layout)
        layers = {segment.name: _layer(segment.parameters[0]) for segment in layout.segments}
        order = list(dict.fromkeys(layers.values()))
        rule = f"has {self.parts} fragments, which must not exceed the model's {len(order)} layers"
        require(self.parts <= len(order), "algorithm", "streaming", rule)
        begins = tuple(
            (name, self._begin(order.index(layer), len(order))) for name, layer in layers.items()
        )
        return replace(self, begins=begins)

    def _begin(self, layer: int, layers: int) -> int:
        """Return the step of a round, from 1 to H, at which a layer is sent."""
        strided = layer % self.parts
        fragment = strided if self.pattern == "strided" else layer * self.parts // layers
        return (fragment + 1) * self.local_steps // self.parts

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return DiLoCo's state and, where it arrives late, the mean on its way, [1, n]."""
        state = super().init(x, segment)
        return {**state, "arriving": torch.zeros_like(state["anchor"])} if self.delay else state

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Send what changed if it is the fragment's turn, and move if what was sent arrives."""
        step = context.step
        begin = dict(self.begins).get(context.segment.name, self.local_steps)
        done = step.number + 1  # steps, this one included
        since = (done - begin) % self.local_steps  # steps since it was last sent
        ends = step.last and self.final_exchange
        on_the_way = done - since >= begin and 0 < since <= self.delay
        if on_the_way and (since == self.delay or ends):
            self._arrive(x, state, state["arriving"][0], context.lr)
        if since and not ends:
            return None
        memory, kept = context.memory, context.memory_state
        compensated = memory.compensate(x - state["anchor"], kept)
        sent, mean = self.aggregated(context.compress(compensated), context)
        exchanged = Exchanged.of(compensated, sent, kept)
        memory.update(compensated, sent, kept)
        mean = memory.on_aggregate(mean, kept)
        if self.delay and not ends:
            state["arriving"].copy_(mean)
        else:
            self._arrive(x, state, mean, context.lr)
        return exchanged

    def _arrive(self, x: Tensor, state: State, mean: Tensor, lr: float | Tensor) -> None:
        """Move the common model along the mean difference [n], and the workers' towards it."""
        self.move(state, mean, lr)
        common = state["anchor"].expand_as(x)
        if self.mixing:
            x.mul_(self.mixing).add_(common, alpha=1 - self.mixing)
        else:
            x.copy_(common)


def _layer(parameter: str) -> str:
    """Return the layer of a parameter: its name up to the first number, else its first part.

    >>> _layer("blocks.3.feed.0.weight"), _layer("embedding.weight"), _layer("0.weight")
    ('blocks.3', 'embedding', '0')
    """
    numbered = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", parameter)
    return numbered[0] if numbered else parameter.partition(".")[0]
