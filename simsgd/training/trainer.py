"""Trains a run from its first step to its last: epochs, evaluation, checkpoints, resuming.

Letters: W workers, B global batch.
"""

import contextlib
import dataclasses
import itertools
import math
import operator
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..communication.transport import broadcast_object, is_rank_zero
from ..gradients.thread_count import thread_count
from ..gradients.trees import Tree, leaves
from ..results.run import Run
from ..results.tables import EpochRow, measured_of, numbers_of
from ..simulator.ready_segments import ready_segments
from ..simulator.record import StepRecord
from .checkpoint import checkpoint_errors, epoch_and_batch, load_last, require_vocabulary
from .data import Text
from .data.partition import by_class, classes_in_words, partition_rows
from .devices import device_of
from .environment import deterministic
from .errors import explained_errors, require_finite
from .evaluation import evaluate, evaluate_workers
from .experiment import Experiment
from .given import taken_objects
from .loggers import Dashboards, require_installed
from .memory_use import malloc
from .memory_use.peak import Peak, load
from .metrics import num_targets
from .progress import Progress, ending_line, epoch_line, no_best_line
from .ranks import joined_transport
from .recalibration import recalibrate_
from .run_config import run_config
from .run_folder import RunFolder
from .shared_folder import go_on, shared_folder
from .signals import Interrupted, StopRequest, stop_requests
from .signature import takes_settings
from .start_message import start_message
from .step_log import StepLog
from .thread_choice import requested_threads
from .totals import Measures, Totals, mean_measures, worker_row


@takes_settings
def train(**settings: object) -> Run:
    """Simulate the training that the settings of `Config` describe, and return the run.

    `train(workers=16, prune=0.999)` does what `simsgd train --workers 16 --prune 0.999` does. In
    Python `model` may be a torch.nn.Module, which is trained, or a function that makes one,
    `dataset` a pair (train, val) of torch data sets, Hugging Face data sets or tensors (x, y),
    `criterion` a function (output, target) -> mean loss, and `metric` one whose mean tables and
    figures show. Such a run is resumed by giving them again.
    Raises `SettingError` before anything is written if a setting is wrong, `Diverged` if a loss is
    no longer finite, `Interrupted` after Ctrl-C, `NotWritten` if the folder cannot be written, and
    `OutOfMemory` if the device is out of memory.

    Started by torchrun, each of its R processes simulates W / R of the workers, and the first
    writes the folder. Raises `RankLost` if another process dies.
    """
    given, named = taken_objects(settings)
    config = run_config(named)
    with (
        joined_transport(config) as transport,
        deterministic(config.deterministic),
        thread_count(requested_threads(config)),
    ):
        if not is_rank_zero():
            config = dataclasses.replace(config, quiet=True, tensorboard=False, wandb=False)
        require_installed(config)
        load(config.dataset)
        peak = Peak(device_of(config.device))
        malloc.keep()
        experiment = Experiment.of(config, transport, given=given)
        if config.prune or config.compressor or config.compress_layers:
            peak.load_kernels(experiment.largest_segment)
        folder = shared_folder(experiment)
        try:
            with explained_errors(folder, experiment.config), stop_requests() as request:
                Trainer(experiment, folder, request).run()
                folder.log(peak.sentence())
        finally:
            folder.close()
            malloc.trim()
        return Run(folder.folder)


_Batch = tuple[Tree, Tree]  # x and y of a global batch, [B, ...] each


