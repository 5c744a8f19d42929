"""Checks what a model consists of, and holds it to that once its simulator is made."""

import operator
from itertools import chain
from typing import NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from ..gradients.trees import odd_form
from ..settings import SettingError, require

_FIX = "change it before, or make another Simulator"
_LAZY = f"{_FIX}; what its forward makes is there before if it was called on a batch once"


def check_tensors(model: nn.Module, spec: str | None = None) -> None:
    """Raise `SettingError` for a parameter or buffer that a simulator cannot hold.

    `spec` is what the model was named by.
    """
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        is_parameter = isinstance(tensor, nn.Parameter)
        kind = "parameters" if is_parameter else "buffers"
        if is_lazy(tensor):
            rule = f"is lazy: the shape of {name} is not known yet"
            fix = "call it on one batch first"
        elif tensor.is_meta:
            rule = f"has {kind} without numbers, {name} on the device meta"
            fix = "make it without torch.device('meta')"
        elif form := odd_form(tensor):
            rule, fix = f"has {kind} of another form, {name} is {form}", "give dense tensors"
        elif tensor.is_complex() and is_parameter:
            rule, fix = f"has complex parameters, {name}", "use real ones, two for each"
        else:
            continue
        raise SettingError("model", spec, rule, fix)


class ModelForm:
    """The modules, parameters and buffers of a model, as they are when this is made.

    A step that found others would train what the model no longer uses.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = [*model.modules()]
        self._params = [*model.parameters()]
        self._parts, self._kinds, self._named = self._parts_now(), self._kinds_now(), _named(model)

    def check(self) -> None:
        """Raise `SettingError` if anything was added, removed, replaced or cast since.

        In a model of 60 modules this takes less than 0.1 ms.
        """
        parts = self._parts_now()
        same = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        if not same or self._kinds_now() != self._kinds:
            self._refuse()

    def _parts_now(self) -> list[object]:
        held = ((own._modules, own._parameters) for own in self._modules)
        return [part for both in held for own in both for part in own.values()]

    def _kinds_now(self) -> list[object]:
        """Return of what kinds the tensors are; a buffer may be another one after each step."""
        params: list[object] = [(p.dtype, p.device, p.shape) for p in self._params]
        held = (own._buffers.items() for own in self._modules)
        return params + [(name, b.dtype) for own in held for name, b in own if b is not None]

    def _refuse(self) -> None:
        before, now = self._named, _named(self._model)
        for name in {**before, **now}:
            require(name in now, "model", None, f"has no {name} any more", _FIX)
            require(name in before, "model", None, f"has a new {name}", _LAZY)
            (part, kind), (known, was) = now[name], before[name]
            require(part is known, "model", None, f"has another {name} by now", _FIX)
            for one, other in zip(kind, was, strict=True):
                rule = f"has {name} of {one} by now, which was of {other}"
                require(one == other, "model", None, rule, _FIX)
        raise SettingError("model", None, "is another by now", _FIX)


class _Named(NamedTuple):
    part: object  # a module or parameter; None: a buffer
    kind: tuple[object, ...]  # of a tensor


def _named(model: nn.Module) -> dict[str, _Named]:
    modules = {name: _Named(own, ()) for name, own in model.named_modules(remove_duplicate=False)}
    params = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    return {
        **modules,
        **{name: _Named(p, (p.dtype, p.device, tuple(p.shape))) for name, p in params},
        **{name: _Named(None, (b.dtype,)) for name, b in buffers},
    }
