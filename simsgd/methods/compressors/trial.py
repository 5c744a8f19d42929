"""Tries a compressor of a user's own on copies of what it is going to get.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...gradients.generators import put_back
from ...registry import is_own
from ...settings import SettingError
from ..own_errors import refuse_shape, require_dtype
from .contract import Aggregated, Compressor, MultiRound, StepInfo, run_rounds

_LARGE = 1 << 24  # numbers from which on the rows of two workers are compared, not of all
_TOLERANCE = 1e-3  # of a row's norm: what its numbers may differ by, whatever the others are


def try_compressor(compressor: Compressor, x: Tensor, step: StepInfo, state: State) -> None:
    """Raise `SettingError` unless a user's own compressor gives a message for `x` [L, n].

    It is tried on a copy of `x` with a copy of its state, and with a quantizer that follows it; a
    row must not depend on other rows. Generators stay as they are.
    """
    own = next((part for part in compressor.parts if is_own(part)), None)
    if own is None:
        return
    if compressor.needs_gradient and step.gradient is None:
        step = replace(step, gradient=x)
    if compressor.needs_global_max:
        step = replace(step, global_max=_largest(compressor, own, x))
    if isinstance(compressor, MultiRound):
        with put_back(x.device):
            _try_rounds(compressor, x, step, state)
        return
    message, changed = _compressed(compressor, x, step, state)
    _check_message(own, message, x, changed)
    assert isinstance(message, Message)
    if compressor.needs_mean or len(x) == 1:
        return
    usual = message.to_dense().clone()
    if x.numel() > _LARGE:
        x, step, state = _of_two(x, step, state)
        usual = _dense(compressor, x, step, state)
    _check_rows(compressor, own, x, step, state, usual)


def _compressed(
    compressor: Compressor, x: Tensor, step: StepInfo, state: State
) -> tuple[object, bool]:
    """Return the message for a copy of `x` [L, n], and whether the copy was changed."""
    copied, kept = _copies(x, state)
    with put_back(x.device):
        message = compressor.compress(copied, kept, step)
    return message, _is_changed(copied, x)


def _copies(x: Tensor, state: State) -> tuple[Tensor, State]:
    return x.clone(), {name: value.clone() for name, value in state.items()}


def _is_changed(copied: Tensor, x: Tensor) -> bool:
    return not bool((copied == x).logical_or(x.isnan()).all())


def refuse_change(method: object) -> NoReturn:
    """Raise `SettingError` for a compressor that changes what it was handed."""
    rule = "has a compress that changes its input, which is what the memory keeps"
    raise SettingError("compressor", type(method).__name__, rule, "change a clone of it")


def _check_message(own: Compressor, message: object, x: Tensor, changed: bool) -> None:
    name, shape = type(own).__name__, (x.shape[0], x.shape[1])
    if not isinstance(message, Message):
        rule = f"has a compress that returns no message but a {type(message).__name__}"
        raise SettingError("compressor", name, rule, "return one of simsgd.methods, as Sparse")
    if changed:
        refuse_change(own)
    dense = _read(own, message, x.shape[1])
    if tuple(dense.shape) != shape:
        refuse_shape("compressor", own, "compress", dense, shape)
    require_dtype("compressor", own, "compress", dense, x.dtype)
    if is_own(message):
        _check_counts(own, message, len(x))


def _check_counts(own: Compressor, message: Message, rows: int) -> None:
    """Raise `SettingError` unless a message of a user's own class counts by row, [L] int64."""
    for call in ("payload_bytes", "entries"):
        count: object = getattr(message, call)()
        right = isinstance(count, Tensor) and tuple(count.shape) == (rows,)
        if not right or not isinstance(count, Tensor) or count.dtype != torch.int64:
            got = [*count.shape] if isinstance(count, Tensor) else type(count).__name__
            dtype = f" in {count.dtype}" if isinstance(count, Tensor) else ""
            rule = f"gives a {type(message).__name__} whose {call} are {got}{dtype}"
            fix = f"return the number of each row, [{rows}] int64"
            raise SettingError("compressor", type(own).__name__, rule, fix)