@dataclass
class Trainer:
    """Drives an experiment's simulator and writes its run folder."""

    experiment: Experiment
    folder: RunFolder
    request: StopRequest
    totals: Totals = field(default_factory=Totals)
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    best: float = math.inf  # validation metric, of text loss; negative where more is better
    evaluated: int = 0  # steps done at the last evaluation

    def run(self) -> None:
        """Train from where the folder stands to the last step."""
        self._resume()
        simulator = self.experiment.simulator
        config, batches = self.experiment.config, self.experiment.batches
        done = self.epoch * batches + self.batch
        self.progress = Progress(self.experiment.steps, done, config.quiet, self.folder.log)
        self.dashboards = Dashboards.of(config, self.folder.folder, simulator.steps)
        self.step_log = StepLog(config, self.folder, self.dashboards, self.totals)
        threads = self.experiment.threads
        simulator.components.engine.operation_threads = threads.gradients
        others = thread_count(threads.others)
        with contextlib.closing(self.progress), contextlib.closing(self.dashboards), others:
            self.progress.write(start_message(self.experiment))
            self._tell_partition()
            while not self._done:
                self._train_epoch(self.epoch)
                if self.batch == batches:
                    self._end_epoch()
                elif self.evaluated != simulator.steps:
                    self._evaluate_within()
            if config.until_bytes is not None:
                size = int(config.until_bytes)
                self.progress.write(ending_line(simulator.steps, self._sent, size))
            if self.best == math.inf and config.keep != "last":
                self.progress.write(no_best_line(self.experiment.metric.shown.title))

    @property
    def _done(self) -> bool:
        """Whether all steps are done, and the model behind the last of them is evaluated."""
        experiment = self.experiment
        steps, epochs = experiment.simulator.steps, experiment.config.epochs
        assert epochs is not None
        ended = steps >= experiment.steps or self._has_sent_enough
        return self.epoch >= epochs or (ended and self.evaluated == steps)

    @property
    def _has_sent_enough(self) -> bool:
        """Whether workers have sent the bytes after which the run ends; this waits for a GPU."""
        config = self.experiment.config
        if config.until_bytes is None:
            return False
        self.step_log.read()
        return self._sent >= int(config.until_bytes)

    @property
    def _sent(self) -> int:
        """The bytes that each worker has sent, the mean, as epochs.csv has them."""
        return round(self.totals.payload_bytes / self.experiment.config.workers)

    def _tell_partition(self) -> None:
        """Say and write how many samples of each class each worker has, where these are fixed."""
        parts, dataset = self.experiment.parts, self.experiment.dataset
        if parts is None or isinstance(dataset, Text) or self.experiment.simulator.steps:
            return
        labels = dataset.train.labels
        if labels is None or dataset.num_classes is None:
            return
        table = by_class(parts, labels, dataset.num_classes)
        self.progress.write(classes_in_words(table))
        self.folder.add_partition(partition_rows(table))

    def _train_epoch(self, epoch: int) -> None:
        experiment = self.experiment
        left = 0 if self._has_sent_enough else experiment.steps - experiment.simulator.steps
        batches = itertools.islice(experiment.epoch_batches(epoch, self.batch), max(0, left))
        for x, y in self._timed(batches):
            self.step_log.ready = self.step_log.ready or ready_segments(experiment.simulator, x, y)
            is_last = experiment.simulator.steps + 1 == experiment.steps
            record = experiment.simulator.step(x, y, epoch, is_last)
            sums = self._sums(record, y)
            seconds = time.perf_counter() - self.began
            samples = len(leaves(y)[0]) if experiment.config.tokens is None else num_targets(y)
            self.step_log.add(record, sums, seconds, record.num_of_participants(samples))
            self.batch += 1
            self.progress.advance()
            self._between_steps(record)
            if self._has_sent_enough:
                break
        self._write_steps()

    def _sums(self, record: StepRecord, y: Tree) -> Tensor:
        """Return the sums of the metric over all that train, [4] as `Metric.sums` does."""
        simulator, metric = self.experiment.simulator, self.experiment.metric
        pair = record.output, simulator.hosted_samples(y)
        parts = simulator.components
        output, target = (record.of_participants(part, parts.hosted) for part in pair)
        if parts.hosts_all:
            return metric.sums(output, target)
        nothing = torch.zeros(4, dtype=torch.float64, device=parts.workers.device)
        own = metric.sums(output, target) if num_targets(target) else nothing
        rows = torch.stack([own, *[nothing] * (len(parts.workers) - 1)])  # [L, 4]
        return simulator.all_gather(rows).sum(0)

    def _timed(self, batches: Iterator[_Batch]) -> Iterator[_Batch]:
        """Yield the batches; `began` is when each was asked for, so a step's time has its data."""
        self.began = time.perf_counter()
        for batch in batches:
            yield batch
            self.began = time.perf_counter()

    def _between_steps(self, record: StepRecord) -> None:
        config = self.experiment.config
        if self.step_log.unwritten >= config.log_every:
            self._write_steps()
        self.progress.note_gradients(self.experiment.simulator.components)
        asked, in_epoch = self._asked_to_stop(), self.batch < self.experiment.batches
        if in_epoch and _due(record.step, config.eval_every):
            self._evaluate_within()
        elif asked or _due(record.step, config.checkpoint_every):
            self._save()
        if asked:
            again = f"simsgd train --resume {self.folder.folder}"
            raise Interrupted(f"stopped after step {record.step}; continue with: {again}")

    def _asked_to_stop(self) -> bool:
        """Return whether somebody asked any of the processes to stop."""
        simulator, parts = self.experiment.simulator, self.experiment.simulator.components
        if parts.hosts_all:
            return self.request.made
        own = torch.full((len(parts.workers),), self.request.made)
        return bool(simulator.all_gather(own).any())

    def _end_epoch(self) -> None:
        row, own = self._measured_row()
        self.experiment.simulator.end_epoch(
            broadcast_object(measured_of({**numbers_of(row), **own}))
        )
        self.folder.add_epoch(row, own)
        is_best = self._report(row, own)
        self.totals.next_epoch()
        self.epoch, self.batch = self.epoch + 1, 0
        self._save(evaluated=True, best=is_best)

    def _evaluate_within(self) -> None:
        """Evaluate between the ends of two epochs."""
        self._write_steps()
        row, own = self._measured_row()
        epochs = self.epoch + self.batch / self.experiment.batches
        self.folder.add_evaluation({**row, "epochs": epochs}, own)
        self._save(evaluated=True, best=self._report(row, own, within=True))

    def _measured_row(self) -> tuple[EpochRow, dict[str, float]]:
        """Evaluate; return the row of the epoch, or of its part so far, and that of one's own."""
        experiment, totals = self.experiment, self.totals
        began = time.perf_counter()
        with thread_count(experiment.threads.gradients):
            measured = self._evaluated()
        totals.seconds += time.perf_counter() - began
        steps, workers = experiment.simulator.steps, experiment.config.workers
        self.evaluated = steps
        spread = experiment.simulator.consensus_distance()
        row = totals.epoch_row(self.epoch, steps, workers, measured, spread)
        return row, totals.own_measures(experiment.metric.shown, measured)

    def _report(self, row: EpochRow, own: Mapping[str, float], within: bool = False) -> bool:
        """Show an evaluation, and return whether it is the best so far."""
        shown, numbers = self.experiment.metric.shown, {**numbers_of(row), **own}
        self.dashboards.epoch(numbers)
        self.progress.write(epoch_line(row, shown.row_in_words(numbers), within))
        score = shown.value(numbers) if shown.score_column != "val_loss" else row["val_loss"]
        score = -score if shown.higher_is_better else score
        is_best = score < self.best
        self.best = min(self.best, score)
        return is_best

    def _evaluated(self) -> Measures:
        """Return the measures of the averaged model, or the mean of those of all workers' own."""
        experiment, whose = self.experiment, self.experiment.config.evaluate
        if whose == "average":
            return evaluate(experiment, self._averaged())
        each = evaluate_workers(experiment)
        shown = experiment.metric.shown
        step = experiment.simulator.steps
        self.folder.add_workers(
            [
                worker_row(self.epoch, worker, step, measured)
                | dict.fromkeys(shown.own_columns[1:], measured["metric"])
                for worker, measured in enumerate(each)
            ]
        )
        if whose == "both":
            return evaluate(experiment, self._averaged())
        return mean_measures(each)

    def _averaged(self) -> nn.Module:
        config = self.experiment.config
        model = self.experiment.simulator.evaluation_model(config.evaluate_buffers)
        if config.recalibrate_bn:
            recalibrate_(self.experiment, model, config.recalibrate_bn)
        return model

    def _write_steps(self) -> None:
        if (last := self.step_log.write()) is not None:
            metric = self.experiment.metric.shown
            measured = self.totals.train_measures(metric) | {"train_loss": last.loss}
            self.progress.show(last.loss, metric.row_in_words(measured, "train"), self._sent)

    def _save(self, evaluated: bool = False, best: bool = False) -> None:
        self._write_steps()
        simulator, config = self.experiment.simulator, self.experiment.config
        model = self._averaged().state_dict()
        require_finite(model, simulator.steps, self.folder)
        state = {
            "config": config.plain(),
            "model": model,
            "simulator": simulator.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "best": self.best,
            "evaluated": self.evaluated,
            "tally": self.totals.state_dict(),
            "vocabulary": self.experiment.vocabulary,
        }
        if evaluated:
            self.folder.save_model(state, simulator.steps, best, config.keep)
        self.folder.save(state)

    def _resume(self) -> None:
        if self.experiment.config.resume is None:
            return
        state, warning = load_last(self.folder.folder, self.experiment.config)
        if state is not None:  # else it ended before its first checkpoint
            with checkpoint_errors("resume", folder := self.folder.folder):
                require_vocabulary("resume", folder, state, self.experiment.vocabulary)
                self.experiment.simulator.load_state_dict(state["simulator"])
                self.epoch, self.batch = epoch_and_batch(state, self.experiment.batches)
                self.best, self.totals = float(state["best"]), Totals(**state["tally"])
                self.evaluated = operator.index(state.get("evaluated", 0))
        if warning:
            self.folder.put_back()
            self.folder.log(warning)
            if not self.experiment.config.quiet:
                print(warning, file=sys.stderr)
        go_on(self.experiment, self.folder, self.epoch, self.evaluated)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
