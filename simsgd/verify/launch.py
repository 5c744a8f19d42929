"""Starts processes on this machine that form a group over the loopback interface."""

import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from ..communication.transport import RankLost, all_gather_object, group
from ..settings import SettingError, require
from ..simulator.room import memory_of
from ..training.signals import postponed_signals
from ..units import in_units
from .main_module import without_main
from .shaped_links import INTERFACE, enter, shaped_links

Put = Callable[[object], None]
_NEEDED = ("pandas", "torch._dynamo")  # which any training imports in the end
_IF_IMPORTED = ("sklearn.datasets", "torchvision.datasets")
_LEAST = 64 << 20  # bytes that a rank takes beside what it shares with the process it forked from
_PATIENCE = 600.0  # seconds that one rank waits for another, which may be simulating meanwhile


def launch(
    work: Callable[..., None], ranks: int, *arguments: object, link: str | None = None
) -> Iterator[Any]:
    """Run `work(put, *arguments)` in each of `ranks` new processes, and yield all that they put.

    `work` and its arguments must be picklable. Where each rank can have a GPU of its own they
    use nccl, else gloo. With a `link`, a rate such as 100Mbit, each is behind a link of its own,
    and they use gloo. Where the system can, they are forked from one that has imported what `work`
    needs, once for all launches. Raises `RankLost` if one dies, and a `SettingError` that one
    raises, or for more ranks than memory can hold.
    """
    require_room(ranks)
    logging.getLogger(ProcessContext.__module__).setLevel(logging.ERROR)  # an exception tells it
    start = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(start)
    heavy = [name for name in _IF_IMPORTED if name in sys.modules]
    context.set_forkserver_preload([work.__module__, *_NEEDED, *heavy])
    if start == "forkserver":
        _begin_forkserver()
    outputs = context.Queue()
    refused: SettingError | None = None
    links = nullcontext(list[int]()) if link is None else shaped_links(link, ranks)
    with links as namespaces, tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder).as_posix()}/meeting"
        asked = (ranks, meeting, dict(os.environ), namespaces, outputs, work, arguments)
        begun, left = list[Any](), list[str]()
        try:
            with without_main(), postponed_signals():
                started = start_processes(_enter, asked, ranks, join=False, start_method=start)
                begun, left = started.processes, started.error_files
            ended = False
            while not ended:
                ended = _joined(started, refused)
                for thing in _drained(outputs):
                    if isinstance(thing, _Refused):
                        refused = SettingError(*thing.parts)
                    else:
                        yield thing
        finally:
            for process in begun:
                if process.is_alive():
                    process.terminate()
            for file in left:  # in which torch has what a process raised
                Path(file).unlink(missing_ok=True)
    if refused is not None:
        raise refused


def _begin_forkserver() -> None:
    """Start the process to fork from, if none runs; Ctrl-C in a terminal is for this one alone."""
    multiprocessing.resource_tracker.ensure_running()  # which would let signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as it inherits
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def require_room(ranks: int) -> None:
    """Raise `SettingError` for more processes than memory can hold."""
    there = memory_of(torch.device("cpu"))
    if there is not None:
        needed = f"needs at least {in_units(ranks * _LEAST)} of memory for a process each"
        rule = f"{needed}, and there are {in_units(there)}"
        require(ranks * _LEAST <= there, "workers", ranks, rule, f"at most {there // _LEAST} fit")


class _Refused:
    """A `SettingError` of another process, as it is sent."""

    def __init__(self, error: SettingError) -> None:
        self.parts = (error.name, _plain(error.value), error.rule, error.fix)


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _enter(
    rank: int,
    ranks: int,
    meeting: str,
    environment: dict[str, str],
    namespaces: list[int],
    outputs: "Queue[object]",
    work: Callable[..., None],
    arguments: tuple[object, ...],
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()  # it is of when the process to fork from was started
    os.environ.update(environment)
    own_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    if own_gpu:
        torch.cuda.set_device(rank)
    torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
    if namespaces:
        enter(namespaces[rank])
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    backend = "nccl" if own_gpu and not namespaces else "gloo"
    try:
        with group(backend, _PATIENCE, init_method=meeting, rank=rank, world_size=ranks):
            work(outputs.put, *arguments)
            _leave(outputs)
    except SettingError as error:
        outputs.put(_Refused(error))


def _end_with_parent() -> None:
    """End this process once the one that launched it is gone, however that ended."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    multiprocessing.connection.wait([launcher.sentinel])
    os._exit(1)


def _leave(outputs: "Queue[object]") -> None:
    """End this process once all have done their work and all that was put is on its way.

    Nothing is torn down: what one rank closes may abort another that is still closing its own.
    """
    outputs.close()
    outputs.join_thread()
    all_gather_object(None)
    os._exit(0)


def _loopback() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def _joined(started: ProcessContext, refused: SettingError | None) -> bool:
    """Return whether all processes have ended; wait for it a little."""
    try:
        return bool(started.join(timeout=0.05))
    except ProcessExitedException as error:
        raise refused or RankLost(f"rank {error.error_index} died ({error})") from error
    except ProcessRaisedException as error:
        reason = str(error).strip().splitlines()[-1]
        raise refused or RankLost(f"rank {error.error_index} failed ({reason})") from error


def _drained(outputs: "Queue[object]") -> Iterator[object]:
    while not outputs.empty():
        try:
            yield outputs.get(timeout=1)
        except queue.Empty:
            return
