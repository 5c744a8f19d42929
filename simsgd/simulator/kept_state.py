"""Refuses models and losses that keep in Python what workers share, or that train something else.

Letters: b samples of a worker.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..gradients.attributes import OF_TORCH, attributes_kept
from ..gradients.contract import Criterion, Tensors
from ..gradients.dropout import KeyedDropout
from ..gradients.generators import seeded
from ..gradients.loop import Loop
from ..gradients.trees import Tree, cloned, mapped
from ..gradients.variables import variables
from ..settings import SettingError
from .components import Components
from .outside_parameters import outside, refuse_outside, trained_parameters

Place = tuple[str, str]  # "model" or "criterion", and the name of an attribute
Kept = dict[Place, object]

_CLOSE, _ROUGH = 1e-9, 1e-5  # what losses differ by on a device that adds in any order
_MOST = 1000  # numbers and tensors of a container that are looked at


def check_kept_state(
    parts: Components, buffers: Tensors, x: Tree, y: Tree, alone: bool = False
) -> None:
    """Raise `SettingError` if the same batch, given twice, leads to two losses by what is kept.

    So it is with a number that counts calls, a running center or a generator: each real worker has
    its own, as it has buffers. It is raised too if the loss trains what is not the model's.
    `x`, `y` [b, ...] and `buffers` {name: [*shape]} are a worker's.
    Copies of model and criterion are called, so that nothing changes; what has no copy, or whose
    copy fails, is not looked at. A worker that is `alone` may keep what it likes but in parameters,
    and an engine that chooses then takes a loop.
    """
    try:
        calls = _called(parts, buffers, [x, x], y)
    except Exception:  # as of a criterion that reads the model itself; the step tells what is wrong
        return
    for tensor in calls.reached[0] if len(calls.reached) > 1 else ():
        if any(tensor is other for other in calls.reached[1]):  # else a forward makes it
            raise refuse_outside(tensor, alone)
    first, *_ = calls.losses
    close = _CLOSE if first.dtype == torch.float64 else _ROUGH
    others = [calls.losses[-1]]
    if calls.changed:  # perhaps to what other samples would not have led to
        with suppress(Exception):  # of a model that does not take them
            others += _called(parts, buffers, [mapped(_halved, x), x], y).losses[-1:]
    if all(torch.allclose(first, own, rtol=close, atol=0, equal_nan=True) for own in others):
        return
    whose, name = calls.changed or ("", "")
    rule = f"keeps {name} from one call to the next, which all workers would share"
    fix = "make it a buffer of the model; draw from torch's global generator, as each worker does"
    if whose == "model" and name in dict(parts.model.named_parameters()):
        rule = f"changes the parameter {name} in its forward, which no step keeps"
        fix = f"{'use engine loop, or ' if alone else ''}make it a buffer of the model"
    elif alone:
        parts.engine.keep_choice("loop")  # which calls them as a plain loop does
        return
    raise SettingError(whose, None, rule, fix)


class _Calls(NamedTuple):
    """What calls one after the other have given."""

    losses: list[Tensor]
    reached: list[list[Tensor]]  # what gets a gradient in each, and is not the model's
    changed: Place | None  # what the last has changed of what is kept


def _called(parts: Components, buffers: Tensors, inputs: Sequence[Tree], y: Tree) -> _Calls:
    """Return what copies of model and criterion give for inputs, until one changes nothing."""
    key, copies = parts.key.keys()[0], dict[int, object]()
    with attributes_kept(parts.model, parts.engine.criterion):
        model, criterion = copy.deepcopy((parts.model, parts.engine.criterion), copies)
        engine = Loop(model, criterion, parts.engine.config)
        kept, calls = dict(_kept(model, criterion)), _Calls([], [], None)
        for x in inputs:
            own = {name: buffer.clone() for name, buffer in buffers.items()}
            with torch.enable_grad(), seeded(key), KeyedDropout(key):
                loss, _ = engine.loss({}, own, cloned(x), cloned(y))
            calls.reached.append(outside(loss, _known(parts.model, model, copies)))
            calls.losses.append(loss.detach())
            before, kept = kept, dict(_kept(model, criterion))
            calls = calls._replace(changed=_differing(before, kept))
            if x is inputs[-1] and not (calls.changed or calls.reached[-1]):
                break
    return calls


def _halved(leaf: Tensor) -> Tensor:
    """Return other inputs; whole numbers, as of words, stay."""
    return leaf / 2 if leaf.is_floating_point() else leaf


def _known(model: nn.Module, copied: nn.Module, copies: dict[int, object]) -> list[Tensor]:
    """Return the parameters of a model and its copy, and the copies of other simulators'."""
    others = [copies.get(id(trained)) for trained in trained_parameters()]
    return [
        *model.parameters(),
        *copied.parameters(),
        *(own for own in others if isinstance(own, Tensor)),
    ]


def _differing(before: Kept, now: Kept) -> Place | None:
    """Return the first attribute that has changed."""
    return next((place for place in now if not _same(before.get(place), now[place])), None)


def _kept(model: nn.Module, criterion: Criterion) -> Iterator[tuple[Place, object]]:
    """Yield copies of the numbers that attributes hold, and variables that functions read."""
    for path, module in model.named_modules():
        yield from _of("model", path, vars(module))
    for name, p in model.named_parameters():  # that the forward itself changes
        yield ("model", name), [p.detach().sum(), p.detach().norm()]
    for whose, owner in (("model", model), ("criterion", criterion)):
        yield from _of(whose, "", {name: value for name, value, _ in variables(owner)})
    owner = getattr(criterion, "__self__", criterion)
    if isinstance(owner, nn.Module):
        if owner is not model:
            for path, module in owner.named_modules():
                yield from _of("criterion", path, {**vars(module), **module._buffers})
    elif hasattr(owner, "__dict__") and not isinstance(owner, type):
        yield from _of("criterion", "", vars(owner))


def _of(whose: str, path: str, attributes: dict[str, object]) -> Iterator[tuple[Place, object]]:
    for name, value in attributes.items():
        if name not in OF_TORCH:
            numbers = [_copied(leaf) for leaf in tree_leaves(value)[:_MOST]]
            yield (whose, f"{path}.{name}".lstrip(".")), numbers


def _copied(leaf: object) -> object:
    """Return a number, a copy of a tensor, or where a generator is; None for anything else."""
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    if isinstance(leaf, np.ndarray):
        return leaf.tobytes()
    if isinstance(leaf, torch.Generator):
        return leaf.get_state()
    if isinstance(leaf, random.Random):
        return leaf.getstate()
    if isinstance(leaf, np.random.Generator):
        return str(leaf.bit_generator.state)
    return leaf if isinstance(leaf, bool | int | float) else None


def _same(before: object, now: object) -> bool:
    if not isinstance(before, list) or not isinstance(now, list) or len(before) != len(now):
        return False
    return all(
        torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor)
        else one == other
        for one, other in zip(before, now, strict=True)
    )  # fmt: skip
