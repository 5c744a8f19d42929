"""Makes or opens the folder of a run, which rank zero writes and the others know."""

import sys

from ..communication.transport import broadcast_object, is_rank_zero
from ..results.tables import step_columns_of
from ..settings import SettingError
from .environment import environment
from .experiment import Experiment
from .run_folder import RunFolder
from .run_names import default_name
from .used_settings import used_settings


def shared_folder(experiment: Experiment) -> RunFolder:
    """Return the run's folder, which the first of the processes makes and writes.

    Raises `SettingError` for a model that the engine declines, before anything is made.
    """
    asked_for = not experiment.simulator.components.engine.chooses  # else it was tried by now
    if asked_for and experiment.config.resume is None:  # what refuses leaves an earlier run alone
        experiment.simulator.engine_for(*next(experiment.epoch_batches(0)))
    folder, refused = None, None
    if is_rank_zero():
        try:
            folder = _folder(experiment)
        except SettingError as error:
            refused = type(error), (error.name, error.value, error.rule, error.fix)
    own = None if folder is None else folder.folder
    path, refused = broadcast_object((own, refused))
    if refused is not None:
        kind, parts = refused
        raise kind(*parts)
    if folder is not None:
        return folder
    assert path is not None, "rank 0 has made a folder or refused to"
    columns, metric = step_columns_of(experiment.config.plain()), experiment.metric.shown
    return RunFolder(path, writes=False, metric=metric, step_columns=columns)


def go_on(experiment: Experiment, folder: RunFolder, epoch: int, evaluated: int) -> None:
    """Forget rows that came after the checkpoint, and write the settings from now on.

    Called once nothing can refuse to go on: until then the folder is as it was.
    """
    lost = folder.truncate(experiment.simulator.steps, epoch, evaluated)
    if lost and not experiment.config.quiet:
        print(f"simsgd: {lost}", file=sys.stderr)
    folder.write_config({**_plain(experiment), "name": folder.name})


def _folder(experiment: Experiment) -> RunFolder:
    config = experiment.config
    if config.resume is not None:
        return RunFolder.resume(config.resume)
    plain = _plain(experiment)
    name = config.name or default_name(plain, config.runs_dir)
    return RunFolder.create(config.runs_dir, name, {**plain, "name": name}, config.overwrite)


def _plain(experiment: Experiment) -> dict[str, object]:
    config = experiment.config
    return {
        **config.plain(),
        "resume": None,
        "environment": environment(config.device),
        "used": used_settings(experiment),
    }
