"""Keep nothing of what is not sent."""

from dataclasses import dataclass

from torch import Tensor

from ...communication.messages import Message, State
from ...registry import register
from .contract import Memory


@register("memory", "none")
@dataclass(frozen=True)
class NoMemory(Memory):
    """What is not sent is lost."""

    elementwise = True
    keeps_nothing = True

    def init(self, like: Tensor, dense: bool) -> State:
        """Return nothing."""
        return {}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return the gradient, [L, n]."""
        return grad

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Keep nothing."""
