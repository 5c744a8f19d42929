"""Checks what an algorithm of a user's own says of who trains, when, and with what weight.

Letters: W workers.
"""

import torch
from torch import Tensor

from ..methods.algorithms import Algorithm
from ..recipe import Recipe
from ..registry import is_ours, is_own
from ..settings import SettingError

_CHOICES = {
    "inner_state": ("keep", "average", "reset"),
    "client_buffers": ("local", "average", "server"),
}


def check_schedule(
    algorithm: Algorithm, recipe: Recipe, samples: Tensor | None, step: int, epoch: int
) -> None:
    """Raise `SettingError` for what a user's own algorithm says of a step.

    `step` is how many were done before it, `samples` [W] those that each worker holds.
    """
    if not is_own(algorithm):
        return
    seed, workers, kind = recipe.seed, recipe.workers, type(algorithm)
    if not step:
        _check_choices(algorithm)
        _check_delays(algorithm, seed, workers)
    if not is_ours(kind.period):
        steps: object = algorithm.period(epoch)
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            _refuse(algorithm, f"has a period of {steps!r}", "give whole steps, at least 1")
    if not is_ours(kind.participants):
        trains = algorithm.participants(seed, workers, step, epoch)
        _check_flags(algorithm, "participants", trains, (workers,))
        if trains is not None and not bool(trains.any()):
            _refuse(algorithm, f"has no participants in step {step}", "let at least one train")
    if not is_ours(kind.links):
        links = algorithm.links(seed, workers, step)
        _check_flags(algorithm, "links", links, (workers, workers))
    if not is_ours(kind.weights):
        weights = algorithm.weights(seed, workers, step, epoch, samples)
        _check_weights(algorithm, weights, workers)


def _check_choices(algorithm: Algorithm) -> None:
    for name, choices in _CHOICES.items():
        value = getattr(algorithm, name)
        if value not in choices:
            rule = f"has {name} {value!r}, which is not known"
            _refuse(algorithm, rule, f"write {', '.join(choices[:-1])} or {choices[-1]}")
    if algorithm.client_buffers == "average" and type(algorithm).weights is Algorithm.weights:
        rule = "averages buffers, and gives no weights for it"
        _refuse(algorithm, rule, "define weights(seed, workers, step, epoch, samples)")


def _check_delays(algorithm: Algorithm, seed: int, workers: int) -> None:
    delays: object = algorithm.delays(seed, torch.arange(workers))
    if delays is None:
        return
    _check_tensor(algorithm, "delays", delays, (workers,))
    assert isinstance(delays, Tensor)
    if delays.dtype != torch.int64:
        _refuse(algorithm, f"has delays in {delays.dtype}", "make them int64")
    most = int(delays.max())
    if most > algorithm.longest_delay or int(delays.min()) < 0:
        rule = f"has delays outside [0, {algorithm.longest_delay}], its longest_delay"
        _refuse(algorithm, rule, f"let longest_delay be {max(most, 0)}")


def _check_flags(
    algorithm: Algorithm, call: str, flags: Tensor | None, shape: tuple[int, ...]
) -> None:
    if flags is None:
        return
    _check_tensor(algorithm, call, flags, shape)
    if flags.dtype != torch.bool:
        _refuse(algorithm, f"has {call} in {flags.dtype}", "say true or false of each worker")
    if call == "participants" and flags.device.type != "cpu":
        _refuse(algorithm, f"has {call} on {flags.device}", "leave them on the CPU")


def _check_weights(algorithm: Algorithm, weights: Tensor | None, workers: int) -> None:
    if weights is None:
        return
    _check_tensor(algorithm, "weights", weights, (workers,))
    total = float(weights.double().sum())
    if not abs(total - 1) < 1e-4:
        rule = f"has weights that add up to {total:.4g} in place of 1"
        _refuse(algorithm, rule, "return weights / weights.sum()")


def _check_tensor(algorithm: Algorithm, call: str, value: object, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        _refuse(algorithm, f"has {call} that give {got} in place of {list(shape)}", "")


def _refuse(algorithm: Algorithm, rule: str, fix: str) -> None:
    raise SettingError("algorithm", type(algorithm).__name__, rule, fix)
