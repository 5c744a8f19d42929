"""Runs a recipe simulated and as real processes, and compares the two.

Letters: W workers, which is W processes; B global batch.
"""

import copy
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from ..communication.transport import NodeRanks, broadcast_object, is_rank_zero
from ..config import Config
from ..given_object import plain_arguments
from ..gradients.contract import GradientEngine, Tensors
from ..gradients.trees import Tree, cloned
from ..recipe_rules import with_nodes
from ..results.config_values import refuse_idle
from ..results.tables import StepRow, TransferRow
from ..settings import require
from ..simulator.checkpoint_check import StateDict
from ..simulator.record import StepRecord
from ..training.environment import environment
from ..training.experiment import Experiment
from ..training.progress import fitted, is_seen, tqdm
from ..training.run_folder import RunFolder
from ..training.run_names import default_name
from ..training.signals import Interrupted, raised_signals
from ..training.totals import Totals, transfer_rows
from .defaults import DEFAULTS, IDLE, STEPS
from .gradient_kinks import RecordingEngine, copies, is_kink, parting, sizes
from .launch import Put, launch, require_room
from .link_times import LinkStep, LinkTimes, timed_on_links
from .message_flips import DecisionRecorder, Flip, first_flip
from .node_worker import FirstDevice, OtherDevice, sent_within
from .real_worker import OwnWorker, RealStep, TorchWorker, Worker, is_plain
from .shaped_links import checked_rate
from .verdict import LIMITS, FlipColumns, Verdict, VerifyRow

_MOST_STEPS = 1_000_000

MakeWorker = Callable[[Config], Worker]


@plain_arguments
def verify(
    steps: int = STEPS,
    *,
    link: str | None = None,
    log: Callable[[str], None] | None = None,
    **settings: object,
) -> Verdict:
    """Run a recipe twice, simulated and as W real processes, and return how far they agree.

    `settings` are those of `train`; `log`, such as `print`, is called with each line of the report
    as it is known, and a terminal or a notebook shows a bar. The run folder gets verify.csv, a row
    a step, and verify.png. With a `link`, such as 100Mbit, each process is behind a link of that
    rate, both ways; the seconds of every message are measured, and held to their price, in
    links.csv. That needs Linux and root.

    It may be called from a script that has no `if __name__ == "__main__"`, or from standard input.

    Raises `SettingError` for a wrong setting before any process starts, `RankLost` if a process
    dies, and `Interrupted` after Ctrl-C, SIGTERM or SIGHUP, with what was compared in the folder.
    """
    require(log is None or callable(log), "log", log, "must be a function of a text")
    require(steps >= 1, "steps", steps, "must be at least 1")
    require(steps <= _MOST_STEPS, "steps", steps, f"must be at most {_MOST_STEPS:,}")
    with raised_signals("verify"):
        return _verify(steps, link, log, settings)


def _verify(
    steps: int,
    link: str | None,
    log: Callable[[str], None] | None,
    settings: Mapping[str, object],
) -> Verdict:
    rate = None if link is None else checked_rate(link)
    asked = Config.of({**DEFAULTS, **with_nodes(settings)})
    refuse_idle(settings, settings.keys() - {*IDLE}, "a comparison of steps")
    config, real = checked(asked, steps, timed=link is not None)
    ranks = config.workers * config.devices
    require_room(ranks)
    known = {**config.plain(), "environment": environment(config.device), "verified_steps": steps}
    known |= {} if link is None else {"link": link}
    name = config.name or "verify-" + default_name(known, config.runs_dir)
    folder = RunFolder.create(config.runs_dir, name, {**known, "name": name}, config.overwrite)
    times = None if link is None or rate is None else LinkTimes(link, rate, config.workers)
    verdict = Verdict(config.dtype, steps, real is TorchWorker, folder.folder, times=times)
    hidden = log is None or not is_seen()
    bar = tqdm(total=steps, unit="step", disable=hidden, dynamic_ncols=True, leave=False)

    def shown(line: str) -> None:
        if log is not None:
            with tqdm.external_write_mode():
                log(fitted(line))

    try:
        shown(verdict.opening(config))
        for put in launch(compare, ranks, config, steps, real, rate, link=link):
            if isinstance(put, LinkStep):
                verdict.add_times(put)
                continue
            compared, logged = put
            folder.add_step(logged)
            verdict.add(compared)
            if verdict.is_shown(compared):
                shown(verdict.line(compared))
            bar.update()
        folder.log(verdict.summary())
    except Interrupted as stopped:
        left = f": {folder.folder}" if verdict.rows else ""
        short = f"{stopped} after {len(verdict.rows)} of {steps} steps{left}"
        folder.log(short)
        raise Interrupted(short) from stopped
    finally:
        bar.close()
        if verdict.rows:
            folder.flush_steps()
            verdict.write()
        folder.close()
    return verdict


