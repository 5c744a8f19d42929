"""Any element-wise optimizer of torch.optim, outside.

Letters: n elements of one segment.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...communication.messages import State
from ...registry import register
from ...settings import SettingError, unknown
from .contract import OuterOptimizer

_NAMES = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip
_PREFIX = "torch "  # before the names of what the optimizer keeps


@register("outer_optimizer", "torch")
@dataclass(frozen=True)
class OfTorch(OuterOptimizer):
    """An optimizer of torch.optim by its name, such as `torch:name=Adam,lr=0.01`.

    Those of Reddi et al., "Adaptive Federated Optimization", ICLR 2021, begin with another variance
    and correct no bias: see fedadam, fedyogi and fedadagrad.
    """

    name: str = "Adam"  # of the class: one that looks at each element alone
    beta1: float | None = None  # none: torch's default, as of those below
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name not in _NAMES:
            raise unknown("outer_optimizer", self.name, _NAMES)
        self._made(nn.Parameter(torch.zeros(1)))

    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Take a step of the optimizer, which finds in `state` what it kept."""
        parameter = nn.Parameter(anchor)
        optimizer = self._made(parameter)
        kept = {k: v for k, v in state.items() if k.startswith(_PREFIX)}
        optimizer.state[parameter] = {k.removeprefix(_PREFIX): v for k, v in kept.items()}
        parameter.grad = gradient.view_as(anchor)
        optimizer.step()
        for name, value in optimizer.state[parameter].items():
            if value is not None:
                state[_PREFIX + name] = torch.as_tensor(value)

    def _made(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        kind: type[torch.optim.Optimizer] = getattr(torch.optim, self.name)
        takes = inspect.signature(kind).parameters
        betas = (self.beta1, self.beta2)
        usual = takes["betas"].default if "betas" in takes else (None, None)
        given: dict[str, Any] = {
            "betas": tuple(
                own if own is not None else other for own, other in zip(betas, usual, strict=True)
            ),
            "lr": self.lr,
            "momentum": self.momentum if self.name == "SGD" else None,
            "eps": self.eps,
            "weight_decay": self.weight_decay,
        }
        chosen = {k: v for k, v in given.items() if v is not None and v != (None, None)}
        strange = [k for k in chosen if k not in takes]
        if strange:
            rule = f"has {strange[0].replace('betas', 'beta1 or beta2')}, which {self.name} lacks"
            raise SettingError("outer_optimizer", f"torch:name={self.name}", rule, "leave it out")
        try:
            return kind([parameter], **chosen)
        except ValueError as wrong:
            spec = f"torch:name={self.name}"
            raise SettingError("outer_optimizer", spec, f"is refused: {wrong}") from wrong
