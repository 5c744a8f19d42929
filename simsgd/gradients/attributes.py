"""What a module's own attributes are, to find that one was changed."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from .same_bits import digest
from .variables import keeper, variables

OF_TORCH = frozenset(vars(nn.Module()))  # attributes that every module has
_MOST_SEEN = 20_000  # objects whose contents are looked at
_LONGEST = 100_000  # entries, of which more are not compared
_LONG = 1000  # entries, from which on only their number counts
_PLAIN = (bool, int, float, str, type(None))
_ONE = (FunctionType, BuiltinFunctionType, ModuleType, type)  # which have no contents
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
    """Return what differs once something that a model holds is another, or was written.

    That is what its modules have as attributes, whatever it is, hooks and methods included; what is
    registered is left alone.
    """
    registered = (*model.modules(), *model.parameters(), *model.buffers())
    seen = {id(own) for own in registered}
    return tuple(
        each
        for module in model.modules()
        for name, value in module.__dict__.items()
        for each in (name, *_contents(value, seen))
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
    """Put back what modules, objects and functions keep in Python as it is before the block.

    That is their attributes, the variables that their functions read, and the contents of lists,
    dicts, sets, tensors and arrays among these: a cache that a trial fills is as it was. What torch
    keeps itself, parameters and buffers too, is left alone.
    """
    spaces = [vars(part) for owner in owners for part in _parts(owner)]
    before = [{n: v for n, v in space.items() if n not in OF_TORCH} for space in spaces]
    around = [own for owner in owners for own in variables(owner)]
    held = [*(v for space in before for v in space.values()), *(v for _, v, _ in around)]
    contents = [keeper(value) for value in held]
    try:
        yield
    finally:
        for space, kept in zip(spaces, before, strict=True):
            for name in space.keys() - kept.keys() - OF_TORCH:
                del space[name]
            space.update(kept)
        for _, value, put in around:
            put(value)
        for put_back in contents:
            put_back()


def _parts(owner: object) -> Iterator[object]:
    """Yield an object that has attributes, and the modules in it; of a method, what it is of."""
    owner = getattr(owner, "__self__", owner)
    if isinstance(owner, nn.Module):
        yield from owner.modules()
    elif hasattr(owner, "__dict__") and not isinstance(owner, type | ModuleType):
        yield owner


def _contents(value: Any, seen: set[int]) -> Iterator[object]:
    """Yield what differs once an object, or what it holds, is another; of what was `seen` nothing.

    Of long containers only the length counts, and of what has no attributes which one it is.
    """
    if isinstance(value, (*_PLAIN, np.generic)):
        yield from (type(value), value if value == value else None)  # nan is not itself
        return
    if isinstance(value, _ONE) or len(seen) > _MOST_SEEN:
        yield id(value)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    yield type(value)
    if isinstance(value, Tensor):
        version = None if value.is_inference() else value._version
        yield from (id(value), version, digest(value))
    elif isinstance(value, np.ndarray):
        some = value.reshape(-1)[:: 1 + value.size // _LONGEST]
        yield from (id(value), hash(some.tobytes()))
    elif isinstance(value, Mapping | Set | list | tuple | deque) and len(value) > _LONG:
        yield from (len(value), _hash_of(value))
    elif isinstance(value, Set):
        yield frozenset(value)
    elif (parts := _held(value)) is not None:
        for own in parts:
            yield from _contents(own, seen)
    else:
        yield id(value)


def _hash_of(container: Any) -> int | None:
    """Return what differs where a long container of plain values holds others."""
    if len(container) > _LONGEST:
        return None
    values = container.items() if isinstance(container, Mapping) else container
    try:
        return hash(frozenset(values) if isinstance(container, Set) else tuple(values))
    except TypeError:
        return None


def _held(value: Any) -> Iterable[object] | None:
    """Return what a container or an object holds; None for one that holds nothing."""
    if isinstance(value, Mapping):
        return chain.from_iterable(value.items())
    if isinstance(value, list | tuple | deque):
        return value
    if isinstance(value, partial):
        return chain([value.func], value.args, chain.from_iterable(value.keywords.items()))
    if isinstance(value, MethodType):
        return iter([value.__func__, value.__self__])
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__"))]
    own = [getattr(value, name) for name in slots if hasattr(value, name)]
    if hasattr(value, "__dict__"):
        return chain(own, chain.from_iterable(vars(value).items()))
    return own or None


def _names(slots: Any) -> Iterable[str]:
    return () if slots is None else (slots,) if isinstance(slots, str) else slots


def _frozen(value: Any) -> object:
    """Return what is equal where plain values are, as a key; of anything else its type alone."""
    if isinstance(value, list | tuple | dict) and len(value) > _LONG:
        return type(value), len(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(own) for own in value)
    if isinstance(value, dict):
        return tuple((str(key), _frozen(own)) for key, own in value.items())
    return value if isinstance(value, _PLAIN) else type(value)