def _read(own: Compressor, message: Message, n: int) -> Tensor:
    """Return what a message stands for, [L, n]. Raises `SettingError` if it has a fault."""
    name = type(own).__name__
    if fault := message.fault():
        rule, _, fix = fault.partition("; ")
        raise SettingError("compressor", name, f"gives a message that {rule}", fix)
    try:
        return message.to_dense()
    except (IndexError, RuntimeError) as wrong:
        rule = f"gives a message that cannot be read for {n} entries"
        raise SettingError("compressor", name, rule) from wrong


def _largest(compressor: Compressor, own: Compressor, x: Tensor) -> Tensor:
    """Return the largest number of the workers here, [1, 1]."""
    local = compressor.local_max(x.clone())
    if not isinstance(local, Tensor) or tuple(local.shape) != (len(x), 1):
        refuse_shape("compressor", own, "local_max", local, (len(x), 1))
    return local.amax().reshape(1, 1)


def _try_rounds(compressor: MultiRound, x: Tensor, step: StepInfo, state: State) -> None:
    """Raise `SettingError` unless the rounds give messages, and at last a message and a mean."""
    name, n = type(compressor).__name__, x.shape[1]
    copied, kept = _copies(x, state)
    rounds = compressor.rounds(copied, kept, step)
    if not hasattr(rounds, "send"):
        rule = f"has a rounds that is no generator but gives a {type(rounds).__name__}"
        raise SettingError("compressor", name, rule, "yield each message")

    def carry(message: object) -> Aggregated:
        if not isinstance(message, Message):
            rule = f"has a rounds that yields no message but a {type(message).__name__}"
            raise SettingError("compressor", name, rule, "yield one of simsgd.methods, as Dense")
        return message, _read(compressor, message, n).mean(0, keepdim=True)

    result: object = run_rounds(rounds, carry)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Message):
        rule = "has a rounds that returns no pair of a message and an aggregate"
        raise SettingError("compressor", name, rule, "return message, mean")
    message, mean = result
    _check_message(compressor, message, x, _is_changed(copied, x))
    if not isinstance(mean, Tensor) or tuple(mean.shape) != (1, n):
        refuse_shape("compressor", compressor, "rounds", mean, (1, n))
    require_dtype("compressor", compressor, "rounds", mean, x.dtype)


def _check_rows(
    compressor: Compressor,
    own: Compressor,
    x: Tensor,
    step: StepInfo,
    state: State,
    usual: Tensor,
) -> None:
    """Raise `SettingError` if what a worker sends changes when the others have other numbers.

    `usual` [L, n] is what they send of `x` [L, n].
    """
    for row in dict.fromkeys((0, len(x) - 1)):
        others = others_altered(x, row)
        if not bool(others.isfinite().all()):
            return
        gradient = None if step.gradient is None else others_altered(step.gradient, row)
        own_row = _dense(compressor, others, replace(step, gradient=gradient), state)[row]
        if not differ(own_row, usual[row]):
            continue
        if differ(_dense(compressor, x, step, state)[row], usual[row]):
            return  # it is not the same twice, whatever the others are
        rule = "gives a worker another message where other workers have other numbers"
        fix = "compute each row of [L, n] from that row alone, as x.amax(1, keepdim=True) does"
        raise SettingError("compressor", type(own).__name__, rule, fix)


def _of_two(x: Tensor, step: StepInfo, state: State) -> tuple[Tensor, StepInfo, State]:
    """Return what the first two workers have."""
    workers = len(x)
    kept = {name: own[:2] if len(own) == workers else own for name, own in state.items()}
    key = replace(step.key, workers=step.key.workers[:2])
    gradient = None if step.gradient is None else step.gradient[:2]
    squares = None if step.squares is None else step.squares[:2]
    return x[:2], replace(step, key=key, gradient=gradient, squares=squares), kept


def _dense(compressor: Compressor, x: Tensor, step: StepInfo, state: State) -> Tensor:
    message, _ = _compressed(compressor, x, step, state)
    assert isinstance(message, Message)
    return message.to_dense().clone()


def others_altered(x: Tensor, row: int) -> Tensor:
    """Return `x` [L, n] with other numbers, larger ones, in all rows but one."""
    altered = -16 * x.flip(1) - x.abs().amax()
    altered[row] = x[row]
    return altered


def differ(a: Tensor, b: Tensor) -> bool:
    """Return whether two rows differ by more than rounding."""
    scale = torch.stack([a.norm(), b.norm()]).amax()
    return bool((a - b).norm() > _TOLERANCE * scale)
