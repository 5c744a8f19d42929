"""What a module's own attributes are, to find that one was changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from .same_bits import digest

OF_TORCH = frozenset(vars(nn.Module()))  # attributes that every module has
_CONTAINERS = (list, dict, set)
_LONG = 1000  # entries, from which on only their number counts
_PLAIN = (bool, int, float, str, type(None))
_SWITCHES = (bool, int, str, type(None))
_MOST_STATES = 32


def plain_attributes(module: nn.Module) -> Iterator[object]:
    """Yield a module's own attributes that are plain values, or lists, tuples and dicts of such."""
    for name, value in module.__dict__.items():
        if isinstance(value, _PLAIN):
            yield name, type(value), value
        elif isinstance(value, list | tuple | dict):
            yield name, _frozen(value)


def state_of_attributes(model: nn.Module) -> tuple[object, ...]:
    """Return what differs once an attribute, a hook or a method of a model is another one."""
    return tuple(
        each for module in model.modules() for each in (*plain_attributes(module), *_others(module))
    )


class Switches:
    """Tells which way a model goes, as far as its own attributes show.

    After 32 states no others are told apart: the model counts, and each step is another.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._states: set[tuple[object, ...]] = set()

    def now(self) -> object:
        """Return the texts, whole numbers and truths that the modules have, as a key."""
        if len(self._states) > _MOST_STATES:
            return None
        state = tuple(
            value
            for module in self._model.modules()
            for name, value in module.__dict__.items()
            if isinstance(value, _SWITCHES) and name[0] != "_"
        )
        self._states.add(state)
        return state


@contextmanager
def attributes_kept(*owners: object) -> Iterator[None]:
    """Put back what Python attributes of modules, or of an object, are before the block.

    So are the contents of lists, dicts and sets that are attributes: a cache that a trial fills is
    as it was. What torch keeps itself, parameters and buffers too, is left alone.
    """
    spaces = [vars(part) for owner in owners for part in _parts(owner)]
    before = [{n: v for n, v in space.items() if n not in OF_TORCH} for space in spaces]
    contents = [
        (value, value.copy())
        for space in before
        for value in space.values()
        if type(value) in _CONTAINERS
    ]
    try:
        yield
    finally:
        for space, kept in zip(spaces, before, strict=True):
            for name in space.keys() - kept.keys() - OF_TORCH:
                del space[name]
            space.update(kept)
        for value, content in contents:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)


def _parts(owner: object) -> Iterator[object]:
    """Yield an object that has attributes, and the modules in it; of a method, what it is of."""
    owner = getattr(owner, "__self__", owner)
    if isinstance(owner, nn.Module):
        yield from owner.modules()
    elif hasattr(owner, "__dict__") and not isinstance(owner, type | ModuleType):
        yield owner


def _others(module: nn.Module) -> Iterator[object]:
    for name, value in module.__dict__.items():
        if name in OF_TORCH:
            continue
        if isinstance(value, Tensor):
            yield name, id(value), value._version, digest(value)
        elif isinstance(value, np.ndarray | list | tuple | dict):
            yield name, *_contents(value)
        elif callable(value):
            yield name, id(value)


def _contents(value: Any) -> Iterator[object]:
    """Yield what differs once tensors and arrays in a container hold other numbers."""
    if isinstance(value, Tensor):
        yield digest(value)
    elif isinstance(value, np.ndarray):
        yield hash(value.tobytes()) if value.size <= _LONG**2 else id(value)
    elif isinstance(value, list | tuple | dict) and len(value) <= _LONG:
        for own in value.values() if isinstance(value, dict) else value:
            yield from _contents(own)


def _frozen(value: Any) -> object:
    """Return what is equal where plain values are, as a key; of anything else its type alone."""
    if isinstance(value, list | tuple | dict) and len(value) > _LONG:
        return type(value), len(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(own) for own in value)
    if isinstance(value, dict):
        return tuple((str(key), _frozen(own)) for key, own in value.items())
    return value if isinstance(value, _PLAIN) else type(value)
