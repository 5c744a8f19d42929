"""Keeps two processes from writing one run's folder.

A process that writes a run holds a lock on the file .lock in its folder. The system takes the lock
away when the process ends, however it ends, so that none is left by a kill or a power failure. On
NFS, Linux passes it to the server, and it keeps processes on other machines out too; there it goes
with the client's lease. Where a file system has no locks, as Lustre without the mount option flock,
nothing is kept apart.
"""

import contextlib
import os
import shutil
import socket
import weakref
from dataclasses import dataclass
from pathlib import Path

from ..results.atomic_files import NotWritten
from ..settings import SettingError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class FolderInUse(SettingError):
    """The folder of a run is being written, by another process or by this one."""


_NAME = ".lock"
_MOST = 200  # bytes of a holder that are read


_held: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


@dataclass(eq=False)
class FolderLock:
    """The lock on a folder, held until `release`."""

    folder: Path
    number: int  # of the open file

    @classmethod
    def of(cls, folder: Path, setting: str, value: object) -> "FolderLock":
        """Lock a folder, or raise `FolderInUse` if this or another process holds the lock.

        Raises `NotWritten` if the folder cannot be written.
        """
        path = folder / _NAME
        while True:
            try:
                number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as wrong:
                raise NotWritten(path, wrong) from wrong
            if not _locked(number):
                holder = os.pread(number, _MOST, 0).decode(errors="replace").strip()
                os.close(number)
                raise _in_use(holder, setting, value)
            if _is_same(number, path):
                break
            os.close(number)  # the holder before took the file away while this one waited to open
        os.ftruncate(number, 0)
        os.pwrite(number, _this_process().encode(), 0)
        lock = cls(folder, number)
        _held.add(lock)
        return lock

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Give the lock back and take its file away; a second call does nothing."""
        if self.number < 0:
            return
        if _is_same(self.number, self.folder / _NAME):
            with contextlib.suppress(OSError):
                (self.folder / _NAME).unlink()
        os.close(self.number)
        self.number = -1


def _let_go() -> None:
    """Leave all locks to the process that this one was forked from, as a loader's workers are."""
    for lock in _held:
        if lock.number >= 0:
            os.close(lock.number)
            lock.number = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def empty(folder: Path) -> None:
    """Remove all that is in a folder but its lock."""
    for path in folder.iterdir():
        if path.name == _NAME:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _in_use(holder: str, setting: str, value: object) -> FolderInUse:
    """Return the error of a lock that the process `holder` has, which may be this one."""
    if holder == _this_process():
        rule = "is being written by this process already, in another recording or run"
        return FolderInUse(setting, value, rule, "end that one first")
    by = f", {holder}" if holder.isprintable() and holder else ""
    rule = f"is being written by another process{by}"
    return FolderInUse(setting, value, rule, "wait for its end, or stop it")


def _locked(number: int) -> bool:
    """Lock an open file if no other process has; True too where there are no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_same(number: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False
