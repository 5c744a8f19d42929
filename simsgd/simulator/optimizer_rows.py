"""What optimizers keep of models per worker, in a form with a row a worker, and back.

Numbers without dimensions, such as Adam's count of steps, are a row of one number for each worker
there, and `begun` says which workers have stepped a parameter at all.

Letters: W workers, L hosted here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..settings import SettingError
from .checkpoint_check import StateDict
from .parameter_groups import GroupPlan
from .torch_optimizers import TorchOptimizers

_SCALARS = ("step", "mu_product", "eta", "mu")  # what torch's classes count of a whole parameter
BEGUN = "begun"  # [L] bool
_NUMBERS = "numbers"  # keys of what is a number of Python


def rows_of_all(kept: StateDict, workers: int, device: torch.device) -> StateDict:
    """Return with rows what one optimizer keeps of the parameters [L, *shape] of all workers."""
    rows: StateDict = {
        key: value if value.dim() else value.to(device).expand(workers).clone()
        for key, value in kept.items()
        if isinstance(value, Tensor)
    }
    return {**rows, BEGUN: torch.ones(workers, dtype=torch.bool, device=device)}


def rows_of_each(kept: Sequence[StateDict | None], template: StateDict, like: Tensor) -> StateDict:
    """Return with rows what an optimizer of each worker keeps; None: nothing yet.

    `template` is what one keeps after a step, `like` a parameter. Raises `SettingError` for what
    has no rows.
    """
    rows: StateDict = {}
    numbers = [key for key, value in template.items() if isinstance(value, int | float)]
    for key, usual in template.items():
        if usual is None:
            continue
        if not isinstance(usual, Tensor | int | float):
            rule = f"keeps a {type(usual).__name__} under {key!r}, which a checkpoint cannot hold"
            raise SettingError("optimizer", None, rule, "keep tensors and numbers alone")
        empty = torch.zeros_like(torch.as_tensor(usual), device=like.device)
        found = [empty if own is None else own.get(key) for own in kept]
        rows[key] = torch.stack(
            [empty if value is None else torch.as_tensor(value).to(empty) for value in found]
        )
    begun = [own is not None for own in kept]
    rows[BEGUN] = torch.tensor(begun, device=like.device)
    return {**rows, _NUMBERS: numbers} if numbers else rows


def template_of(plans: Sequence[GroupPlan], name: str, like: Tensor) -> StateDict:
    """Return what is kept of one worker's parameter `like` [*shape] after a step."""
    plan = next(plan for plan in plans if name in plan.names)
    one = TorchOptimizers({name: nn.Parameter(torch.zeros_like(like))})
    one.follow([GroupPlan(plan.optimizer, plan.options, (name,))])
    one.step({name: torch.zeros_like(like)})
    return one.kept().get(name, {})


def was_begun(saved: StateDict, row: int | None = None) -> bool:
    """Return whether any worker, or that of a row, has stepped a parameter."""
    begun = saved.get(BEGUN)
    return begun is None or bool(begun.any() if row is None else begun[row])


def rows_agree(saved: StateDict) -> bool:
    """Return whether one optimizer can keep what is saved of all workers."""
    counts = [value for key, value in saved.items() if key in _SCALARS and value.dim()]
    alike = all(bool((value == value[0]).all()) for value in counts)
    begun = saved.get(BEGUN)
    return alike and _NUMBERS not in saved and (begun is None or bool(begun.all() or ~begun.any()))


def one_of_all(saved: StateDict) -> StateDict:
    """Return what one optimizer keeps of all workers, where they agree."""
    if BEGUN not in saved:
        return saved
    return {
        key: value[0] if key in _SCALARS else value for key, value in saved.items() if key != BEGUN
    }


def one_of_row(saved: StateDict, row: int) -> StateDict:
    """Return what a worker's own optimizer keeps."""
    numbers = saved.get(_NUMBERS, ())
    rows = {k: v for k, v in saved.items() if k not in (BEGUN, _NUMBERS)}
    return {
        key: value[row].item() if key in numbers else _row(value, row)
        for key, value in rows.items()
    }


def _row(value: object, row: int) -> object:
    return value[row] if isinstance(value, Tensor) and value.dim() else value
