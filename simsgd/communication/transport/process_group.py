"""Joins a group of processes, and exchanges Python objects in it."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as Parallel

from ...settings import require

_Thing = TypeVar("_Thing")


class RankLost(RuntimeError):
    """Another process of the group died, or did not respond in time."""

    exit_code = 4
    exits_at_once = True  # what is left of a broken group may abort when it is torn down


def is_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def restarts() -> tuple[int, int]:
    """Return how often torchrun has restarted this group, and how often it will at most."""
    names = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
    done, most = (launched_number(name, "0") for name in names)
    return done, most


def launched_number(name: str, usual: str = "") -> int:
    """Return a number that torchrun gives its processes in the environment.

    Raises `SettingError` where it is none, as where torchrun did not start this process.
    """
    text, rule = os.environ.get(name, usual), "must be a whole number, as torchrun sets it"
    fix = "start all processes with torchrun, or unset TORCHELASTIC_RUN_ID"
    require(text.isdecimal(), name, text, rule, fix)
    return int(text)


def is_initialized() -> bool:
    """Return whether this process belongs to a group."""
    return dist.is_available() and dist.is_initialized()


class Bucket(Protocol):
    """Some gradients of DistributedDataParallel's, which are reduced together."""

    def parameters(self) -> list[Tensor]:
        """Return the parameters, in the order of their gradients."""

    def gradients(self) -> list[Tensor]:
        """Return views of the buffer, one for each parameter."""

    def is_last(self) -> bool:
        """Return whether no other comes in this backward pass."""


def is_rank_zero() -> bool:
    """Return whether this process is rank 0, or there are no others."""
    if is_initialized():
        return dist.get_rank() == 0
    return not is_torchrun() or os.environ["RANK"] == "0"


def launched_group(backend: str, seconds: float) -> AbstractContextManager[None]:
    """Be one of the processes that torchrun started; see `group`.

    A restarted group meets in the same store, where the keys of the dead one must not be read:
    each attempt has a prefix of its own.
    """
    timeout = timedelta(seconds=seconds)
    with collective_errors():
        meeting = dist.rendezvous("env://", timeout=timeout)  # type: ignore[attr-defined]
        store, rank, ranks = next(iter(meeting))
    own = dist.PrefixStore(f"attempt {restarts()[0]}", store)  # type: ignore[attr-defined]
    return group(backend, seconds, store=own, rank=rank, world_size=ranks)


@contextmanager
def group(backend: str, seconds: float, **where: Any) -> Iterator[None]:
    """Be one of a group of processes; `where` as in `torch.distributed.init_process_group`.

    `backend` is gloo or nccl. Raises `RankLost` after waiting `seconds` for another process.
    """
    with collective_errors():
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds), **where)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def collective_errors() -> Iterator[None]:
    """Turn the errors of collectives into `RankLost`."""
    try:
        yield
    except RuntimeError as wrong:
        reason = str(wrong).strip().splitlines()[0]
        raise RankLost(f"another process no longer responds ({reason})") from wrong


def broadcast_object(thing: _Thing, group: Any = None) -> _Thing:
    """Return rank 0's thing, which must be picklable, on every rank, or those of a group with 0."""
    box = [thing]
    if is_initialized():
        with collective_errors():
            dist.broadcast_object_list(box, src=0, group=group)
    return box[0]


def all_gather_object(thing: _Thing) -> list[_Thing]:
    """Return the things of all ranks, in order."""
    if not is_initialized():
        return [thing]
    box = [thing] * dist.get_world_size()
    with collective_errors():
        dist.all_gather_object(box, thing)
    return box


def odd_rank(every: Sequence[Mapping[str, object]]) -> tuple[str, int] | None:
    """Return the first name under which a rank has something else than rank 0, and that rank."""
    first = every[0]
    names = ((name, rank) for name in first for rank in range(len(every)))
    return next((odd for odd in names if every[odd[1]][odd[0]] != first[odd[0]]), None)


def register_hook(parallel: Parallel, reduce_bucket: Callable[[Bucket], None]) -> None:
    """Call `reduce_bucket(bucket)`, which writes into each bucket's buffer, for an all-reduce."""

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        reduce_bucket(bucket)
        buffer = bucket.buffer()
        devices = [buffer.device] if buffer.is_cuda else []
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        done.set_result(buffer)
        return done

    parallel.register_comm_hook(None, hook)


def counted(parallel: Parallel) -> list[int]:
    """Return the list to which the bytes of every bucket that it reduces will be added.

    PyTorch's own hook reduces them, as without a hook.
    """
    sent: list[int] = []

    def hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    parallel.register_comm_hook(dist.group.WORLD, hook)
    return sent


def collective_device() -> torch.device:
    """Return where the group's collectives want their tensors."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
