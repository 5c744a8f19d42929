"""Run a recipe simulated and as real processes, and hold one to the other.

Letters: W workers, which is W processes; B global batch.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .config import Config
from .environment import environment
from .evaluation import wrong
from .experiment import Experiment
from .flips import Flip, Listening, first_flip
from .processes import Put, launch
from .reality import OwnWorker, RealStep, TorchWorker, Worker, is_plain
from .runlog import RunFolder, default_name
from .settings import require
from .tally import Tally
from .transport import is_first
from .verdict import Verdict

DEFAULTS: dict[str, Any] = {"workers": 4, "dtype": "float64"}  # where they differ from training's
MakeWorker = Callable[[Config], Worker]
_SMALL = 1e-3  # of the largest parameter: the least that a tensor's difference is held against


def verify(
    steps: int = 50, say: Callable[[str], None] = lambda text: None, **settings: Any
) -> Verdict:
    """Run a recipe twice, simulated and as W real processes, and return how far they agree.

    `settings` are those of `train`; each step of the report goes to `say` as it is known. The run
    folder gets verify.csv, a row a step, and verify.png. Raises `SettingError` for a wrong setting
    before any process starts, and `RankLost` if a process dies.
    """
    require(steps >= 1, "steps", steps, "must be at least 1")
    config, real = checked(Config.of({**DEFAULTS, **settings}), steps)
    known = {**config.plain(), "environment": environment(config.device), "verified_steps": steps}
    name = config.name or "verify-" + default_name(known, config.runs_dir)
    folder = RunFolder.create(config.runs_dir, name, {**known, "name": name}, config.overwrite)
    verdict = Verdict(config.dtype, steps, real is TorchWorker, folder.folder)
    try:
        say(verdict.opening(config))
        for compared, logged in launch(compare, config.workers, config, steps, real):
            folder.add_step(logged)
            verdict.add(compared)
            if verdict.is_shown(compared):
                say(verdict.line(compared))
        folder.log(verdict.summary())
        folder.flush_steps()
        verdict.write()
    finally:
        folder.discard()
    return verdict


def checked(config: Config, steps: int) -> tuple[Config, MakeWorker]:
    """Return the resolved configuration, and the worker that it is held to.

    Raises `SettingError` for a wrong setting.
    """
    require(config.resume is None, "resume", str(config.resume), "has no place in verify")
    experiment = Experiment.of(config)
    spans, rule = experiment.simulator.exchange.between_processes, "runs in one process only"
    name = "downlink" if config.downlink else "algorithm"
    require(spans, name, getattr(config, name), rule, "there is no real side to hold it to")
    return experiment.config, TorchWorker if is_plain(experiment, steps) else OwnWorker


def compare(put: Put, config: Config, steps: int, real: MakeWorker) -> None:
    """Train in each process of a group, and simulate in rank 0; put (row, row of steps.csv).

    The first row is one of verify.csv. Rank 0 simulates a step after the real one.
    """
    config = dataclasses.replace(config, device=_own_device(config.device))
    worker = real(config)
    simulation = Simulation(config) if is_first() else None
    for epoch, x, y in itertools.islice(_batches(worker.experiment), steps):
        step = worker.step(x, y, epoch)
        if simulation is not None:
            put(simulation.held_to(step, x, y, epoch))


class Simulation:
    """The simulated side, which runs beside rank 0's worker."""

    def __init__(self, config: Config) -> None:
        self.experiment = Experiment.of(config)
        simulator = self.experiment.simulator
        channel = simulator.channel
        self.channel = Listening(channel.transport, channel.ledger, channel.wire)
        simulator.channel = self.channel
        self.tally = Tally()
        self.flip: Flip | None = None  # the first

    def held_to(
        self, real: RealStep, x: Tensor, y: Tensor, epoch: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Simulate the step that `real` was, and return the rows of verify.csv and steps.csv."""
        began = time.perf_counter()
        record = self.experiment.simulator.step(x, y, epoch)
        logged = self.tally.add(
            record, wrong(record.output, y), y.numel(), time.perf_counter() - began
        )
        if self.flip is None and real.weighed is not None:
            self.flip = first_flip(record.step, self.channel.heard, real.heard)
        self.channel.heard.clear()
        payload, sent = record.bytes.payload.cpu(), real.sent.cpu()
        weighed = payload if real.weighed is None else real.weighed.cpu()
        agree = torch.equal(sent, weighed)
        if self.flip is None:  # after it the two may have other things to send
            agree = agree and torch.equal(sent, payload)
        compared = {
            "step": record.step,
            "loss": record.loss,
            "real_loss": float(real.losses.mean()),
            "parameter_difference": difference(
                self.experiment.simulator.parameters(), real.parameters
            ),
            "loss_difference": _apart(record.losses, real.losses),
            "ledger_bytes": int(weighed.sum()),
            "sent_bytes": int(sent.sum()),
            "bytes_agree": int(agree),
            "flipped_worker": -1 if self.flip is None else self.flip.worker,
            "flipped_segment": "" if self.flip is None else self.flip.segment,
        }
        return compared, logged


def difference(own: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest relative difference between parameters, {name: tensor} of one shape.

    It is a tensor's largest difference over its largest magnitude, or over a thousandth of the
    model's largest if that is more.
    """
    assert own.keys() == other.keys()
    sizes = torch.stack([p.abs().max() for p in own.values()])
    apart = torch.stack([(p - other[name]).abs().max() for name, p in own.items()])
    return float((apart / sizes.clamp(min=float(sizes.max()) * _SMALL)).max())


def _apart(losses: Tensor, others: Tensor) -> float:
    """Return the largest difference between losses [W], over their mean magnitude."""
    size = losses.abs().mean().clamp(min=torch.finfo(losses.dtype).tiny)
    return float((losses - others).abs().max() / size)


def _batches(experiment: Experiment) -> Iterator[tuple[int, Tensor, Tensor]]:
    for epoch in itertools.count():
        for x, y in experiment.epoch_batches(epoch):
            yield epoch, x, y


def _own_device(name: str) -> str:
    """Return the GPU of this process: its own if there is one for each, else a shared one."""
    if not name.startswith("cuda"):
        return name
    return f"cuda:{torch.cuda.current_device()}"
