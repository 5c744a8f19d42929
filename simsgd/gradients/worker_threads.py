"""Runs an engine in several threads at once on the CPU, each on a replica of the model.

The models share their parameters. One thread inside each operation is all that they use: a small
operation gains nothing from several, while workers know nothing of each other.
"""

import copy
import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import nn

from ..compiled_loops import once_a_process
from ..settings import SettingError, require
from .attributes import state_of_attributes
from .contract import GradientEngine

Engine = TypeVar("Engine", bound=GradientEngine)
Result = TypeVar("Result")

_MEASURED = range(2, 5)  # so many threads; more were not measured
_BUSY = 0.8  # the share of their time in which threads have something to compute
_single_threaded: ContextVar[bool] = ContextVar("_single_threaded", default=False)


def measured() -> bool:
    """Return whether torch has as many threads as it was measured that these can be of use for."""
    return torch.get_num_threads() in _MEASURED


def helpful(workers: int) -> bool:
    """Return whether as many threads as torch has are of use for so many workers."""
    threads = torch.get_num_threads()
    busy = workers / (math.ceil(workers / threads) * threads)
    return measured() and busy >= _BUSY


@contextmanager
def single_threaded() -> Iterator[None]:
    """Within it, all is computed in the caller's thread, where one can watch its tensors.

    Replicas work one after the other, and the workers of one pass are taken together, however many.
    """
    before = _single_threaded.set(True)
    try:
        yield
    finally:
        _single_threaded.reset(before)


def is_single_threaded() -> bool:
    """Return whether this is within `single_threaded()`."""
    return _single_threaded.get()


class ThreadReplicas(Generic[Engine]):
    """As many engines as torch has threads (OMP_NUM_THREADS), `make(model)` each, at work at once.

    With `own_parameters` each model has Parameter objects of its own, which share their numbers.
    The copies are made anew once an attribute, a hook or a method of the model is another one, or
    another parameter is frozen or lies elsewhere.
    Raises `SettingError` for a model that cannot be copied.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Callable[[nn.Module], Engine],
        own_parameters: bool = False,
    ) -> None:
        self.model, self._threads = model, torch.get_num_threads()
        self._make = partial(_copied, model, make, own_parameters)
        self._free: queue.SimpleQueue[Engine] = queue.SimpleQueue()
        self._begin()

    def _begin(self) -> None:
        """Copy the model as it is now."""
        self._state = self._state_now()
        self.engines = [self._make() for _ in range(self._threads)]
        while not self._free.empty():
            self._free.get()
        for engine in self.engines:
            self._free.put(engine)

    def _state_now(self) -> object:
        places = tuple((p.requires_grad, p.data_ptr()) for p in self.model.parameters())
        return places, state_of_attributes(self.model)

    def map(self, task: Callable[..., Result], *items: Iterable[object]) -> list[Result]:
        """Return `task(engine, *own)` for each of the items, in their order."""
        if self._state != self._state_now():
            self._begin()
        one = partial(self._one, task)
        if is_single_threaded():
            return list(map(one, *items))
        return list(_single_threads(self._threads).map(one, *items))

    def _one(self, task: Callable[..., Result], *own: object) -> Result:
        engine = self._free.get()
        try:
            return task(engine, *own)
        finally:
            self._free.put(engine)


@once_a_process
def _single_threads(threads: int) -> ThreadPoolExecutor:
    """Return a pool whose threads all run, each with one thread inside torch's operations.

    A thread's first look at its number of threads sets it to what any thread last asked for. So
    all look before they ask for one; a late look would undo that, and operations split between
    threads add in another order.
    """
    pool = ThreadPoolExecutor(threads)
    all_run = threading.Barrier(threads)

    def begin() -> None:
        torch.get_num_threads()
        all_run.wait()
        torch.set_num_threads(1)

    for started in [pool.submit(begin) for _ in range(threads)]:
        started.result()
    return pool


def _copied(model: nn.Module, make: Callable[[nn.Module], Engine], own_parameters: bool) -> Engine:
    return make(_replica(model, own_parameters))


def _replica(model: nn.Module, own_parameters: bool) -> nn.Module:
    """Return a copy of a model with the same parameters, or others in the same memory."""
    for name, module in model.named_modules():
        rule = f"would use the model's own weights in the forward that was set on {name or 'it'}"
        patched = own_parameters and "forward" in module.__dict__
        require(not patched, "engine", "threads", rule, "use engine loop")
    shared = {
        id(p): nn.Parameter(p.detach(), p.requires_grad) if own_parameters else p
        for p in model.parameters()
    }
    try:
        return copy.deepcopy(model, dict(shared))
    except Exception as wrong:  # whatever a module keeps that has no copy
        told = f"needs a copy of the model for each thread, and it has none ({wrong})"
        raise SettingError("engine", "threads", told, "use engine loop") from wrong
