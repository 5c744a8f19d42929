"""The contract of an exchange, a conversation between workers.

Letters: W workers, L hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Segment
from ...communication.transport import Channel
from ...keyed_random import RandomKey
from ...settings import require
from ..compression_error import squared_norms
from ..compressors import Compressor, StepInfo
from ..memories import Memory, NoMemory


@dataclass(frozen=True)
class ExchangeContext:
    """How one segment is spoken of in one step."""

    compressor: Compressor
    state: State  # the compressor's
    key: RandomKey  # at this step and segment
    segment: Segment
    channel: Channel
    memory: Memory = field(default_factory=NoMemory)  # of what is not sent
    remembered: State = field(default_factory=dict)  # the memory's
    step: int = 0  # steps done before this one
    epoch: int = 0
    samples: Tensor | None = None  # that each worker holds, [W]; None: as many as the others
    gradient: Tensor | None = None  # of this step alone, [L, n]
    squares: Tensor | None = None  # of the samples' gradients, [L, n]

    @property
    def info(self) -> StepInfo:
        """What the compressor may know of this step."""
        return StepInfo(
            self.key, self.step, self.epoch, self.segment.name, self.gradient, self.squares
        )

    @property
    def workers(self) -> int:
        """How many workers there are, W."""
        return self.channel.ledger.workers

    @property
    def server(self) -> RandomKey:
        """The draws of a server, at this step and segment."""
        return replace(self.key, workers=self.key.workers[:1]).shared()

    def compressed(self, said: Tensor) -> Message:
        """Return the message for a part of a model, [L, n], said to neighbors.

        Raises `SettingError` for a compressor that asks all workers something first.
        """
        require(not self.compressor.needs_global_max, "compressor", None, _ASKS, _ALONE)
        step = self.info
        if step.gradient is None:
            step = replace(step, gradient=said)  # of a model all is new
        return self.compressor.compress(said, self.state, step)


@dataclass(frozen=True)
class Exchanged:
    """What a parameter exchange said of a segment, for the measures."""

    said: Tensor  # [L, n]
    norms: Tensor  # its squared norms when it was said, [L]
    message: Message
    left: State  # holds the residual, if one stays behind

    @classmethod
    def of(cls, said: Tensor, message: Message, left: State | None = None) -> "Exchanged":
        """Return what was said, before anything of it was taken away."""
        return cls(said, squared_norms(said), message, left or {})


_ASKS = "asks for the largest number of all workers, which are not heard here"
_ALONE = "use scales of each worker's own, or algorithm allreduce"


class Algorithm(ABC):
    """Who hears what of what is said. A frozen dataclass of settings; its state lives apart."""

    parameters_per_worker: ClassVar[bool]  # workers hold models of their own, [L, *shape]
    has_own_memory: ClassVar[bool] = False  # keeps what is not sent by itself: no memory beside it

    @property
    def between_processes(self) -> bool:
        """Whether workers may live in several processes."""
        return True

    def check(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that workers cannot speak by here."""
        require(not compressor.needs_global_max, "compressor", None, _ASKS, _ALONE)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the state before the first step of a segment whose parameters are `x` [L, n]."""
        return {}

    def drawn(self, seed: int, workers: int, step: int, epoch: int) -> Tensor | None:
        """Return which workers train in a step, [W] bool on the CPU; None: all.

        `step` is how many were done before it.
        """
        return None


class GradientAlgorithm(Algorithm):
    """Workers say their gradients, before the optimizer's step."""

    @abstractmethod
    def gradients(
        self, said: Tensor, speech: ExchangeContext, own: State | None = None
    ) -> tuple[Message, Tensor]:
        """Exchange a segment; `said` [L, n] is what workers want to say, `own` is from `init`.

        Returns the message as it arrived, for the memory, and what is heard: [n] where parameters
        are shared, else [L, n].
        """


class ParameterAlgorithm(Algorithm):
    """Workers step along their own gradients, and then speak of their models."""

    parameters_per_worker = True
    resets_optimizer: ClassVar[bool] = False  # the optimizers begin anew after each exchange
    only_unbiased: ClassVar[str] = ""  # the paper whose theory wants an unbiased compressor

    def check(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that wants more than models have."""
        super().check(compressor)
        rule = "looks at the gradients of single samples, and workers speak of models here"
        alone = not compressor.needs_squares
        require(alone, "compressor", None, rule, "use algorithm allreduce, or another compressor")

    @abstractmethod
    def parameters(self, x: Tensor, own: State, speech: ExchangeContext) -> Exchanged | None:
        """Exchange a segment's parameters `x` [L, n], which are changed in place.

        `own` is the state from `init`. Returns None where nothing was said.
        """
