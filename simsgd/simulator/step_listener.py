"""What may listen to the steps of a simulator."""

from typing import Protocol

from ..gradients.trees import Tree
from .record import StepRecord


class StepListener(Protocol):
    """Called around each step."""

    def begin_step(self) -> None:
        """A step begins; should it raise, `end_step` is not called."""

    def end_step(self, record: StepRecord, x: Tree, y: Tree) -> None:
        """A step on the batch `x` [B, ...] and `y` [B, ...] is done."""
