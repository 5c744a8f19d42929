"""The contract of an algorithm: who exchanges what with whom, and when.

Letters: W workers, L hosted here, n elements of one segment.
"""

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol, Self

from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Layout, Segment
from ...communication.transport import Channel
from ...keyed_random import RandomKey
from ...recipe import Recipe
from ...registry import contract, settings_of
from ...settings import SettingError
from ..compression_error import norms_of
from ..compressors import Compressor, StepInfo
from ..memories import Memory, NoMemory
from ..method_class import MethodClass


@dataclass(frozen=True)
class ExchangeContext:
    """What an algorithm is handed to exchange one segment in one step."""

    compressor: Compressor
    compressor_state: State
    step: StepInfo
    segment: Segment
    channel: Channel
    memory: Memory = field(default_factory=NoMemory)  # of what is not sent
    memory_state: State = field(default_factory=dict)
    samples: Tensor | None = None  # that each worker holds, [W]; None: as many as the others
    lr: float | Tensor = 1.0  # of the workers' optimizers, [n] where parameters differ

    @property
    def workers(self) -> int:
        """How many workers there are, W."""
        return self.channel.ledger.workers

    @property
    def server_key(self) -> RandomKey:
        """The random numbers of a server, at this step and segment."""
        key = self.step.key
        return dataclasses.replace(key, workers=key.workers[:1]).shared()

    def compress(self, x: Tensor) -> Message:
        """Return the message for what each worker has to send, `x` [L, n].

        Of a model all is new, so that a compressor that wants the gradient gets `x` itself.
        Raises `SettingError` for a compressor that needs the largest number of all workers first.
        """
        _check_alone(self.compressor)
        step = self.step
        if self.compressor.needs_gradient and step.gradient is None:
            step = dataclasses.replace(step, gradient=x)
        return self.compressor.compress(x, self.compressor_state, step)


@dataclass(frozen=True)
class Exchanged:
    """What a parameter algorithm sent of a segment, for the measures."""

    compensated: Tensor  # what workers had to send, [L, n]
    norms: Tensor  # its norms before anything was taken away, [L], or [S, L] of S segments
    message: Message
    left: State  # holds the residual, if one stays behind

    @classmethod
    def of(cls, compensated: Tensor, message: Message, left: State | None = None) -> "Exchanged":
        """Return what was sent, before anything of it is taken away."""
        return cls(compensated, norms_of(compensated, message), message, left or {})


class Round(NamedTuple):
    """The steps from one exchange to the next."""

    number: int  # rounds before it
    begin: int  # steps before it
    steps: int  # in it

    @property
    def end(self) -> int:
        """Steps done when it ends."""
        return self.begin + self.steps


class OptimizerSteps(Protocol):
    """What an algorithm may ask of the optimizer."""

    def step(self, gradients: dict[str, Tensor]) -> None:
        """Move the parameters along {name: [*shape]}."""

    def step_frozen_after(self, steps: int, gradients: dict[str, Tensor]) -> None:
        """Take a step of Adam, or after so many of a parameter along its momentum instead.

        `gradients` {name: [*shape]} are momenta m then, x = x - lr m / (sqrt(v) + eps), and v is
        what it was after `steps` steps.
        """

    def step_per_worker(self, gradients: dict[str, Tensor]) -> None:
        """Take a step of lr / W along each row of {name: [W, *shape]}, one after the other."""