def checked(config: Config, steps: int, timed: bool = False) -> tuple[Config, MakeWorker]:
    """Return the resolved configuration, and the worker that it is held to.

    Where messages are `timed` it is one that sends them one after the other. Raises `SettingError`
    for a wrong setting.
    """
    require(config.resume is None, "resume", str(config.resume), "has no place in verify")
    budget, fix = config.until_bytes, "leave it out: steps says how many"
    require(budget is None, "until_bytes", budget, "has no place in verify", fix)
    levels = timed and config.cluster is not None
    rule, fix = "has no place behind links of one rate: it has two levels", "leave one out"
    require(not levels, "cluster", config.cluster, rule, fix)
    experiment = Experiment.of(config)
    spans, rule = (
        experiment.simulator.components.algorithm.between_processes,
        "runs in one process only",
    )
    require(spans, "algorithm", config.algorithm, rule, "there is no real side to hold it to")
    plain = not timed and is_plain(experiment, steps)
    return experiment.config, TorchWorker if plain else OwnWorker


def compare(
    put: Put, config: Config, steps: int, real: MakeWorker, rate: float | None = None
) -> None:
    """Train in each process of a group, and simulate in rank 0; put (row, row of steps.csv).

    The first row is one of verify.csv. Rank 0 simulates a step after the real one. Where the two
    part and a flip is the reason, the simulation goes on from where the real side is. Behind links
    of `rate` bits a second a `LinkStep` is put before them.
    """
    config = dataclasses.replace(config, device=_own_device(config.device))
    worker = worker_of(config, real)
    simulation = Simulation(config) if is_rank_zero() else None
    latency: dict[str, float] = {}
    if rate is not None:
        assert isinstance(worker, OwnWorker)
        latency = timed_on_links(worker.transport, rate)
    for epoch, x, y in itertools.islice(_batches(worker.experiment), steps):
        step = worker.step(cloned(x), cloned(y), epoch)  # as a model may write into its input
        parted = False
        if simulation is not None and step is not None:
            parted = simulation.parts_from(step, x, y, epoch)
        if broadcast_object(parted):
            gradients, state = worker.gradients(), worker.state()
            if simulation is not None:
                simulation.explain(gradients, state)
        if simulation is not None and step is not None and rate is not None:
            put(LinkStep(simulation.step, step.measured, simulation.transfers, latency))
        if simulation is not None:
            put(simulation.rows)


def worker_of(config: Config, real: MakeWorker) -> Worker:
    """Return the worker that this process is, or the device of a worker that is a node."""
    if config.devices == 1:
        return real(config)
    node = NodeRanks(config.devices)
    return FirstDevice(config, node) if node.is_first else OtherDevice(config, node)


@dataclasses.dataclass(frozen=True)
class Began:
    """Where a step began."""

    batch: tuple[Tree, Tree, int]  # x [B, ...], y [B, ...], the epoch
    state: StateDict  # of the simulation
    real: Tensors  # the real parameters
    apart: float  # how far the simulated ones were from them


