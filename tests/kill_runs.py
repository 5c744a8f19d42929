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


def apart(folder, other):
    """Return what differs between two runs, but for the time they took."""
    different = []
    for table in ("epochs.csv", "steps.csv", "transfers.csv"):
        one, two = (text_of(f / table) for f in (folder, other))
        different += [table] if one != two else []
    for name in ("last.pt", "best.pt"):
        one, two = (plain(torch.load(f / name, weights_only=True)) for f in (folder, other))
        different += [f"{name} {key}" for key in one.keys() | two.keys() if one[key] != two[key]]
    return different


def text_of(path):
    """Return the text of a table without the columns of seconds, digit by digit."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    timed = {place for place, name in enumerate(lines[0]) if "seconds" in name}
    return [[cell for place, cell in enumerate(line) if place not in timed] for line in lines]


def plain(state, name=""):
    """Return a checkpoint's numbers by their path, tensors as bytes."""
    if isinstance(state, torch.Tensor):
        return {name: (state.dtype, state.shape, state.numpy().tobytes())}
    if isinstance(state, dict | list):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        kept = [(k, v) for k, v in pairs if k not in ("config", "seconds")]
        return {n: v for k, value in kept for n, v in plain(value, f"{name}/{k}").items()}
    return {name: state}


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
        self.process, self.ours, theirs = process(live, settings, moment)
        self.process.start()
        theirs.close()

    def end(self):
        """Return the exit code, minus the signal's number for one that was killed."""
        self.process.join()
        return self.process.exitcode

    def moments(self):
        """Return the names of all moments at which it could have died."""
        told = self.ours.recv()
        assert self.end() == 0
        return told


def live(settings, moment, told):
    """Train, and die at a moment by its number; tell the moments' names."""
    torch.set_num_threads(1)
    passed = []

    def at(name):
        passed.append(name)
        return len(passed) - 1 == moment

    _mortal(os, "fsync", at)
    _mortal(os, "replace", at)
    _mortal(os, "link", at)
    _mortal(simsgd.Simulator, "step", at)
    _half_written(at)
    simsgd.train(**settings)
    told.send(passed)


def _mortal(owner, name, at):
    """Let a function be a moment to die before it does anything, and another after it did."""
    real = getattr(owner, name)

    def call(*arguments, **named):
        if at(f"before {name}"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if at(f"after {name}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


def _half_written(at):
    """Let each write of a checkpoint's archive, and of a table's rows, be a moment to die."""
    write, append = atomic_files._DeferredErrors.write, atomic_files.append

    def half(self, some):
        if at("write"):
            write(self, bytes(some)[: len(some) // 2])
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, some)

    def half_a_row(path, text):
        if at("append"):
            append(path, text[: len(text) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        append(path, text)

    atomic_files._DeferredErrors.write = half
    tables.append = folder_files.append = half_a_row


class Long(Child):
    """Trains many steps, and tells what the process holds after each so many."""

    def __init__(self, settings, every):
        self.process, self.ours, theirs = process(live_long, settings, every)
        self.process.start()
        theirs.close()


def live_long(settings, every, told):
    """Train, and tell the bytes in memory after each `every` steps."""
    torch.set_num_threads(1)
    step, held = simsgd.Simulator.step, []

    def call(self, *arguments):
        record = step(self, *arguments)
        if self.steps % every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            held.append(pages * os.sysconf("SC_PAGE_SIZE"))
        return record

    simsgd.Simulator.step = call
    simsgd.train(**settings)
    told.send(held)
