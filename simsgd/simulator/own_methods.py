"""Checks what methods of a user's own return when a segment is exchanged.

What is silent is looked for here at every exchange, and in a trial of the compressor at the first
two; what raises an error in simsgd is told in one line.

Letters: L workers hosted here, n elements of one segment.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from ..communication.ledger import Ledger
from ..communication.messages import Message, State
from ..communication.transport import InProcess, Transport
from ..gradients.generators import put_back
from ..keyed_random import RandomKey, derived
from ..methods.algorithms import (
    Algorithm,
    AllReduce,
    ExchangeContext,
    Exchanged,
    ParameterAlgorithm,
)
from ..methods.compressors import Compressor, MultiRound, StepInfo
from ..methods.compressors.trial import differ, others_altered, refuse_change, try_compressor
from ..methods.memories import Memory
from ..methods.method_class import MethodClass
from ..methods.own_errors import explained, refuse_shape, require_dtype
from ..methods.own_state import check_kept, check_rows, share_memory
from ..registry import is_own
from ..settings import SettingError

_TRIALS = 2  # exchanges of a segment: in the second a method may act on what it kept


def check_init(kind: str, method: object, state: State, like: Tensor) -> None:
    """Raise `SettingError` unless the state of a user's own method is tensors, each with rows."""
    if not is_own(method):
        return
    if getattr(method, "resets_optimizer", False):
        rule, fix = "sets resets_optimizer, which is not known", 'write inner_state = "reset"'
        raise SettingError(kind, type(method).__name__, rule, fix)
    check_rows(kind, method, state, like)


def fitted(compressor: Compressor, shape: Sequence[int]) -> Compressor:
    """Return the compressor for a segment of a shape.

    Raises `SettingError` for one of a user's own that gives none.
    """
    made: object = compressor.for_shape(shape)
    if not isinstance(made, Compressor):
        rule = f"has a for_shape that returns no compressor but a {type(made).__name__}"
        raise SettingError("compressor", type(compressor).__name__, rule, "return self, or another")
    return made


class Before(NamedTuple):
    """What an algorithm was handed, before it changed anything."""

    x: Tensor  # [L, n]
    state: State


