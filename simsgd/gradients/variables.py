"""What functions keep around them: variables of an enclosing function, and of their module."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_CONTAINERS = (list, dict, set, deque)
_NUMBERS = (bool, int, float, complex)
_DEEP = 5  # containers within containers
_MOST = 1000  # entries of a container that are looked at
Variable = tuple[str, Any, Callable[[Any], None]]  # its name, its value, and what sets it


def variables(owner: object) -> Iterator[Variable]:
    """Yield the variables that hold numbers, tensors or containers, and that an owner's calls read.

    An owner is a function, or an object or a model with the functions of its classes.
    """
    seen: set[int] = set()
    for function in _functions(owner):
        yield from _of_function(function, function.__globals__, seen)


def keeper(value: object, depth: int = 0) -> Callable[[], None]:
    """Return what puts back the numbers of a tensor or an array, or what a container holds."""
    if isinstance(value, Tensor) and not _is_repeated(value):
        numbers = value.detach().clone()
        return lambda: _put_back(value, numbers)
    if isinstance(value, np.ndarray) and value.flags.writeable:
        saved = value.copy()
        return lambda: np.copyto(value, saved)
    if type(value) not in _CONTAINERS or depth > _DEEP:
        return lambda: None
    container: Any = value
    content = container.copy()
    entries = [*(content.values() if isinstance(content, dict) else content)][:_MOST]
    inner = [keeper(own, depth + 1) for own in entries]

    def put_back() -> None:
        container.clear()
        (container.extend if isinstance(container, list | deque) else container.update)(content)
        for each in inner:
            each()

    return put_back


def _is_repeated(tensor: Tensor) -> bool:
    """Return whether one number is several elements of a tensor, so that it cannot be written."""
    dense = tensor.layout == torch.strided and not tensor.is_nested
    return dense and any(
        not s and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _put_back(tensor: Tensor, numbers: Tensor) -> None:
    with torch.no_grad():
        tensor.data.copy_(numbers)


def _functions(owner: object) -> Iterator[FunctionType]:
    if isinstance(owner, partial):
        yield from _functions(owner.func)
    elif isinstance(owner, MethodType):
        yield from _functions(owner.__func__)
    elif isinstance(owner, FunctionType):
        if not owner.__module__.startswith("torch."):
            yield owner
    elif isinstance(owner, nn.Module):
        for kind in dict.fromkeys(type(module) for module in owner.modules()):
            yield from _functions(kind.forward)
    elif not isinstance(owner, type):
        called = vars(type(owner)).get("__call__")
        yield from _functions(called) if isinstance(called, FunctionType) else ()


def _of_function(
    function: FunctionType, module: dict[str, Any], seen: set[int]
) -> Iterator[Variable]:
    """Yield the variables of a function, and of those that it calls in the same module."""
    if id(function) in seen:
        return
    seen.add(id(function))
    own = [
        *zip(function.__code__.co_freevars, function.__closure__ or (), strict=True),
        *((name, None) for name in function.__code__.co_names if name in function.__globals__),
    ]
    for name, cell in own:
        try:
            value = function.__globals__[name] if cell is None else cell.cell_contents
        except ValueError:  # of a variable that has no value yet
            continue
        if isinstance(value, FunctionType) and value.__globals__ is module:
            yield from _of_function(value, module, seen)
        elif _holds(value):
            yield name, value, _setter(function, name, cell)


def _holds(value: object) -> bool:
    trained = isinstance(value, Tensor) and value.requires_grad
    kinds = (*_NUMBERS, *_CONTAINERS, Tensor, np.ndarray)
    return isinstance(value, kinds) and not trained


def _setter(function: FunctionType, name: str, cell: CellType | None) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        if cell is None:
            function.__globals__[name] = value
        else:
            cell.cell_contents = value

    return put
