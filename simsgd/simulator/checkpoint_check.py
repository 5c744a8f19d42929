"""Checks that a checkpoint fits a simulator: the same shapes of all that it holds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..settings import SettingError, require, require_kind

StateDict = dict[str, Any]  # of plain values, tensors, and dicts and lists of them, as of torch
_OPTIONAL = ("compress_layers", "engine")  # which earlier versions lack
_STATES = {"memory": "memory", "exchange": "algorithm"}  # of a segment, and what it is of


def require_fitting(state: StateDict, own: StateDict) -> None:
    """Raise `SettingError` unless `state` has the form of a simulation's `own` state."""
    require_kind("checkpoint", state, dict)
    try:
        _require_fitting(state, own)
    except (AttributeError, TypeError, KeyError) as wrong:
        raise SettingError("checkpoint", None, "holds missing or broken parts") from wrong


def _require_fitting(state: StateDict, own: StateDict) -> None:
    lacking = [name for name in own if name not in state and name not in _OPTIONAL]
    require(not lacking, "checkpoint", None, f"lacks {', '.join(lacking)}")
    if shapes(state["parameters"]) != shapes(own["parameters"]):
        rule = "belongs to another model, algorithm or number of workers"
        raise SettingError("checkpoint", None, rule)
    if shapes(state["buffers"]) != shapes(own["buffers"]):
        raise SettingError("checkpoint", None, "belongs to another number of workers")
    if shapes(state.get("clients", {})) != shapes(own.get("clients", {})):
        raise SettingError("checkpoint", None, "belongs to another number of clients")
    for place, what in _STATES.items():
        if _of_segments(state["voices"], place) != _of_segments(own["voices"], place):
            rule = f"belongs to another {what}, granularity or number of workers"
            raise SettingError("checkpoint", None, rule)


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shapes of tensors by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def _of_segments(segments: StateDict, place: str) -> dict[str, dict[str, torch.Size]]:
    return {segment: shapes(state[place]) for segment, state in segments.items()}