class Simulation:
    """The simulated side, which runs beside rank 0's worker.

    `rows` are those of verify.csv and steps.csv for the last step, `transfers` those of its
    transfers.csv, and `flip` is its first.
    """

    rows: tuple[VerifyRow, StepRow]
    step: int
    transfers: list[TransferRow]
    flip: Flip | None

    def __init__(self, config: Config) -> None:
        self.recorder = DecisionRecorder()
        self.experiment = Experiment.of(
            config, wrap_engine=self._recording, observers=[self.recorder]
        )
        self.simulator = self.experiment.simulator
        self.tally = Totals()
        self.limit = LIMITS[config.dtype][0]
        self.participants: Tensor | None = None  # that train in the last step, [W]; None: all
        self.apart = 0.0  # how far the parameters are from the real ones
        self.real = copies(self.simulator.parameters())

    def parts_from(self, real: RealStep, x: Tree, y: Tree, epoch: int) -> bool:
        """Simulate the step that `real` was; return whether the two part in it.

        They part but once, if nothing explains it.
        """
        lost = not self.apart <= self.limit
        state = copy.deepcopy(self.simulator.state_dict())
        self.last = Began((x, y, epoch), state, self.real, self.apart)
        began = time.perf_counter()
        record = self._step()
        self.participants = record.participants
        seconds = time.perf_counter() - began
        self.step, self.transfers = record.step, transfer_rows(record)
        trained = (record.of_participants(part, slice(None)) for part in (record.output, y))
        sums = self.experiment.metric.sums(*trained)
        logged = self.tally.add(record, sums, seconds)
        judged = real.counted is not None and not lost
        self.flip = first_flip(record.step, self.recorder.decided, real.decided) if judged else None
        self.real = copies(real.parameters)
        self.apart = difference(self.simulator.parameters(), self.real)
        payload = torch.cat([record.bytes.payload.cpu(), sent_within(record)])
        sent = real.sent.cpu()
        counted = payload if real.counted is None else real.counted.cpu()
        agree = torch.equal(sent, counted)
        if self.flip is None and not lost:  # else the two may have other things to send
            agree = agree and torch.equal(sent, payload)
        compared: VerifyRow = {
            "step": record.step,
            "loss": record.loss,
            "real_loss": record.mean_of(real.losses),
            "parameter_difference": self.apart,
            "loss_difference": _apart(record.losses, real.losses),
            "ledger_bytes": int(counted.sum()),
            "sent_bytes": int(sent.sum()),
            "bytes_agree": int(agree),
            **_told(self.flip),
        }
        self.rows = compared, logged
        return not lost and (self.flip is not None or not self.apart <= self.limit)

    def explain(self, gradients: list[Tensors], state: StateDict) -> None:
        """Look for the flip by which the two parted; if there is one, go on from the real `state`.

        The real `gradients` must be the simulated ones, or have left them at a kink. Where no
        message flipped they must have left them, and the simulation must come to the real
        parameters when it does the step again with them.
        """
        ended, step = copy.deepcopy(self.simulator.state_dict()), self.rows[0]["step"]
        left = parting(self.engine, gradients)
        agree = left.relative <= self.limit
        if not agree and not is_kink(self.engine, left, self.last.real, self.limit, step):
            self.flip = None
        elif self.flip is None and not agree and self._led_there_by(gradients):
            self.flip = Flip(step, self._worker(left.worker), left.name, "kink")
        self.rows = {**self.rows[0], **_told(self.flip)}, self.rows[1]
        if self.flip is not None:
            ended.update(state)
            self.apart = 0.0
        self.simulator.load_state_dict(ended)

    def _worker(self, row: int) -> int:
        """Return which worker has a row of the gradients, which devices of those who train have."""
        row //= self.experiment.config.devices
        if self.participants is None:
            return row
        return int(self.participants.nonzero()[row])

    def _recording(self, engine: GradientEngine) -> GradientEngine:
        self.engine = RecordingEngine(engine)
        return self.engine

    def _led_there_by(self, gradients: list[Tensors]) -> bool:
        """Do the last step again with other gradients; return whether the parameters agree."""
        self.simulator.load_state_dict(self.last.state)
        self._step(gradients)
        apart = difference(self.simulator.parameters(), self.real)
        return apart <= self.last.apart + self.limit

    def _step(self, given: list[Tensors] | None = None) -> StepRecord:
        self.engine.forget()
        self.engine.given = None if given is None else iter(given)
        self.recorder.decided.clear()
        x, y, epoch = self.last.batch
        return self.simulator.step(cloned(x), cloned(y), epoch)


def difference(own: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest relative difference between parameters, {name: tensor} of one shape.

    It is a tensor's largest difference over its largest magnitude, or over a thousandth of the
    model's largest if that is more.
    """
    assert own.keys() == other.keys()
    apart = torch.stack([(p - other[name]).abs().max() for name, p in own.items()])
    return float((apart / torch.tensor(list(sizes(own).values())).to(apart)).max())


def _told(flip: Flip | None) -> FlipColumns:
    """Return the columns of verify.csv that tell of a flip."""
    flip = flip or Flip(0, -1, "", "")
    return {
        "flip": flip.kind,
        "flipped_worker": flip.worker,
        "flipped_segment": flip.segment,
        "flipped_entries": flip.entries,
        "decided_entries": flip.decided,
    }


def _apart(losses: Tensor, others: Tensor) -> float:
    """Return the largest difference between losses [W], over their mean magnitude."""
    size = losses.abs().mean().clamp(min=torch.finfo(losses.dtype).tiny)
    return float((losses - others).abs().max() / size)


def _batches(experiment: Experiment) -> Iterator[tuple[int, Tree, Tree]]:
    for epoch in itertools.count():
        for x, y in experiment.epoch_batches(epoch):
            yield epoch, x, y


def _own_device(name: str) -> str:
    """Return the GPU of this process: its own if there is one for each, else a shared one."""
    if not name.startswith("cuda"):
        return name
    return f"cuda:{torch.cuda.current_device()}"
