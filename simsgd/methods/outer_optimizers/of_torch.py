"""Any element-wise optimizer of torch.optim, outside.

Letters: n elements of one segment.
"""

import inspect
from collections.abc import Iterator
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
_BEGUN = "torch: begun"  # whether the optimizer has made what it keeps
_PREFIX, _NUMBER = "torch ", "torch number "  # before the names of tensors [1, n] and of numbers


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

    def init(self, anchor: Tensor) -> State:
        """Return zeros [1, n] for all that the optimizer keeps once it begins, numbers too."""
        probe = nn.Parameter(torch.zeros(1, 1, dtype=anchor.dtype))
        optimizer = self._made(probe)
        probe.grad = torch.zeros_like(probe)
        optimizer.step()
        kept = {k: torch.as_tensor(v) for k, v in optimizer.state[probe].items() if v is not None}
        return {
            _BEGUN: torch.zeros_like(anchor, dtype=torch.bool),
            **{
                (_PREFIX if v.dim() else _NUMBER) + k: torch.zeros_like(anchor, dtype=v.dtype)
                for k, v in kept.items()
            },
        }

    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Take a step of the optimizer, which finds in `state` what it kept."""
        parameter = nn.Parameter(anchor)
        optimizer = self._made(parameter)
        if state[_BEGUN][0, 0]:
            optimizer.state[parameter] = dict(_kept(state))
        parameter.grad = gradient.view_as(anchor)
        optimizer.step()
        for name, value in optimizer.state[parameter].items():
            if value is not None:
                place = _NUMBER if _NUMBER + name in state else _PREFIX
                state[place + name].copy_(torch.as_tensor(value))
        state[_BEGUN].fill_(True)

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


def _kept(state: State) -> Iterator[tuple[str, Tensor]]:
    """Yield what the optimizer kept, by its names."""
    for name, value in state.items():
        if name.startswith(_NUMBER):
            yield name.removeprefix(_NUMBER), torch.tensor(value[0, 0].item(), dtype=value.dtype)
        elif name.startswith(_PREFIX):
            yield name.removeprefix(_PREFIX), value