class OwnMethods:
    """The methods of a user's own that take part in the exchange of one segment."""

    def __init__(self, algorithm: Algorithm, memory: Memory, compressor: Compressor) -> None:
        self.algorithm, self.memory, self.compressor = algorithm, memory, compressor
        inside = [own for own in vars(algorithm).values() if isinstance(type(own), MethodClass)]
        every = [("algorithm", algorithm), ("compressor", compressor), ("memory", memory)]
        every += [("compressor", part) for part in compressor.parts if part is not compressor]
        every += [(_kind_of(own), own) for own in inside]
        self.found = [(kind, method) for kind, method in every if is_own(method)]
        self.exchanges = 0  # that were looked at

    @classmethod
    def of(
        cls, algorithm: Algorithm, memory: Memory, compressor: Compressor
    ) -> "OwnMethods | None":
        """Return those of a user's own among the methods of a segment; None: there are none."""
        own = cls(algorithm, memory, compressor)
        return own if own.found else None

    @contextmanager
    def looked_at(self, key: RandomKey, transport: Transport) -> Iterator[None]:
        """Tell in one line what simsgd cannot use of them; see `own_errors`.

        In one process `key` seeds the generators of torch, Python and numpy, which are put back;
        elsewhere the exchanges of segments take turns, and `without_draws` is for all of them.
        """
        with ExitStack() as entered:
            entered.enter_context(explained(self.found))
            if isinstance(transport, InProcess):
                generators = entered.enter_context(put_back(key.workers.device))
                generators.seed(derived(key.seed, *key.place))
            yield

    def check_compensated(self, compensated: object, gradient: Tensor) -> None:
        """Raise `SettingError` unless memory and algorithm give one row a worker, as `gradient`."""
        if is_own(self.memory):
            _require_like("memory", self.memory, "compensate", compensated, gradient)
        elif is_own(self.algorithm):
            _require_like("algorithm", self.algorithm, "to_send", compensated, gradient)

    def try_compressor(
        self, compressor: Compressor, x: Tensor, step: StepInfo, state: State
    ) -> None:
        """Raise `SettingError` unless the compressor gives right messages for `x` [L, n].

        It is tried on copies, at the first exchanges.
        """
        if self.exchanges < _TRIALS:
            try_compressor(compressor, x, step, state)

    def try_memory(self, x: Tensor, state: State) -> None:
        """Raise `SettingError` unless the memory gives tensors like what it gets of `x` [L, n].

        It is tried on copies, at the first exchanges, where an algorithm calls it by itself.
        """
        if not is_own(self.memory) or self.exchanges >= _TRIALS:
            return
        kept = {name: value.clone() for name, value in state.items()}
        with put_back(x.device):
            compensated = self.memory.compensate(x.clone(), kept)
            _require_like("memory", self.memory, "compensate", compensated, x)
            mean = x.mean(0)
            self.check_aggregate(self.memory.on_aggregate(mean.clone(), kept), mean)

    def check_gradients(
        self, result: object, compensated: Tensor, context: ExchangeContext
    ) -> None:
        """Raise `SettingError` unless the exchange gives (message, aggregated) for [L, n]."""
        name, n = type(self.algorithm).__name__, context.segment.n
        paired = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Message)
        if not paired and is_own(self.algorithm):
            rule = "has a gradients that returns no pair of a message and a tensor"
            raise SettingError("algorithm", name, rule, "return message, aggregated")
        assert isinstance(result, tuple)
        self._check_fault(result[0], compensated)
        if not is_own(self.algorithm):
            self._check_mean(result[1], compensated)
            return
        wanted: tuple[int, ...] = (n,)
        if self.algorithm.parameters_per_worker:
            wanted = (len(compensated), n)
        elif type(self.algorithm).apply is not Algorithm.apply:
            wanted = (context.workers, n) if result[1].dim() == 2 else wanted
        if not _has_shape(result[1], wanted):
            refuse_shape("algorithm", self.algorithm, "gradients", result[1], wanted)
        require_dtype("algorithm", self.algorithm, "gradients", result[1], compensated.dtype)

    def check_unchanged(self, x: Tensor, version: int) -> None:
        """Raise `SettingError` if a compressor of a user's own has changed what it was handed.

        `version` is torch's count of the changes of `x` [L, n] before.
        """
        if type(self.algorithm) is not AllReduce or x._version == version:
            return
        for kind, method in self.found:
            if kind == "compressor":
                refuse_change(method)

    def check_aggregate(self, aggregated: Tensor, mean: Tensor) -> None:
        """Raise `SettingError` unless the memory gives the optimizer a tensor like `mean`."""
        if is_own(self.memory):
            _require_like("memory", self.memory, "on_aggregate", aggregated, mean)

    def check_parameters(self, sent: object, x: Tensor) -> None:
        """Raise `SettingError` unless the algorithm returns what it sent of `x` [L, n], or None."""
        if isinstance(sent, Exchanged):
            self._check_fault(sent.message, x)
        elif sent is not None and is_own(self.algorithm):
            name, kind = type(self.algorithm).__name__, type(sent).__name__
            rule = f"has a parameters that returns no Exchanged but a {kind}"
            raise SettingError("algorithm", name, rule, "return Exchanged.of(...)")

    def before_exchange(self, x: Tensor, state: State) -> "Before | None":
        """Return copies of what a user's own algorithm gets, `x` [L, n] too, where it is tried."""
        if not is_own(self.algorithm) or self.exchanges >= _TRIALS or len(x) == 1:
            return None
        return Before(x.clone(), {name: value.clone() for name, value in state.items()})

    def check_unsent(self, before: "Before | None", x: Tensor, context: ExchangeContext) -> None:
        """Raise `SettingError` if models that were sent to nobody depend on those of others.

        `x` [L, n] is what the algorithm, which returned None, has made of them.
        """
        if before is None or not isinstance(context.channel.transport, InProcess):
            return
        assert isinstance(self.algorithm, ParameterAlgorithm)
        silent = replace(context.channel, ledger=Ledger(context.workers), observers=())
        alone = replace(context, channel=silent)
        for row in (0, len(x) - 1):
            altered = others_altered(before.x, row)
            kept = {name: value.clone() for name, value in before.state.items()}
            with put_back(x.device):
                sent = self.algorithm.parameters(altered, alone, kept)
            if sent is None and bool(altered.isfinite().all()) and differ(altered[row], x[row]):
                rule = "mixes the models of workers and returns None, as if nothing were sent"
                fix = "send through context.channel, and return Exchanged.of(...)"
                raise SettingError("algorithm", type(self.algorithm).__name__, rule, fix)

    def check_states(self, algorithm: State, compressor: State, memory: State) -> None:
        """Raise `SettingError` unless all that the methods keep are tensors; ends an exchange."""
        self.exchanges += 1
        kept = {"algorithm": algorithm, "compressor": compressor, "memory": memory}
        for kind, method in self.found:
            check_kept(kind, method, kept.get(kind, algorithm))

    def _check_fault(self, message: Message, x: Tensor) -> None:
        """Raise `SettingError` for a message with a fault, where to look does not make it wait."""
        if self.exchanges >= _TRIALS and x.device.type != "cpu":
            return
        for kind, method in self.found:
            if kind in ("compressor", "algorithm") and (fault := message.fault()):
                rule, _, fix = fault.partition("; ")
                raise SettingError(kind, type(method).__name__, f"sends a message that {rule}", fix)

    def _check_mean(self, mean: object, compensated: Tensor) -> None:
        """Raise `SettingError` for a mean of another shape, as of a message of other entries."""
        wanted = (compensated.shape[1],)
        per_worker = tuple(compensated.shape)
        if any(_has_shape(mean, shape) for shape in (wanted, per_worker)):
            return
        for kind, method in self.found:
            if kind == "compressor":
                call = "rounds" if isinstance(method, MultiRound) else "compress"
                refuse_shape(kind, method, call, mean, wanted)


