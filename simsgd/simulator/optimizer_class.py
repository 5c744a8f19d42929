"""The optimizers of torch, by name, and what they take."""

import functools
import inspect

import torch

from ..settings import unknown


def optimizer_class(name: object) -> type[torch.optim.Optimizer]:
    """Return the class of torch.optim with this name; `SettingError` if there is none."""
    known = torch_optimizers()
    if not isinstance(name, str) or name not in known:
        raise unknown("optimizer", str(name), known)
    return known[name]


@functools.cache
def optimizer_arguments(name: str) -> frozenset[str]:
    """Return the settings that an optimizer takes."""
    signature = inspect.signature(optimizer_class(name))
    return frozenset(signature.parameters) - {"params"}


@functools.cache
def taken_by_any() -> frozenset[str]:
    """Return the settings that some optimizer takes."""
    return frozenset().union(*map(optimizer_arguments, torch_optimizers()))


@functools.cache
def torch_optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Return the classes of torch.optim by name, those that need no closure."""
    return {
        name: found
        for name, found in vars(torch.optim).items()
        if isinstance(found, type)
        and issubclass(found, torch.optim.Optimizer)
        and name not in ("Optimizer", "LBFGS", "SparseAdam")  # need a closure, sparse gradients
    }
