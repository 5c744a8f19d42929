"""Counts what the optimizers of a run keep, before they have made it."""

import torch
from torch import Tensor

from ...simulator.components import Components
from ...simulator.parameter_groups import GroupPlan
from ...simulator.step_settings import StepSettings
from ...simulator.torch_optimizers import TorchOptimizers
from .tensor_bytes import num_bytes


def optimizer_bytes(parts: Components, settings: StepSettings) -> int:
    """Return what the optimizers keep, by what they keep of a small parameter of each group."""
    size, total = (2, 3), 0
    for plan in parts.optimizer.plans(settings.optimizer):
        one = TorchOptimizers({"one": torch.nn.Parameter(torch.zeros(size))})
        one.follow([GroupPlan(plan.optimizer, plan.options, ("one",))])
        one.step({"one": torch.ones(size)})
        kept = [t for t in one.kept().get("one", {}).values() if isinstance(t, Tensor)]
        copies = sum(t.shape == size for t in kept)
        total += copies * num_bytes([parts.parameters.trained[name] for name in plan.names])
    return total
