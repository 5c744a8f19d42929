"""Stops a run between two steps when the user or the cluster asks for it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(RuntimeError):
    """Ctrl-C, SIGTERM or SIGHUP stopped the run, with all saved; a second Ctrl-C ends at once."""

    exit_code = 130


class StopRequest:
    """Knows whether somebody asked to stop."""

    made = False


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note Ctrl-C, SIGTERM and SIGHUP instead of dying; the second Ctrl-C ends at once.

    SIGHUP comes when a terminal is closed; where it is ignored, as under nohup, it stays so.

    Signals can only be caught in the main thread; elsewhere nothing changes.
    """
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        if request.made and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.made = True

    with _handled(note):
        yield request


@contextmanager
def raised_signals(what: str) -> Iterator[None]:
    """Raise `Interrupted` at Ctrl-C, SIGTERM and SIGHUP, in whatever is done; `what` names it.

    SIGHUP stays ignored where it is. Outside the main thread nothing changes.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"{what} was stopped by {signal.Signals(number).name}")

    with _handled(leave):
        yield


@contextmanager
def postponed_signals() -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP wait until the end of the block."""
    noted: list[int] = []
    with _handled(lambda number, frame: noted.append(number)):
        yield
    for number in noted:
        signal.raise_signal(number)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give the signals that ask to stop to a handler, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
