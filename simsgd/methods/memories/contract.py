"""The contract of a memory: what of a gradient is kept until it is sent.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import abstractmethod
from dataclasses import Field, replace
from typing import ClassVar

from torch import Tensor

from ...communication.messages import Message, State
from ...registry import contract
from ...settings import SettingError
from ..method_class import MethodClass


@contract("memory")
class Memory(metaclass=MethodClass):
    """Settings of one method, as a frozen dataclass; its state lives apart.

    A memory that declares the fields `momentum` and `nesterov` owns the momentum: the optimizer
    then has none. None stands for the regime's, which `with_momentum` fills in.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]  # every memory is a dataclass
    keeps_nothing: ClassVar[bool] = False  # has no state between steps
    needs_mean_of_all: ClassVar[bool] = False  # `on_aggregate` needs the mean over all workers
    elementwise: ClassVar[bool] = False  # no element looks at another: segments may go together
    needs_exact_state: ClassVar[bool] = False  # its state must not be rounded between steps

    @property
    def owns_momentum(self) -> bool:
        """Whether it has the momentum, so that the optimizer must not."""
        return hasattr(self, "momentum")

    @property
    def inertia(self) -> tuple[float, bool]:
        """Momentum, and whether it is Nesterov's, that it has in the optimizer's place, else 0."""
        return getattr(self, "momentum", None) or 0.0, bool(getattr(self, "nesterov", False))

    @property
    def keeps_lr(self) -> bool:
        """Whether it collects lr times the gradient: see `at_rate`; the optimizer's lr is 1."""
        return False

    def with_momentum(self, momentum: float, nesterov: bool) -> "Memory":
        """Return the memory with the regime's momentum where its own settings name none."""
        usual = {"momentum": momentum, "nesterov": nesterov}
        missing = {name: value for name, value in usual.items() if getattr(self, name, 0) is None}
        return replace(self, **missing) if missing else self

    def with_lr(self) -> "Memory":
        """Return the memory that collects lr times the gradient.

        Raises `SettingError` for one that cannot.
        """
        rule = "needs memory residual, which collects lr times the gradient"
        raise SettingError("lr_in_memory", None, rule, "set memory=residual")

    def at_rate(self, lr: float) -> "Memory":
        """Return the memory while the learning rate is `lr`."""
        return self

    @abstractmethod
    def init(self, like: Tensor, dense: bool) -> State:
        """Return the state before the first step for a segment like `like`, [L, n].

        What goes `dense` keeps no residual.
        """

    @abstractmethod
    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return the compensated gradient of each worker, [L, n], for its gradient, [L, n].

        The result may be the state itself: read it, do not write it.
        """

    @abstractmethod
    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Store what stays behind when `message` was sent for `compensated` [L, n]."""

    def on_aggregate(self, aggregated: Tensor, state: State) -> Tensor:
        """Return what the optimizer gets, [n], of the `aggregated` messages of all workers, [n]."""
        return aggregated
