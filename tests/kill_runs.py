"""Runs that are killed, and what is compared of them with runs that were not."""

import os
import signal
from pathlib import Path

import torch

import simsgd
from simsgd.results import atomic_files, tables
from simsgd.training import folder_files
from tests.fork_cli import process

TINY = {
    "model": "mlp", "model_config": "hidden=8", "dataset": "digits", "workers": 4,
    "batch_size": 90, "epochs": 2, "device": "cpu", "engine": "vmap", "quiet": True,
}  # fmt: skip


def differences(folder, other):
    """Return what differs between two runs, but for the time they took."""
    different = []
    for table in ("epochs.csv", "steps.csv", "transfers.csv", "segments.csv"):
        one, two = (text_of(f / table) for f in (folder, other))
        different += [table] if one != two else []
    for name in ("last.pt", "best.pt"):
        one, two = (numbers(torch.load(f / name, weights_only=True)) for f in (folder, other))
        different += [f"{name} {key}" for key in one.keys() | two.keys() if one[key] != two[key]]
    return different


def text_of(path):
    """Return the text of a table without the columns of seconds, digit by digit.

    A run in which nothing was sent has no segments.csv.
    """
    if not path.exists():
        return None
    lines = [line.split(",") for line in path.read_text().splitlines()]
    timed = {place for place, name in enumerate(lines[0]) if "seconds" in name}
    return [[cell for place, cell in enumerate(line) if place not in timed] for line in lines]


def numbers(state, name=""):
    """Return a checkpoint's numbers by their path, tensors as bytes."""
    if isinstance(state, torch.Tensor):
        return {name: (state.dtype, state.shape, state.numpy().tobytes())}
    if isinstance(state, dict | list):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        kept = [(k, v) for k, v in pairs if k not in ("config", "seconds")]
        return {n: v for k, value in kept for n, v in numbers(value, f"{name}/{k}").items()}
    return {name: repr(state)}  # nan is like nan


AUGMENTED = """
from torch import nn
regime = {0: {"lr": 0.05, "momentum": 0.5}, 1: {"lr": 0.01}}
epochs = 2
class Shift:
    draws = 1
    def __call__(self, images, uniform):
        return images + uniform.view(-1, 1, 1, 1) - 0.5
input_transform = {"train": Shift()}
def model(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(),
                         nn.Dropout(0.2), nn.Linear(8, num_classes))
"""
METHODS = {
    "dgc": {"prune": 0.9},
    "qsgd": {"compressor": "qsgd:15", "momentum": 0.5, "lr": 0.01},
    "choco": {"algorithm": "choco", "compressor": "topk:0.1", "lr": 0.01, "momentum": 0.0},
    "local": {"algorithm": "local", "local_steps": 3},
}


class Child:
    """Trains in a process of its own, which is forked from one that has torch already."""

    def __init__(self, settings, moment=None):
        self._start(train_until, settings, moment)

    def _start(self, target, *arguments):
        self.process, self.pipe, other_end = process(target, *arguments)
        self.process.start()
        other_end.close()

    def exit_code(self):
        """Wait for its end; return minus the signal's number where it was killed."""
        self.process.join()
        return self.process.exitcode

    def received(self):
        """Return what it sent when it was done: the names of all moments to be killed at."""
        content = self.pipe.recv()
        assert self.exit_code() == 0
        return content


class Moments:
    """The moments at which a process may be killed, in their order."""

    def __init__(self, fatal):
        self.names = []  # of those that came
        self.fatal = fatal  # number of the moment to be killed at; None for no moment

    def is_fatal(self, name):
        """Count a moment, and return whether the process is to be killed at it."""
        self.names.append(name)
        return len(self.names) - 1 == self.fatal


def train_until(settings, moment, pipe):
    """Train, and be killed at a moment by its number; send the names of all moments."""
    torch.set_num_threads(1)
    moments = Moments(moment)
    for owner, name in ((os, "fsync"), (os, "replace"), (os, "link"), (simsgd.Simulator, "step")):
        _kill_before_and_after(moments, owner, name)
    _kill_in_a_checkpoint(moments)
    _kill_in_a_row(moments)
    simsgd.train(**settings)
    pipe.send(moments.names)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_before_and_after(moments, owner, name):
    """Make two moments of a function: one before it does anything, one when it is done."""
    real = getattr(owner, name)

    def replacement(*arguments, **named):
        if moments.is_fatal(f"before {name}"):
            _kill()
        result = real(*arguments, **named)
        if moments.is_fatal(f"after {name}"):
            _kill()
        return result

    setattr(owner, name, replacement)


def _kill_in_a_checkpoint(moments):
    """Make a moment of each write of a checkpoint's archive, when half of it is in the file."""
    write = atomic_files._DeferredErrors.write

    def replacement(self, content):
        if moments.is_fatal("write"):
            write(self, bytes(content)[: len(content) // 2])
            self._file.flush()
            _kill()
        return write(self, content)

    atomic_files._DeferredErrors.write = replacement


def _kill_in_a_row(moments):
    """Make a moment of each text appended to a table or the log, when half of it is there."""
    append = atomic_files.append

    def replacement(path, text):
        if moments.is_fatal("append"):
            append(path, text[: len(text) // 2])
            _kill()
        append(path, text)

    tables.append = folder_files.append = replacement


class LongChild(Child):
    """Trains many steps, and sends what the process holds after each so many."""

    def __init__(self, settings, every):
        self._start(train_measured, settings, every)


def train_measured(settings, every, pipe):
    """Train, and send the bytes in memory after each `every` steps."""
    torch.set_num_threads(1)
    step, resident = simsgd.Simulator.step, []

    def measured(self, *arguments):
        record = step(self, *arguments)
        if self.steps % every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
        return record

    simsgd.Simulator.step = measured
    simsgd.train(**settings)
    pipe.send(resident)
