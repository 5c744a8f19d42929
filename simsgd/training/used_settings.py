"""Resolves every setting as a run really uses it.

That includes what the model, the regime or an algorithm's default decided. Where the regime changes
a setting over time, its value is a list of phases.
"""

from collections.abc import Mapping

import torch

from ..config import Config
from ..given_object import GivenObject
from ..registry import settings_of
from ..results.config_values import OF_ONE_RUN
from ..results.used_settings import Plain, Used, is_plain, value_in_words
from ..simulator.layer_compressors import LayerRule, in_words
from ..simulator.method_choice import compressor_spec
from ..simulator.optimizer_class import optimizer_defaults
from ..simulator.parameter_groups import ParameterGroup, Settings
from ..simulator.simulator import Simulator
from .data import Text
from .experiment import Experiment
from .given import name_of
from .phases import Timeline, Values

_OF_OPTIMIZER = ("lr", "momentum", "nesterov", "weight_decay")
_ELSE = (  # that a regime may set
    "prune", "compressor", "compress_layers", "regularizer", "param_groups", "scheduler",
)  # fmt: skip


def used_settings(experiment: Experiment) -> dict[str, Used]:
    """Return each setting of a run by name, a list of phases where the regime changes it."""
    return {
        **{name: v for name, v in experiment.config.plain().items() if name not in OF_ONE_RUN},
        **_of_data(experiment),
        **_of_algorithm(experiment.simulator),
        **_over_time(experiment),
    }


def used_in_a_loop(simulator: Simulator, config: Config) -> dict[str, Used]:
    """Return each setting of a loop of the user's own, whose length nobody knows, by name."""
    regime = simulator.components.regime
    varies = regime.follows_epochs or bool(regime.starts)
    now = _in_force(regime.at(0, 0))
    settings = config.plain().items()
    return {
        **{name: v for name, v in settings if name not in OF_ONE_RUN and v is not None},
        **_of_algorithm(simulator),
        "criterion": name_of(simulator.components.engine.criterion),
        **{n: f"{v} at first, then as the regime says" if varies else v for n, v in now.items()},
    }


def optimizer_line(used: Mapping[str, Used]) -> str:
    """Return the used settings of optimizer and schedule in a line.

    >>> lr = [{"from": "start", "value": 0.1}, {"from": "epoch 30", "value": 0.01}]
    >>> optimizer_line({"optimizer": "SGD", "lr": lr, "momentum": 0.9, "weight_decay": 0.0})
    'optimizer SGD; lr 0.1, from epoch 30: 0.01; momentum 0.9'
    """
    parts = [f"optimizer {value_in_words(used['optimizer'])}"]
    for name in (*_OF_OPTIMIZER, "param_groups", "scheduler"):
        value = used.get(name)
        if value:  # else it is off
            parts.append(f"{name.replace('_', ' ')} {value_in_words(value)}")
    return "; ".join(parts).replace("nesterov true", "nesterov")


def _of_data(experiment: Experiment) -> Values:
    """Return what model, data and batch come to."""
    config, schedule = experiment.config, experiment.schedule
    text = experiment.dataset if isinstance(experiment.dataset, Text) else None
    return {
        "batch_size": config.pass_batch,
        "global_batch_size": experiment.batch,
        "criterion": config.criterion or name_of(experiment.criterion),
        "metric": config.metric or experiment.metric.shown.name,
        "metric_mode": "max" if experiment.metric.shown.higher_is_better else "min",
        "min_count": text.min_count if text else None,
        "regime": schedule.name,
        "scale_lr": schedule.scale_lr,
        "scale_epochs": schedule.scale_epochs,
        "value_dtype": config.value_dtype or config.dtype,
        "state_dtype": config.state_dtype or config.dtype,
        "compress_if": config.rule,
        "threads": experiment.threads.gradients,
    }


def _of_algorithm(simulator: Simulator) -> Values:
    algorithm = simulator.components.algorithm
    return {f.name: _plain(getattr(algorithm, f.name)) for f in settings_of(type(algorithm))}


def _over_time(experiment: Experiment) -> dict[str, Used]:
    """Return what the regime sets, with the defaults of its optimizer and momentum's owner."""
    parts = experiment.simulator.components
    regime, memory = parts.regime, parts.memory
    owned = {name: getattr(memory, name, None) for name in ("momentum", "nesterov")}
    own = {name: value for name, value in owned.items() if value is not None}
    timeline = Timeline(
        lambda *now: _in_force(regime.at(*now)) | own, experiment.steps, experiment.batches
    )
    return timeline.phases()


def _in_force(settings: Settings) -> Values:
    """Return what a regime's settings come to, by the names of `Config` where it has them."""
    name = settings.get("optimizer", "SGD")
    taken = optimizer_defaults(name)
    defaults = {key: taken.get(key) for key in _OF_OPTIMIZER}
    given = {key: value for key, value in settings.items() if key in {*taken, *_ELSE}}
    values = {"prune": None, **defaults, **given, "optimizer": name}
    values["compressor"] = compressor_spec(settings)
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: object) -> Plain:
    if isinstance(value, torch.Tensor):
        return float(value)
    if isinstance(value, tuple) and all(isinstance(part, ParameterGroup) for part in value):
        return "; ".join(map(str, value)) or None
    if isinstance(value, tuple) and all(isinstance(part, LayerRule) for part in value):
        return in_words(value)
    return value if is_plain(value) and not isinstance(value, GivenObject) else str(value)
