"""Refuses before the first step what a regime will ask for in a later one.

Letters: n elements of one segment.
"""

from .components import Components
from .method_choice import check_memory, check_optimizer, compressor_for
from .optimizer import RegimeOptimizer
from .step_settings import StepSettings


def check_phases(parts: Components) -> None:
    """Raise `SettingError` if a phase of the regime cannot be followed when it comes.

    A regime with functions says what it wants only then, and is refused only then.
    """
    checked = ""
    for epoch, step in parts.regime.starts:
        settings = StepSettings.at(parts.recipe, parts.regime, epoch, step, parts.memory)
        check_optimizer(parts.algorithm, settings.optimizer.get("optimizer", "SGD"))
        RegimeOptimizer(parts.parameters.trained).follow(settings.optimizer)
        if settings.compressor != checked:
            checked = settings.compressor
            compressor = compressor_for(parts.algorithm, checked)
            check_memory(parts.recipe, compressor, checked)
            for segment in parts.layout.segments:
                if not segment.dense:
                    compressor.for_shape(segment.shape)
