"""The contract of an outer optimizer.

Letters: n elements of one segment.
"""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import State
from ...registry import build, contract, is_own
from ...settings import SettingError, require
from ..method_class import MethodClass
from ..own_state import check_rows


@contract("outer_optimizer")
@dataclass(frozen=True)
class OuterOptimizer(metaclass=MethodClass):
    """Moves the common model along the pseudo-gradient g = -mean_i (x_i - a), once an exchange.

    A frozen dataclass of settings; what the spec leaves open is the algorithm's.
    """

    lr: float | None = None  # greater than 0
    momentum: float | None = None  # in [0, 1)

    def __post_init__(self) -> None:
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise SettingError("lr", self.lr, "must be greater than 0")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise SettingError("momentum", self.momentum, "must lie in [0, 1)")

    def filled(self, lr: float, momentum: float) -> "OuterOptimizer":
        """Return the optimizer with these where its own settings leave them open."""
        return dataclasses.replace(
            self,
            lr=lr if self.lr is None else self.lr,
            momentum=momentum if self.momentum is None else self.momentum,
        )

    def at_rate(self, lr: float | Tensor) -> "OuterOptimizer":
        """Return the optimizer while the workers' own have this lr, a number or [n]."""
        return self

    def init(self, anchor: Tensor) -> State:
        """Return the state before the first exchange, for a common model `anchor` [1, n]."""
        return {}

    @abstractmethod
    def step(self, anchor: Tensor, gradient: Tensor, state: State) -> None:
        """Move the common model `anchor` [1, n], in place, along the pseudo-gradient [n]."""


def state_of(outer: OuterOptimizer, anchor: Tensor) -> State:
    """Return the state of an outer optimizer for a common model `anchor` [1, n].

    Raises `SettingError` for one of a user's own that is no dict of tensors of its own.
    """
    state = outer.init(anchor)
    if is_own(outer):
        check_rows("outer_optimizer", outer, state, anchor)
        if "anchor" in state:
            rule, fix = "has a state 'anchor', the name of the model", "give it another name"
            raise SettingError("outer_optimizer", type(outer).__name__, rule, fix)
    return state


def move_(outer: OuterOptimizer, anchor: Tensor, gradient: Tensor, state: State) -> None:
    """Move the common model `anchor` [1, n], in place, along the pseudo-gradient [n].

    Raises `SettingError` for a step of a user's own that returns something instead.
    """
    returned: object = outer.step(anchor, gradient, state)
    if returned is not None and is_own(outer):
        rule = f"has a step that returns a {type(returned).__name__}, where anchor is to change"
        fix = "change it in place, as anchor.sub_(...), and return nothing"
        raise SettingError("outer_optimizer", type(outer).__name__, rule, fix)


def outer_optimizer_of(spec: str, lr: float, momentum: float) -> OuterOptimizer:
    """Return the outer optimizer of a spec, with what the spec leaves open.

    Raises `SettingError` for a wrong value, and for a spec that is not one outer optimizer.
    """
    require(0 < lr < math.inf, "outer_lr", lr, "must be greater than 0")
    require(0 <= momentum < 1, "outer_momentum", momentum, "must lie in [0, 1)")
    parts = build("outer_optimizer", spec)
    require(len(parts) == 1, "outer_optimizer", spec, "must be one outer optimizer")
    outer: OuterOptimizer = parts[0]
    return outer.filled(lr, momentum)
