"""Whether a checkpoint belongs to a simulation: the same shapes of all that it holds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..settings import require

_HELD = {"memory": "memory", "exchange": "algorithm"}  # of a segment, and what it is of


def require_fitting(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise `SettingError` unless `state` has the form of a simulation's `own` state."""
    same = shapes(state["parameters"]) == shapes(own["parameters"])
    told = "belongs to another model, algorithm or number of workers"
    require(same, "checkpoint", None, told)
    same = shapes(state["buffers"]) == shapes(own["buffers"])
    require(same, "checkpoint", None, "belongs to another number of workers")
    for place, what in _HELD.items():
        same = _of_segments(state["voices"], place) == _of_segments(own["voices"], place)
        told = f"belongs to another {what}, granularity or number of workers"
        require(same, "checkpoint", None, told)


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shapes of tensors by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def _of_segments(segment_states: Mapping[str, Any], place: str) -> dict[str, dict[str, torch.Size]]:
    return {segment: shapes(state[place]) for segment, state in segment_states.items()}