@contextmanager
def without_draws(
    methods: Iterable[OwnMethods | None], transport: Transport, device: torch.device
) -> Iterator[None]:
    """Raise `SettingError` for methods of a user's own that draw from a global generator.

    Between processes, each of which would draw other numbers; the generators are put back.
    """
    own = next((each for each in methods if each is not None), None)
    if own is None or isinstance(transport, InProcess):
        yield
        return
    with put_back(device) as generators:
        before = generators.state()
        yield
        if generators.moved_from(before):
            kind, method = own.found[0]
            rule = "draws from a global generator, and each process would draw other numbers"
            raise SettingError(kind, type(method).__name__, rule, "draw from step.key")


def unshared(own: Tensor, *kept: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor that may be changed: a copy of one that lies in what a method keeps."""
    others = [value for state in kept for value in state.values()]
    return own.clone() if any(share_memory(own, other) for other in others) else own


def check_local_gradient(
    algorithm: Algorithm, given: object, gradient: Tensor, state: State
) -> Tensor:
    """Return what a user's own algorithm makes of a `gradient` [L, n], to be changed.

    Raises `SettingError` if it is no tensor like it.
    """
    _require_like("algorithm", algorithm, "local_gradient", given, gradient)
    assert isinstance(given, Tensor)
    return unshared(given, state)


def _require_like(kind: str, method: object, call: str, value: object, like: Tensor) -> None:
    if not _has_shape(value, tuple(like.shape)):
        refuse_shape(kind, method, call, value, tuple(like.shape))
    require_dtype(kind, method, call, value, like.dtype)


def _has_shape(value: object, shape: tuple[int, ...]) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and tuple(value.shape) == shape


def _kind_of(method: object) -> str:
    """Return the kind of a method inside an algorithm, as aggregation."""
    of = {"Aggregation": "aggregation", "OuterOptimizer": "outer_optimizer"}
    return next(
        (of[base.__name__] for base in type(method).__mro__ if base.__name__ in of), "compressor"
    )
