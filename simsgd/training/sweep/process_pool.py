"""Checks a sweep's combinations and makes its runs, in processes of this machine.

A process does one thing after the other. One that dies takes one run with it; the next run begins
in a new one.
"""

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...results.atomic_files import NotWritten, replace
from ...settings import SettingError, one_line
from ..command_line import train_command
from ..folder_lock import FolderInUse
from ..signals import StopRequest
from .precheck import refusal

_PAUSE = 0.02  # seconds between two looks at a check
_ORPHANED = 0.5  # seconds in which a system has found that a process has lost its parent
_CODE = "from simsgd.training.sweep.process_pool import serve; serve()"


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    code: int  # its exit code; below 0 the signal that killed it
    reason: str  # of a run that failed, in one line
    in_use: bool = False  # whether another process was writing its folder


class Processes:
    """Up to `jobs` processes, which share the threads: OMP_NUM_THREADS, or the cores."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.folder = tempfile.TemporaryDirectory(prefix="simsgd-")
        self.processes: list[Process] = []
        self.started = 0

    def start(self, settings: Mapping[str, object]) -> "Process":
        """Begin a run with these settings of `Config`, and return the process that makes it."""
        return self._begun("run", settings)

    def check(
        self, settings: Mapping[str, object], request: StopRequest, on_cpu: bool = False
    ) -> SettingError | None:
        """Return what is wrong with a combination; None for nothing, and once it is to stop.

        A process makes the experiment, so that nothing of it stays in this one.
        """
        process = self._begun("check on the CPU" if on_cpu else "check", settings)
        while (told := process.told()) is None and not request.made:
            time.sleep(_PAUSE)
        wrong = (told or {}).get("refused")
        return SettingError(*wrong) if wrong else None

    def _begun(self, work: str, settings: Mapping[str, object]) -> "Process":
        idle = [process for process in self.processes if process.idle]
        if not idle:
            given = os.environ.get("OMP_NUM_THREADS", "")
            threads = int(given) if given.isdecimal() else _cores()
            idle = [Process(max(1, threads // self.jobs))]
            self.processes += idle
        self.started += 1
        idle[0].begin(work, settings, Path(self.folder.name, f"{self.started}.json"))
        return idle[0]

    def close(self) -> None:
        """Let the processes end when their runs have."""
        for process in self.processes:
            process.close()
        self.folder.cleanup()


class Process:
    """A process that makes one run at a time, or checks a combination."""

    def __init__(self, threads: int) -> None:
        self.answer: Path | None = None  # where it will say what came of it
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE],
            env={**child_environment(), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def idle(self) -> bool:
        """Whether it could begin a run."""
        return self.answer is None and self.process.poll() is None

    def begin(self, work: str, settings: Mapping[str, object], answer: Path) -> None:
        """Begin a run or a check; the file `answer` will say what came of it."""
        self.answer = answer
        line = json.dumps([work, dict(settings), str(answer)], default=str)
        with contextlib.suppress(BrokenPipeError):  # it died, as `told` will find
            assert self.process.stdin is not None
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def ended(self) -> Ending | None:
        """Return how the run ended, or None while it goes on."""
        told = self.told()
        return None if told is None else Ending(*told["ended"])

    def told(self) -> dict[str, Any] | None:
        """Return its answer, or that it died; None while it works."""
        assert self.answer is not None
        code = self.process.poll()  # before the look: what it wrote last is there then
        told: dict[str, Any]
        if self.answer.exists():
            told = json.loads(self.answer.read_text("utf-8"))
        elif code is not None:
            told = {"ended": dataclasses.astuple(Ending(code or 1, last_line("", code)))}
        else:
            return None
        self.answer = None
        return told

    def stop(self) -> None:
        """Ask the run to save and end."""
        self.process.terminate()

    def wait(self) -> None:
        """Wait until the process has ended."""
        self.close()

    def close(self) -> None:
        """Let the process end when its run has."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """Do what stdin asks for, a line each, until it ends.

    It ends when the process at its other end does, however that is; a run saves and stops then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a run notes it; between runs nobody needs to
    asked, works = queue.SimpleQueue[str | None](), threading.Event()
    threading.Thread(target=_read, args=(asked, works, os.getppid()), daemon=True).start()
    while (line := asked.get()) is not None:
        work, settings, answer = json.loads(line)
        told: dict[str, object]
        if work == "run":
            sys.argv = ["simsgd", *train_command(settings)]  # as config.json names its command
            told = {"ended": dataclasses.astuple(make_run(settings))}
        else:
            error = refusal(settings, on_cpu=work.endswith("CPU"))
            told = {"refused": error and [error.name, error.value, error.rule, error.fix]}
        works.clear()  # before the answer, which the next line may follow at once
        with contextlib.suppress(NotWritten):  # nobody waits for it any more
            _answer(Path(answer), told)


def _read(asked: "queue.SimpleQueue[str | None]", works: threading.Event, parent: int) -> None:
    """Pass on the lines of stdin; when it ends while a run `works`, ask that to stop.

    Where that is because the parent is gone, the folder of its answers goes too.
    """
    for line in sys.stdin:
        works.set()
        asked.put(line)
    asked.put(None)
    if not works.is_set():
        return
    until = time.monotonic() + _ORPHANED
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.01)
    if os.getppid() != parent:
        shutil.rmtree(Path(json.loads(line)[2]).parent, ignore_errors=True)
    signal.raise_signal(signal.SIGTERM)


def make_run(settings: Mapping[str, object]) -> Ending:
    """Make a run in this process and return how it ended."""
    from ..trainer import train  # here: the process that starts others needs no torch

    try:
        train(**settings)
    except Exception as error:
        known = hasattr(error, "exit_code")
        reason = one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"
        return Ending(getattr(error, "exit_code", 1), reason, isinstance(error, FolderInUse))
    return Ending(0, "")


def child_environment() -> dict[str, str]:
    """Return the environment in which another Python finds this very simsgd."""
    here, before = str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, before]))}


def last_line(written: str, code: int) -> str:
    """Return the last line that a run wrote on stderr, or what its exit code means."""
    lines = [line for line in written.splitlines() if line.strip()]
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    last = lines[-1] if lines else f"ended with code {code}"
    return last.removeprefix("simsgd: ").strip()


def _answer(path: Path, told: Mapping[str, object]) -> None:
    text = json.dumps(told, default=str).encode()
    replace(path, lambda file: file.write(text))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
