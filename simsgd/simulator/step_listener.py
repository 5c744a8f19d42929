"""What may listen to the steps of a simulator."""

from typing import Protocol, runtime_checkable

from ..gradients.trees import Tree
from ..settings import require
from .record import StepRecord


@runtime_checkable
class StepListener(Protocol):
    """Called around each step."""

    def begin_step(self, last: bool) -> None:
        """A step begins, told to be the `last` or not; if it raises, `end_step` is not called."""

    def end_step(self, record: StepRecord, x: Tree, y: Tree) -> None:
        """A step on the batch `x` [B, ...] and `y` [B, ...] is done."""


def checked_listener(listener: StepListener | None) -> StepListener | None:
    """Return a listener. Raises `SettingError` for one without `begin_step` and `end_step`."""
    holds = listener is None or isinstance(listener, StepListener)
    require(holds, "listener", listener, "must have methods begin_step and end_step")
    return listener


def refuse_while_recorded(listener: StepListener | None) -> None:
    """Raise `SettingError` where steps are listened to, which would be told in another order."""
    fix = "load it before the recording begins, or resume that"
    require(listener is None, "simulator", None, "is being recorded: its steps cannot jump", fix)
