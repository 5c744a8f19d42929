"""Refuses before the first step what a regime will ask for in a later one.

Letters: n elements of one segment.
"""

from torch import nn

from ..communication.segments import Layout
from ..methods.algorithms import Algorithm
from ..methods.memories import Memory
from ..recipe import Recipe
from .components import check_memory, check_optimizer, spoken
from .optimizer import RegimeOptimizer
from .regime import Regime
from .step_settings import Method


def foresee(
    recipe: Recipe,
    regime: Regime,
    memory: Memory,
    exchange: Algorithm,
    layout: Layout,
    trained: dict[str, nn.Parameter],
) -> None:
    """Raise `SettingError` if a phase of the regime cannot be followed when it comes.

    A regime with functions says what it wants only then, and is refused only then.
    """
    spoke = ""
    for epoch, step in regime.starts:
        method = Method.at(recipe, regime, epoch, step, memory)
        check_optimizer(exchange, method.optimizer.get("optimizer", "SGD"))
        RegimeOptimizer(trained).follow(method.optimizer)
        if method.compressor == spoke:
            continue
        compressor, spoke = spoken(exchange, method.compressor), method.compressor
        check_memory(recipe, compressor, spoke)
        for segment in layout.segments:
            if not segment.dense:
                compressor.for_shape(segment.shape)
