"""Checks that a checkpoint fits a simulator: the same shapes of all that it holds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..given_object import plainly
from ..settings import SettingError, require, require_kind, shown

StateDict = dict[str, Any]  # of plain values, tensors, and dicts and lists of them, as of torch
_OPTIONAL = ("compress_layers", "engine", "workers")  # which earlier versions lack
_STATES = {"memory": "memory", "exchange": "algorithm"}  # of a segment, and what it is of


@contextmanager
def taken_apart() -> Iterator[None]:
    """Raise what missing or broken parts of a state raise as `SettingError`."""
    try:
        yield
    except (AttributeError, TypeError, LookupError) as wrong:
        raise SettingError("checkpoint", None, "holds missing or broken parts") from wrong


def require_fitting(state: StateDict, own: StateDict) -> None:
    """Raise `SettingError` unless `state` has the form of a simulation's `own` state."""
    require_kind("checkpoint", state, dict)
    with taken_apart():
        _require_fitting(state, own)


def _require_fitting(state: StateDict, own: StateDict) -> None:
    lacking = [name for name in own if name not in state and name not in _OPTIONAL]
    require(not lacking, "checkpoint", None, f"lacks {', '.join(lacking)}")
    before, now = state.get("workers", own["workers"]), own["workers"]
    rule = f"belongs to a simulator of {before} workers, and this one has {now}"
    require(before == now, "checkpoint", None, rule)
    if shapes(state["parameters"]) != shapes(own["parameters"]):
        rule = "belongs to another model, algorithm or number of workers"
        raise SettingError("checkpoint", None, rule)
    if shapes(state["buffers"]) != shapes(own["buffers"]):
        raise SettingError("checkpoint", None, "belongs to another number of workers")
    if shapes(state.get("clients", {})) != shapes(own.get("clients", {})):
        raise SettingError("checkpoint", None, "belongs to another number of clients")
    before, now = _dtype(state["parameters"]), _dtype(own["parameters"])
    rule = f"has parameters of {before}, and the model has {now}"
    require(before == now, "checkpoint", None, rule)
    _require_counts(state)
    _require_forms(state)
    for place, what in _STATES.items():
        if _of_segments(state["voices"], place) != _of_segments(own["voices"], place):
            rule = f"belongs to another {what}, granularity or number of workers"
            raise SettingError("checkpoint", None, rule)
    before, now = _memory_dtypes(state["voices"]), _memory_dtypes(own["voices"])
    rule = f"keeps memories in {before}, and this simulator in {now}"
    require(before == now, "checkpoint", None, rule, "give the state_dtype that it was saved with")
    _require_known("", state, {**own, **dict.fromkeys(_OPTIONAL)})
    _require_known("optimizer: ", state["optimizer"], own["optimizer"])
    for name, part in own["voices"].items():
        _require_known(f"{name}: ", state["voices"][name], part)


def require_optimizers(state: StateDict, own: Mapping[str, str]) -> None:
    """Raise `SettingError` for a `state` of other optimizers than step each parameter.

    `own` are these at the state's last step, {name of a parameter: name of an optimizer}.
    """
    saved = state["optimizer"]
    if saved["inner"] is None:
        return
    with taken_apart():
        kept = {
            number: str(group.get("optimizer", saved["name"]))
            for group in saved["inner"]["param_groups"]
            for number in group["params"]
        }
    for number, (name, now) in enumerate(own.items()):
        require(number in kept, "checkpoint", None, "holds missing or broken parts")
        before = kept[number]
        rule = f"is of optimizer {plainly(before)}, and this simulator steps {name} by "
        fix = "give the optimizer that wrote it"
        require(before == now, "checkpoint", None, rule + plainly(now), fix)


def _require_known(where: str, state: StateDict, own: StateDict) -> None:
    """Raise `SettingError` for parts that would be left aside."""
    others = ", ".join(f"{where}{name}" for name in state if name not in own)
    fix = "leave them out, or give the settings of the simulator that wrote them"
    require(not others, "checkpoint", None, f"has parts that do not belong here: {others}", fix)


def _dtype(tensors: Mapping[str, Tensor]) -> str:
    """Return the dtypes of tensors in words."""
    return ", ".join(dict.fromkeys(str(tensor.dtype) for tensor in tensors.values()))


def _require_counts(state: StateDict) -> None:
    """Raise `SettingError` for steps or an epoch that are no number, or results that are none."""
    for name in ("steps", "epoch"):
        count = state[name]
        holds = type(count) is int and count >= 0
        rule = f"holds {shown(count)} as {name}, which must be a whole number of at least 0"
        require(holds or (name == "epoch" and count is None), "checkpoint", None, rule)
    whole = all(isinstance(row, Mapping) for row in state["results"])
    require(whole, "checkpoint", None, "holds results of epochs that are no dicts")


def _require_forms(state: StateDict) -> None:
    """Raise `SettingError` or another error for parts of another form than a simulator writes."""
    optimizer = state["optimizer"]
    whole = isinstance(optimizer["decayed"], Mapping) and isinstance(optimizer["name"], str)
    if optimizer["inner"] is not None:
        whole = whole and isinstance(optimizer["inner"]["state"], Mapping)
        whole = whole and isinstance(optimizer["inner"]["param_groups"], list)
    whole = whole and isinstance(state["compressor"], str)
    whole = whole and isinstance(state.get("compress_layers", []), list)
    whole = whole and isinstance(state.get("engine", ""), str)
    require(whole, "checkpoint", None, "holds missing or broken parts")


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shapes of tensors by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def _memory_dtypes(segments: StateDict) -> str:
    """Return the dtypes of what memories keep in words."""
    kept = [_dtype(state["memory"]) for state in segments.values()]
    return ", ".join(filter(None, dict.fromkeys(kept)))


def _of_segments(segments: StateDict, place: str) -> dict[str, dict[str, torch.Size]]:
    return {segment: shapes(state[place]) for segment, state in segments.items()}
