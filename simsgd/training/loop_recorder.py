"""What records a training loop of the user's own, between the steps of a simulator.

Letters: W workers, B global batch.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TypeVar

from ..config import Config
from ..given_object import plain_arguments
from ..gradients.trees import Tree, leaves
from ..results.run import Run
from ..results.tables import EpochRow, measured_of, numbers_of
from ..settings import SettingError, require, require_kind
from ..simulator.ready_segments import ready_segments
from ..simulator.record import StepRecord
from ..simulator.simulator import Simulator
from .errors import Diverged, require_finite
from .loggers import Dashboards
from .loop_folder import metric_shown, read_state, write_settings
from .loop_notes import StepsOfBatches, final_exchange_notes, loader_notes
from .loop_state import Kept, State, capture_random, load_states, restore_random, states_of
from .metrics import Metric, num_targets, one_number
from .progress import epoch_line, is_printed, no_best_line
from .run_folder import RunFolder
from .signals import Interrupted, StopRequest
from .step_log import StepLog
from .totals import Measures, Totals

_Batch = TypeVar("_Batch")
_MEASURED = ("val_loss", "val_error1", "val_error5")


class Recording:
    """A loop that is being recorded; `recording` makes it.

    `epoch` is the one that is not done yet, counted from 0, and `batch` how many of its batches are
    done. Once its block has ended, all but `summary` raises `SettingError`.
    """

    def __init__(
        self,
        simulator: Simulator,
        folder: RunFolder,
        config: Config,
        kept: Kept,
        request: StopRequest,
    ) -> None:
        self.folder = folder.folder
        self.epoch, self.batch = 0, 0
        self._simulator, self._files, self._config = simulator, folder, config
        self._kept, self._request = kept, request
        self._totals, self._best = Totals(), math.inf
        self._step_log = StepLog(config, folder, Dashboards(), self._totals)
        self._measured: dict[str, float] = {}  # at the last evaluation
        self._evaluated = self._saved = -1  # steps done then
        self._length = math.nan  # batches of an epoch, if known
        self._batches = StepsOfBatches()
        self._in_step = self._is_last = self._in_epochs = self._ended = False
        self._open_epoch: int | None = None  # of a last step that was not said to be the last
        self._began = time.perf_counter()
        self._random = self._epoch_random = capture_random(kept)
        self._to_restore: State | None = None  # once more, where the loop goes on

    @plain_arguments
    def epochs(self, epochs: int) -> Iterator[int]:
        """Yield the epochs that are not done, of so many; after each, write a row of epochs.csv.

        Its validation columns are those of `evaluate`, if that was called after the last step.
        """
        self._require_open()
        require(epochs >= 1, "epochs", epochs, "must be at least 1")
        rule, fix = "is called within a loop over epochs", "go over them once"
        require(not self._in_epochs, "epochs", None, rule, fix)
        self._write_settings(epochs=max(epochs, self.epoch))
        if self._to_restore is not None:
            restore_random(self._to_restore, self._kept)
        self._in_epochs = True
        try:
            while self.epoch < epochs:
                yield self.epoch
                self._end_epoch()
        finally:
            self._in_epochs = False

    def batches(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yield the batches of an epoch that are not done.

        After a stop in the middle, the loader begins as it did then, with the random generators as
        they were, and its first batches are passed over. Outside `epochs` a pass is an epoch.
        """
        self._require_open()
        within = "is called within a loop over batches"
        require(self._batches.now is None, "batches", None, within, "go over them once")
        require(isinstance(loader, Iterable), "loader", loader, "gives no batches one by one")
        for line in loader_notes(loader, self._kept) if self.epoch == self.batch == 0 else []:
            self.log(line)
        self._length = float(len(loader)) if isinstance(loader, Sized) else math.nan
        done, iterator = self.batch, self._begun(loader)
        self._batches = StepsOfBatches()
        self._began = time.perf_counter()
        try:
            for number, batch in enumerate(iterator, start=done + 1):
                self._batches.begin(number, self._simulator.steps)
                yield batch
                self._batches.end(self._simulator.steps)
                self.batch = number
                self._between()
                self._began = time.perf_counter()
        finally:
            self._batches.now = None
        if not self._in_epochs:
            self._end_epoch()

    def evaluate(self, **measured: float) -> None:
        """Write an evaluation with the numbers measured, and a checkpoint.

        They are `val_loss`, and in percent `val_error1` and `val_error5`; `val_NAME` of a metric of
        one's own. A second call after the same step replaces the numbers for the epoch's row alone.
        Raises `SettingError` for any other name.
        """
        self._require_open()
        shown = self._metric.shown
        known = [*_MEASURED, *shown.own_columns[1:]]
        for name in measured:
            rule = f"takes {', '.join(known)}, not {name}"
            require(name in known, "evaluate", None, rule, "name yours in recording(..., metric=)")
        self._choose_metric(measured)
        self._measured = {name: one_number(name, value) for name, value in measured.items()}
        again, self._evaluated = self._evaluated == self._simulator.steps, self._simulator.steps
        if again:
            return
        self._step_log.write()
        row, own = self._row()
        self._files.add_evaluation({**row, "epochs": self._epochs_done}, own)
        self._say(row, own, within=True)
        self._save(evaluated=True, best=self._is_best(row, own))

    def save(self) -> None:
        """Write a checkpoint now."""
        self._require_open()
        self._save()

    def log(self, text: str) -> None:
        """Print a text and add it to log.txt."""
        self._require_open()
        require_kind("text", text, str)
        self._files.log(text)
        if not self._config.quiet:
            is_printed(text)

    def summary(self) -> str:
        """Return the results so far in plain text."""
        self._step_log.write()
        return Run(self.folder).summary()

    def begin_step(self, last: bool) -> None:
        """Take note that a step begins, which may be the last; the simulator calls this."""
        self._in_step, self._is_last = True, last

    def end_step(self, record: StepRecord, x: Tree, y: Tree) -> None:
        """Record a step; the simulator calls this."""
        parts, now = self._simulator.components, time.perf_counter()
        pair = record.output, self._simulator.hosted_samples(y)
        output, target = (record.of_participants(part, parts.hosted) for part in pair)
        samples = len(leaves(x)[0]) if self._config.tokens is None else num_targets(y)
        trained = record.num_of_participants(samples)
        sums = self._metric.sums(output, target)
        if self._step_log.ready is None:
            self._step_log.ready = ready_segments(self._simulator, x, y)
        self._step_log.add(record, sums, now - self._began, trained)
        if self._step_log.unwritten >= self._config.log_every:
            self._step_log.write()
        self._began, self._in_step = time.perf_counter(), False
        self._random = capture_random(self._kept)
        self._to_restore = None
        self._open_epoch = None if self._is_last else record.epoch
        if self._batches.now is None:
            self.batch += 1
            self._between()
        else:
            self.batch = self._batches.now

    def _begun(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """Begin with a loader as the epoch began, and pass over the batches that are done."""
        stopped, self._to_restore = self._to_restore, None
        if not self.batch:
            if stopped is not None:
                restore_random(stopped, self._kept)
            self._epoch_random = capture_random(self._kept)
            return iter(loader)
        if stopped is not None:
            restore_random(self._epoch_random, self._kept)
        iterator = iter(loader)
        for number in range(self.batch):
            if next(iterator, self) is self:
                rule = f"ends after {number} batches, and {self.batch} are done"
                raise SettingError("loader", None, rule, "give the one that the run had")
        if stopped is not None:
            restore_random(stopped, self._kept)
        return iterator

    @property
    def _metric(self) -> Metric:
        return Metric(metric_shown(self._config))

    @property
    def _epochs_done(self) -> float:
        return self.epoch + self.batch / self._length

    def _between(self) -> None:
        """Stop or save between two steps, if that is due."""
        self._require_open()
        steps, every = self._simulator.steps, self._config.checkpoint_every
        due = every > 0 and steps % every == 0 and steps != self._saved
        if self._request.made or due:
            self._save()
        if self._request.made:
            go_on = "start the loop again, with recording(..., resume=True)"
            raise Interrupted(f"stopped after step {steps}; to continue, {go_on}")

    def _row(self) -> tuple[EpochRow, dict[str, float]]:
        simulator, measured = self._simulator, self._measured
        shown = self._metric.shown
        names = (*_MEASURED, f"val_{shown.column}")
        loss, error1, error5, metric = (measured.get(name, math.nan) for name in names)
        of_val: Measures = {"loss": loss, "error1": error1, "error5": error5, "metric": metric}
        spread, workers = simulator.consensus_distance(), simulator.recipe.workers
        row = self._totals.epoch_row(self.epoch, simulator.steps, workers, of_val, spread)
        return row, self._totals.own_measures(shown, of_val)

    def _end_epoch(self) -> None:
        self._require_open()
        if self._evaluated != self._simulator.steps:
            self._measured = {}
        self._step_log.write()
        row, own = self._row()
        numbers = {**numbers_of(row), **own}
        self._simulator.end_epoch(measured_of(numbers))
        self._files.add_epoch(row, own)
        if not self._measured:
            self._say(row, own)
        self._totals.next_epoch()
        self.epoch, self.batch = self.epoch + 1, 0
        self._saved = -1
        self._save()
        self._between()

    def _say(self, row: EpochRow, own: Mapping[str, float], within: bool = False) -> None:
        words = self._metric.shown.row_in_words({**numbers_of(row), **own})
        self.log(epoch_line(row, words, within))

    def _is_best(self, row: EpochRow, own: Mapping[str, float]) -> bool:
        shown, numbers = self._metric.shown, {**numbers_of(row), **own}
        score = shown.value(numbers) if shown.score_column != "val_loss" else row["val_loss"]
        score = -score if shown.higher_is_better else score
        is_best, self._best = score < self._best, min(self._best, score)
        return is_best

    def _choose_metric(self, measured: Mapping[str, float]) -> None:
        """Have the error shown if it is measured, else the loss, unless the user chose."""
        if self._config.metric is None and self._config.tokens is None:
            self._write_settings(metric="error" if "val_error1" in measured else "none")

    def _write_settings(self, **changed: object) -> None:
        self._config = write_settings(self._files, self._simulator, self._config, changed)
        self._step_log.config = self._config

    def _save(
        self, at_last_step: bool = False, evaluated: bool = False, best: bool = False
    ) -> None:
        """Write a checkpoint, with the generators as they are, or as after the last step."""
        self._step_log.write()
        if not at_last_step:
            self._random = capture_random(self._kept)
        simulator, training = self._simulator, self._simulator.model.training
        model = simulator.evaluation_model().state_dict()
        if training:
            simulator.components.mode.enter()
        require_finite(model, simulator.steps, self._files)
        loop = {
            "random": self._random,
            "epoch_random": self._epoch_random,
            "kept": states_of(self._kept),
            "measured": self._measured,
        }
        state = {
            "config": self._config.plain(),
            "model": model,
            "simulator": simulator.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "best": self._best,
            "evaluated": self._evaluated,
            "tally": self._totals.state_dict(),
            "loop": loop,
        }
        if evaluated:
            self._files.save_model(state, simulator.steps, best, self._config.keep)
        self._files.save(state)
        self._saved = simulator.steps

    def _resume(self) -> None:
        state = read_state(self._files, self._simulator, self._kept)
        if state is None:  # it ended before its first checkpoint
            return
        loop = state["loop"]
        self.epoch, self.batch = state["epoch"], state["batch"]
        self._best, self._evaluated = state["best"], state["evaluated"]
        self._saved, self._measured = self._simulator.steps, loop["measured"]
        self._totals = Totals(**state["tally"])
        self._step_log.totals = self._totals
        load_states(loop.get("kept", {}), self._kept)
        self._epoch_random, self._to_restore = loop["epoch_random"], loop["random"]
        restore_random(self._to_restore, self._kept)
        self.log(f"resumed after step {self._simulator.steps}")

    def _end(self) -> None:
        self._step_log.write()
        if self._saved != self._simulator.steps > 0:
            self._save()
        if self._evaluated >= 0 and self._best == math.inf and self._config.keep != "last":
            self.log(no_best_line(self._metric.shown.title))
        for line in final_exchange_notes(self._simulator, self._open_epoch):
            self.log(line)

    def _end_by(self, error: BaseException) -> None:
        """Keep what was done until an error; what the error left half done is not kept."""
        try:
            self._step_log.write()
            whole = not self._in_step and not isinstance(error, Diverged)
            if whole and self._saved != self._simulator.steps > 0:
                self._save(at_last_step=True)
            for line in self._batches.notes(self._simulator.steps):
                self.log(line)
        except Exception as second:
            self._files.log(f"note: not saved at the end: {second}")

    def _require_open(self) -> None:
        fix = "call it within its `with` block, or go on in a new one, with resume=True"
        require(not self._ended, "recording", None, "has ended", fix)

    def __repr__(self) -> str:
        return f"Recording({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        self._step_log.write()
        return Run(self.folder)._repr_html_()
