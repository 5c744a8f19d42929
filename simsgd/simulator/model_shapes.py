"""The shapes of a model's parameters, without its weights."""

import re

import torch
from torch import nn

from ..catalog import build_model, load, parse_config
from ..settings import SettingError, require


def shapes_of(
    model: str, config: str = "", num_classes: int | None = None, input_shape: str | None = None
) -> dict[str, torch.Size]:
    """Return {name: shape} of the parameters that are trained.

    `config` and `input_shape` are texts such as "depth=20" and "3x32x32"; what is left out is the
    model's default. No memory is taken, unless building the model needs its weights.

    >>> shapes_of("mlp", "hidden=()", input_shape="1x8x8")
    {'1.weight': torch.Size([10, 64]), '1.bias': torch.Size([10])}

    Raises `SettingError` if the model does not exist or does not take such settings.
    """
    least = num_classes is None or num_classes >= 1
    require(least, "num_classes", num_classes, "must be at least 1")
    module, given = load("models", model), parse_config(config)
    shape = None if input_shape is None else _read(input_shape)

    def built() -> nn.Module:
        return build_model(module, given, num_classes, shape)

    try:
        with torch.device("meta"):
            network = built()
    except (RuntimeError, SettingError):  # it may look into its weights
        with torch.random.fork_rng(devices=[]):
            network = built()
    return {name: p.shape for name, p in network.named_parameters() if p.requires_grad}


def _read(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text) is None:
        raise SettingError("input_shape", text, "must be sizes joined by x", "such as 3x32x32")
    return tuple(map(int, text.split("x")))
