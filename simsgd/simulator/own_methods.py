"""Checks what methods of a user's own return, at the first exchange of each segment.

Letters: L workers hosted here, n elements of one segment.
"""

import torch
from torch import Tensor

from ..communication.messages import Message, State
from ..methods.algorithms import Algorithm, ExchangeContext, Exchanged
from ..methods.compressors import Compressor, MultiRound, StepInfo
from ..methods.memories import Memory
from ..methods.own_state import check_rows
from ..registry import is_own
from ..settings import SettingError


def check_init(kind: str, method: object, state: State, like: Tensor) -> None:
    """Raise `SettingError` unless the state of a user's own method is tensors, each with rows."""
    if not is_own(method):
        return
    if getattr(method, "resets_optimizer", False):
        rule, fix = "sets resets_optimizer, which is not known", 'write inner_state = "reset"'
        raise SettingError(kind, type(method).__name__, rule, fix)
    check_rows(kind, method, state, like)


def check_compensated(
    memory: Memory, compensated: Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """Raise `SettingError` unless a user's own memory returns one row a worker, [L, n]."""
    if is_own(memory) and not _has_shape(compensated, shape):
        _refuse("memory", memory, "compensate", compensated, shape)
    if is_own(memory):
        _require_dtype("memory", memory, "compensate", compensated, dtype)


def check_message(compressor: Compressor, x: Tensor, step: StepInfo, state: State) -> None:
    """Raise `SettingError` unless a user's own compressor gives a message for `x` [L, n].

    It is tried on a copy of `x` with a copy of its state, and with a quantizer that follows it.
    """
    own = next((part for part in compressor.parts if is_own(part)), None)
    if own is None or isinstance(compressor, MultiRound) or compressor.needs_global_max:
        return
    name = type(own).__name__
    copied, kept = x.clone(), {name: value.clone() for name, value in state.items()}
    message = compressor.compress(copied, kept, step)
    if not isinstance(message, Message):
        rule = f"has a compress that returns no message but a {type(message).__name__}"
        raise SettingError("compressor", name, rule, "return one of simsgd.methods, as Sparse")
    if not bool((copied == x).logical_or(x.isnan()).all()):
        rule = "has a compress that changes its input, which is what the memory keeps"
        raise SettingError("compressor", name, rule, "change a clone of it")
    if fault := message.fault():
        rule, _, fix = fault.partition("; ")
        raise SettingError("compressor", name, f"gives a message that {rule}", fix)
    try:
        dense = message.to_dense()
    except (IndexError, RuntimeError) as wrong:
        rule = f"gives a message that cannot be read for {x.shape[1]} entries"
        raise SettingError("compressor", name, rule) from wrong
    if not _has_shape(dense, (x.shape[0], x.shape[1])):
        _refuse("compressor", own, "compress", dense, (x.shape[0], x.shape[1]))
    _require_dtype("compressor", own, "compress", dense, x.dtype)


def check_aggregated(
    algorithm: Algorithm, result: object, context: ExchangeContext, workers: int
) -> None:
    """Raise `SettingError` unless a user's own algorithm returns (message, aggregated)."""
    if not is_own(algorithm):
        return
    name, n = type(algorithm).__name__, context.segment.n
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Message):
        rule = "has a gradients that returns no pair of a message and a tensor"
        raise SettingError("algorithm", name, rule, "return message, aggregated")
    shapes = ((workers, n), (len(context.step.key.workers), n))
    wanted = shapes if algorithm.parameters_per_worker else ((n,),)
    if not any(_has_shape(result[1], shape) for shape in (*wanted, (workers, n))):
        _refuse("algorithm", algorithm, "gradients", result[1], wanted[0])


def check_exchanged(algorithm: Algorithm, sent: object, x: Tensor) -> None:
    """Raise `SettingError` unless a user's own algorithm returns what it sent of `x`, or None."""
    if is_own(algorithm) and not (sent is None or isinstance(sent, Exchanged)):
        kind = type(sent).__name__
        rule = f"has a parameters that returns no Exchanged but a {kind}"
        raise SettingError("algorithm", type(algorithm).__name__, rule, "return Exchanged.of(...)")


def _has_shape(value: object, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == shape


def _require_dtype(
    kind: str, method: object, call: str, value: Tensor, wanted: torch.dtype
) -> None:
    if value.dtype != wanted:
        rule = f"has a {call} that gives {value.dtype} in place of {wanted}"
        raise SettingError(kind, type(method).__name__, rule)


def _refuse(kind: str, method: object, call: str, value: object, wanted: tuple[int, ...]) -> None:
    shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    rule = f"has a {call} that gives {shape} in place of {list(wanted)}"
    raise SettingError(kind, type(method).__name__, rule)
