"""Lends a model the parameters and buffers of one worker.

Each may have several places there: a block may be reached by two names, and a weight may be tied.
`named_parameters` gives one name each.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor, nn

from ..settings import SettingError
from .contract import Tensors


@contextmanager
def lent(model: nn.Module, params: Tensors, buffers: Tensors) -> Iterator[dict[str, nn.Parameter]]:
    """Within it the model is that of one worker: its own parameters have the values of `params`.

    They are the model's own objects, so that whatever the model does with them reads these values:
    blocks that are computed again in the backward, lists of weights that a module keeps beside.
    Given are those of the names in `params`, whose `grad` is None at first. After it, all is as it
    was, and `buffers` hold what the model leaves there, in the same memory.
    """
    own = {name: p for name, p in model.named_parameters() if name in params}
    before = [(p, p.data, p.grad) for p in model.parameters()]
    places = _places(model)
    first = {name: held[key] for name, ((held, key), *_) in places.items()}
    rows = {name: buffer.detach() for name, buffer in buffers.items()}
    try:
        for p, _, _ in before:
            p.grad = None
        for name, p in own.items():
            if params[name] is not p:
                p.data = params[name].detach()
        _put(places, buffers)
        memory = [p.data_ptr() for p, _, _ in before]
        yield own
        for (p, _, _), address in zip(before, memory, strict=True):
            if p.data_ptr() != address:
                _refuse_memory(model, p)
        for name, ((held, key), *_) in places.items():
            _keep(name, held[key], rows[name])
    finally:
        for p, data, grad in before:
            p.grad = None
            p.data = data
            p.grad = grad
        _put(places, first)


def _refuse_memory(model: nn.Module, parameter: nn.Parameter) -> NoReturn:
    name = next(name for name, p in model.named_parameters() if p is parameter)
    rule = f"gives the parameter {name} other memory in its forward, which no step keeps"
    raise SettingError("model", None, rule, "make it a buffer, which each worker has")


_Place = tuple[dict[str, Tensor | None], str]  # a module's own buffers, and a key of them


def _places(model: nn.Module) -> dict[str, list[_Place]]:
    """Return the places of each buffer, that of its name first."""
    found: dict[int, tuple[str, list[_Place]]] = {}
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                name = f"{path}.{key}".lstrip(".")
                found.setdefault(id(buffer), (name, []))[1].append((module._buffers, key))
    return dict(found.values())


def _put(places: dict[str, list[_Place]], buffers: Mapping[str, Tensor | None]) -> None:
    for name, own in places.items():
        for held, key in own:
            held[key] = buffers[name]


@torch.no_grad()
def _keep(name: str, left: Tensor | None, own: Tensor) -> None:
    """Copy what the model leaves in a buffer to a worker's own, unless it is that memory."""
    if left is not None and _place(left) == _place(own):
        return
    if left is None or left.shape != own.shape:
        found = "nothing" if left is None else f"shape {tuple(left.shape)}"
        rule = f"changes the buffer {name} of shape {tuple(own.shape)} to {found}"
        raise SettingError("model", None, rule, "let it have one shape from the start")
    own.copy_(left)


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
