"""Finds parameters that a loss trains and that are not the model's: a step gives them no gradient.

In a plain loop `backward` would fill their `grad`, for an optimizer of their own; engines compute
the gradients of the model's parameters, and what they leave elsewhere is of trials.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..settings import SettingError

_TRAINED = WeakIdKeyDictionary()  # parameters of all simulators, which read no `grad`


def note_trained(parameters: Iterable[nn.Parameter]) -> None:
    """Keep in mind that a simulator trains parameters: a loss of another may depend on them."""
    for parameter in parameters:
        _TRAINED[parameter] = True


def trained_parameters() -> list[Tensor]:
    """Return the parameters that simulators train."""
    return [*_TRAINED.keys()]


def outside(loss: Tensor, known: Iterable[Tensor]) -> list[Tensor]:
    """Return what gets a gradient of a loss and is neither `known` nor a simulator's."""
    ours = {id(tensor) for tensor in known}
    return [own for own in _reached(loss) if id(own) not in ours and own not in _TRAINED]


def refuse_outside(tensor: Tensor, alone: bool) -> SettingError:
    """Return the error for such a tensor; a worker that is `alone` may train it in a loop."""
    what = f"a tensor of shape {[*tensor.shape]} that is not the model's"
    rule = f"and its loss give a gradient to {what}, which no step keeps"
    loop = ", or use engine loop" if alone else ""
    fix = f"let the model have it, as self.t = nn.Parameter(...); else detach or freeze it{loop}"
    return SettingError("model", None, rule, fix)


def _reached(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the leaves that a backward from a tensor would reach."""
    if tensor.requires_grad and tensor.grad_fn is None:
        yield tensor
    found, todo = set[torch.autograd.graph.Node](), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in found:
            continue
        found.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        todo += [following for following, _ in node.next_functions]
