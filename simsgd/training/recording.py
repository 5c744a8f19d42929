"""Records a training loop of the user's own as a run: the folder that `train` writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..given_object import plain_arguments
from ..settings import require, require_kind
from ..simulator.notes import notes_of
from ..simulator.simulator import Simulator
from .loop_folder import loop_config, loop_folder
from .loop_recorder import Recording
from .loop_state import Kept, check_kept
from .signals import stop_requests


@plain_arguments
@contextmanager
def recording(
    folder: Path | str,
    simulator: Simulator,
    *,
    resume: bool = False,
    overwrite: bool = False,
    state: Kept | None = None,
    dataset: str = "loop",
    tokens: str | None = None,
    metric: str | None = None,
    metric_mode: str | None = None,
    checkpoint_every: int = 0,
    keep: str = "best",
    log_every: int = 50,
    log_layers: bool = False,
    quiet: bool = False,
) -> Iterator[Recording]:
    """Record the steps that `simulator` does within the block as a run in `folder`.

        with simsgd.recording("runs/mine", simulator, resume=True) as run:
            for epoch in run.epochs(3):
                for x, y in run.batches(loader):
                    simulator.step(x, y, epoch)
                run.evaluate(val_loss=...)

    The folder is the one that `train` writes: `results`, `report`, `plot_results`, `network` and
    `Run` read it. `run.epochs` and `run.batches` begin where the folder stands. A loop without them
    is recorded too; it asks `simulator.steps` where it is, and is saved every `checkpoint_every`
    steps and at each `evaluate`. However the block ends, by an error too, the folder can be
    resumed.

    Args:
        folder: the run's folder to make, such as runs/NAME.
        simulator: a new one; when resumed, it is given the state of the one before.
        resume: go on if the folder exists.
        overwrite: replace a run of the same name.
        state: what else to save and put back, by name: torch generators, and objects with
            `state_dict` and `load_state_dict`, such as an average of weights. The global generators
            of torch, NumPy and Python are always saved.
        dataset: name of the data, for tables.
        tokens: word, char or byte, if the data are text: then losses show as perplexity too.
        metric: name of a measure of one's own, which `evaluate(val_NAME=...)` is given; it decides
            which evaluation is the best. By default that is error@1 if it is given, else the loss.
        metric_mode: min or max, which of a metric of one's own is better; default: min.
        checkpoint_every: steps between checkpoints; 0: at the ends of epochs and evaluations.
        keep: last; best, also the model of the best evaluation (best.pt); or all, also that of each
            (models/step-N.pt).
        log_every: steps between writes of steps.csv.
        log_layers: write layers.csv.
        quiet: print nothing.

    Raises `SettingError` for a folder that exists (unless `resume` or `overwrite`) or that another
    process is writing, and when resumed for other settings; `Diverged` at a loss that is not finite
    (unless `on_nonfinite` says otherwise), and `Interrupted` after Ctrl-C or SIGTERM, both from
    within the step or between two.
    """
    require_kind("folder", folder, str, Path)
    require_kind("simulator", simulator, Simulator)
    parts = simulator.components
    require(parts.hosts_all, "simulator", None, "runs in several processes", "record in one")
    rule, fix = "is in another recording already", "end that one first, or give another simulator"
    require(simulator.listener is None, "simulator", None, rule, fix)
    require(not (resume and overwrite), "overwrite", None, "and resume were both given", "give one")
    check_kept({} if state is None else state)
    config = loop_config(
        Path(folder),
        simulator,
        dataset=dataset,
        tokens=tokens,
        metric=metric,
        metric_mode=metric_mode,
        checkpoint_every=checkpoint_every,
        keep=keep,
        log_every=log_every,
        log_layers=log_layers,
        quiet=quiet,
    )
    run: Recording | None = None
    opened, goes_on = loop_folder(Path(folder), simulator, config, resume, overwrite)
    try:
        with stop_requests() as request:
            run = Recording(simulator, opened, config, state or {}, request)
            if goes_on:
                run._resume()
            else:
                for line in notes_of(simulator.components):
                    run.log(line)
            simulator.listen(run)
            try:
                yield run
            except BaseException as error:
                run._end_by(error)
                raise
            run._end()
    finally:
        if run is not None:
            run._ended = True
        simulator.listen(None)
        opened.close()
