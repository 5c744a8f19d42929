"""Makes or opens the folder of a run, which rank zero writes and the others know."""

from ..communication.transport import broadcast_object, is_rank_zero
from ..settings import SettingError
from .environment import environment
from .experiment import Experiment
from .run_folder import RunFolder
from .run_names import default_name
from .used_settings import used_settings


def shared_folder(experiment: Experiment) -> RunFolder:
    """Return the run's folder, which the first of the processes makes and writes."""
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
    noise = experiment.config.noise_scale
    return RunFolder(path, writes=False, metric=experiment.metric.shown, noise=noise)


def _folder(experiment: Experiment) -> RunFolder:
    config = experiment.config
    plain = {
        **config.plain(),
        "resume": None,
        "environment": environment(config.device),
        "used": used_settings(experiment),
    }
    if config.resume is not None:
        folder = RunFolder.resume(config.resume)
        folder.write_config({**plain, "name": folder.name})
        return folder
    name = config.name or default_name(plain, config.runs_dir)
    return RunFolder.create(config.runs_dir, name, {**plain, "name": name}, config.overwrite)
