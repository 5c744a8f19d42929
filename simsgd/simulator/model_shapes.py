"""The shapes of a model's parameters, and the order of their gradients, without its weights."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..catalog import begin_texts, build_model, load, parse_config, usual_input_shape
from ..gradients.layer_work import backward_order
from ..settings import SettingError, require, require_kind

_LARGEST = 1 << 26  # numbers of a sample


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
    require_kind("num_classes", num_classes, int, type(None))
    require_kind("input_shape", input_shape, str, type(None))
    least = num_classes is None or num_classes >= 1
    require(least, "num_classes", num_classes, "must be at least 1")
    module, given = load("models", model), parse_config(config)
    shape = None if input_shape is None else _read(input_shape)

    def built() -> nn.Module:
        return build_model(module, given, num_classes, shape)

    try:
        with torch.device("meta"), _Undrawn():
            network = built()
    except (RuntimeError, SettingError):  # it may look into its weights
        with torch.random.fork_rng(devices=[]):
            network = built()
    return {name: p.shape for name, p in network.named_parameters() if p.requires_grad}


def order_of(
    model: str, config: str = "", num_classes: int | None = None, input_shape: str | None = None
) -> dict[str, float]:
    """Return after which part of backward, in (0, 1], the gradient of each parameter is there.

    The arguments are those of `shapes_of`. Two samples go through the model, without its weights
    where it can do that. Raises `SettingError` if it takes neither numbers nor words of that shape.
    """
    module, given = load("models", model), parse_config(config)
    shape = usual_input_shape(module) if input_shape is None else _read(input_shape)
    fix = "give input_shape, such as 3x32x32"
    require(shape is not None, "model", model, "has no shape of a sample of its own", fix)
    assert shape is not None
    for device in ("meta", "cpu"):  # it may look into its weights
        with torch.random.fork_rng(devices=[]), torch.device(device), torch.no_grad():
            for sample in _samples(shape):
                with contextlib.suppress(Exception):
                    network = build_model(module, given, num_classes, shape).train()
                    begin_texts(network, len(sample))
                    return backward_order(network, partial(network, sample))
    raise SettingError("model", model, f"does not take samples of {shape}", fix)


class _Undrawn(TorchFunctionMode):
    """Leaves weights without memory undrawn, for which torch would load its compiler first."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))


def _samples(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Yield two samples: of words where they may be a text, and of numbers."""
    if len(shape) == 1:
        yield torch.zeros(2, *shape, dtype=torch.int64)
    yield torch.zeros(2, *shape)


def _read(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text, re.ASCII) is None:
        raise SettingError("input_shape", text, "must be sizes joined by x", "such as 3x32x32")
    shape = tuple(map(int, text.split("x")))
    rule = f"must be of at most {_LARGEST:,} numbers"
    require(math.prod(shape) <= _LARGEST, "input_shape", text, rule)
    return shape