@contract("algorithm")
class Algorithm(metaclass=MethodClass):
    """Who exchanges what with whom. A frozen dataclass of settings; its state lives apart.

    A setting is a field with a default; it is given in the algorithm's spec, `local:local_steps=4`,
    and those of the algorithms here by an option of the same name too.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]  # as of every dataclass
    parameters_per_worker: ClassVar[bool] = False  # workers hold models of their own, [L, *shape]
    has_own_memory: ClassVar[bool] = False  # keeps what is not sent by itself: no memory beside it
    computes_mean: ClassVar[bool] = True  # of what all workers sent, as memory ef21 needs
    between_processes: ClassVar[bool] = True  # workers may live in several processes
    takes_groups: ClassVar[bool] = False  # no element looks at another: segments may go together
    takes_dense_groups: ClassVar[bool] = False  # at least those that are sent whole
    inner_state: str = "keep"  # or average, or reset: what optimizers keep, at an exchange
    client_buffers: str = "local"  # or average, or server: what becomes of buffers in an exchange
    clients: int | None = None  # of whom workers act for some in each round; None: for themselves
    local_epochs: int | None = None  # through a client's samples in a round; None: so many steps
    passing: ClassVar[frozenset[str]] = frozenset()  # names of its state that end with a round
    sized_by_shapes: ClassVar[bool] = True  # what is sent in each step follows from the settings
    workers_send_alike: ClassVar[bool] = False  # each as many bytes, all to all
    only_unbiased: ClassVar[str] = ""  # the paper whose theory wants an unbiased compressor

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for settings of a step that do not go with the algorithm."""

    def check_optimizer(self, name: str) -> None:
        """Raise `SettingError` for an optimizer of a regime that does not go with the algorithm."""

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that does not go with the algorithm."""
        _check_alone(compressor)

    def for_layout(self, layout: Layout, workers: int) -> Self:
        """Return the algorithm for W `workers` and a model that is cut into segments so."""
        return self

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the state before the first step of a segment whose parameters are `x` [L, n]."""
        return {}

    def skip_to(self, step: int, state: State) -> None:
        """Bring a state from `init` to where it counts `step` steps done."""

    def participants(self, seed: int, workers: int, step: int, epoch: int) -> Tensor | None:
        """Return which workers train in a step, [W] bool on the CPU; None: all.

        `step` is how many were done before it.
        """
        return None

    def links(self, seed: int, workers: int, step: int) -> Tensor | None:
        """Return whether row receives from column in an exchange, [W, W] bool; None: all from all.

        `step` is how many were done before it.
        """
        return None

    def clients_of(self, seed: int, workers: int, step: int, epoch: int) -> Tensor | None:
        """Return which clients the workers act for in a step, ids [W]; None: for themselves."""
        return None

    def steps_of(self, client: int, current: Round) -> int:
        """Return how many steps a client takes in a round, at most all."""
        return current.steps

    def for_clients(self, workers: int, samples: Tensor | None, batch: int | None) -> Self:
        """Return the algorithm for W `workers`, or clients, that hold so many `samples` [N] each.

        `batch` are those of a worker in a step; None: not known, as `samples` too.
        """
        return self

    def weights(
        self, seed: int, workers: int, step: int, epoch: int, samples: Tensor | None
    ) -> Tensor | None:
        """Return the weight of each worker in the mean that a step leads to, [W]; None: equal ones.

        `samples` [W] are how many each holds, None: as many as the others.
        """
        return None

    @property
    def longest_delay(self) -> int:
        """The most steps that a model may be old when a worker reads it."""
        return 0

    def delays(self, seed: int, workers: Tensor) -> Tensor | None:
        """Return how many steps old the model is that each of `workers`, ids [L], reads, [L] int64.

        None: nobody's is older than the step.
        """
        return None

    def period(self, epoch: int) -> int:
        """Return the steps from one exchange to the next in an epoch: the most, if they differ."""
        return 1

    def repeats_after(self, epoch: int) -> int:
        """Return the steps after which a worker sends the same sizes again."""
        return self.period(epoch)

    def round_of(self, seed: int, workers: int, step: int, epoch: int) -> Round:
        """Return the round of a step, which is how many were done before it."""
        steps = self.period(epoch)
        return Round(step // steps, step - step % steps, steps)

    def apply(self, optimizer: OptimizerSteps, aggregated: dict[str, Tensor]) -> None:
        """Move the parameters along what came of the exchange, by one step of the optimizer."""
        optimizer.step(aggregated)

    def describe(self, workers: int) -> str:
        """Return the settings in words, and what follows from them for W `workers`."""
        values = {f.name: getattr(self, f.name) for f in settings_of(type(self))}
        given = {name: value for name, value in values.items() if value is not None}
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())


class GradientAlgorithm(Algorithm):
    """Workers exchange their gradients, before the optimizer's step."""

    def to_send(self, gradient: Tensor, state: State) -> Tensor:
        """Return what the workers have to send, [L, n], for their compensated `gradient` [L, n]."""
        return gradient

    @abstractmethod
    def gradients(
        self, compensated: Tensor, context: ExchangeContext, state: State | None = None
    ) -> tuple[Message, Tensor]:
        """Exchange a segment; `compensated` [L, n] is what workers have to send.

        `state` is the one from `init`. Returns the message as it arrived, for the memory, and the
        aggregated gradient: [n] where parameters are shared, else [L, n].
        """


class ParameterAlgorithm(Algorithm):
    """Workers step along their own gradients, and then exchange their models."""

    parameters_per_worker = True

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for settings that only an exchange of gradients has."""
        if recipe.weight_decay_at == "local":
            rule = f"has no effect with algorithm {recipe.algorithm}"
            fix = "each worker's own optimizer has its weight decay"
            raise SettingError("weight_decay_at", "local", rule, fix)
        if self.has_own_memory:
            check_without_memory(recipe)

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that wants more than models have."""
        super().check_compressor(compressor)
        if compressor.needs_squares:
            rule = "looks at the gradients of single samples, and workers exchange models here"
            fix = "use algorithm allreduce, or another compressor"
            raise SettingError("compressor", None, rule, fix)

    def local_gradient(
        self, gradient: Tensor, x: Tensor, state: State, trains: Tensor | None
    ) -> Tensor:
        """Return what the workers' optimizers step along, [L, n], for their `gradient` [L, n].

        `x` [L, n] are the parameters of a segment, which the step is going to change, `state` is
        the one from `init`, and `trains` [L] bool tells who takes the step; None: all.
        """
        return gradient

    def begin_round(self, x: Tensor, state: State) -> None:
        """Prepare the parameters `x` [L, n] and the state for clients that workers act for now."""

    @abstractmethod
    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Exchange a segment's parameters `x` [L, n], which are changed in place.

        `state` is the one from `init`. Returns None where nothing was sent.
        """


def _check_alone(compressor: Compressor) -> None:
    if compressor.needs_global_max:
        rule = "needs the largest number of all workers, which this algorithm does not exchange"
        fix = "use scales of each worker's own, or algorithm allreduce"
        raise SettingError("compressor", None, rule, fix)
    if compressor.needs_mean:
        rule = "chooses by the mean of all workers' gradients, which this algorithm does not form"
        raise SettingError("compressor", None, rule, "use algorithm allreduce, or another one")


def check_without_memory(recipe: Recipe) -> None:
    """Raise `SettingError` for a memory beside an algorithm that has its own."""
    name = recipe.algorithm
    if recipe.memory not in (None, "none"):
        rule = f"must be none with algorithm {name}, which takes no memory"
        raise SettingError("memory", recipe.memory, rule)
    if recipe.flush_every:
        rule = f"has no effect with algorithm {name}"
        raise SettingError("flush_every", recipe.flush_every, rule)
