"""Estimates how much disk a run's folder takes at its end.

Letters: W workers, L hosted here.
"""

import math

from ...simulator.step_settings import StepSettings
from ..experiment import Experiment
from .optimizer_bytes import optimizer_bytes
from .tensor_bytes import num_bytes, tensors_in

_STEP = 250  # bytes of a step's rows of steps.csv and transfers.csv, as measured
_LAYER = 45  # of a row of layers.csv


def disk_bytes(experiment: Experiment) -> dict[str, int]:
    """Return the bytes of the files of an experiment that has not begun, by part.

    Checkpoints are as large as their tensors; tables are estimated by the number of their rows.
    """
    config, parts = experiment.config, experiment.simulator.components
    model = num_bytes(experiment.model.state_dict().values())
    state = dict(experiment.simulator.state_dict())
    del state["optimizer"]  # which makes its tensors in the first step
    settings = StepSettings.at(parts.recipe, parts.regime, 0, 0, parts.memory)
    last = model + num_bytes(tensors_in(state)) + optimizer_bytes(parts, settings)
    rows = _STEP + (_LAYER * len(parts.layout.segments) if config.log_layers else 0)
    evaluations = _evaluations(experiment)
    models = {
        "last": {},
        "best": {"best.pt": model},
        "all": {f"models of {evaluations} evaluations": evaluations * model},
    }
    most = " at most" if config.until_bytes else ""
    return {
        "last.pt and previous.pt": 2 * last,
        **models[config.keep],
        f"tables of {experiment.steps} steps{most}, about": experiment.steps * rows,
    }


def _evaluations(experiment: Experiment) -> int:
    """Return how many evaluations a run has: at the ends of epochs, within them, and the last."""
    steps, batches, every = experiment.steps, experiment.batches, experiment.config.eval_every
    every = every or batches
    both = steps // math.lcm(batches, every)
    last = steps % batches != 0 and steps % every != 0  # at the end of neither
    return steps // batches + steps // every - both + last
