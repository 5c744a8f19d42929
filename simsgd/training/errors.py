"""Errors that end a run early; each says in one line how to continue."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..communication.transport import RankLost
from ..config import Config
from ..gradients.contract import GradientEngine
from ..gradients.dropout import KeyedDropout
from ..gradients.folded_pass import FoldedPass
from ..registry import own_line
from ..results.atomic_files import NotWritten
from ..settings import SettingError, one_line
from .run_folder import RunFolder

_CALLERS = {  # of models and losses, and of what these call
    call.__code__
    for call in (
        GradientEngine.output,
        GradientEngine.loss,
        FoldedPass._losses,
        KeyedDropout.__torch_function__,
    )
}


class Diverged(RuntimeError):
    """A number became NaN or infinite; the last good checkpoint was kept."""

    exit_code = 3


class Unwritten(NotWritten):
    """The run's folder, or the disk under it, cannot be written; the last checkpoint is intact."""

    def __init__(self, wrong: NotWritten, advice: str) -> None:
        OSError.__init__(self, f"{wrong}; {advice}")
        self.path, self.strerror = wrong.path, wrong.strerror


class OutOfMemory(RuntimeError):
    """The device is out of memory; the last good checkpoint is intact."""

    exit_code = 6


@contextlib.contextmanager
def explained_errors(run: RunFolder, config: Config) -> Iterator[None]:
    """Tell how to go on with a run if its disk, its device or another process fails.

    A run that is refused before anything of it was written leaves nothing.
    """
    try:
        yield
    except RankLost as lost:
        go_on = f"continue from its last checkpoint with: simsgd train --resume {run.folder}"
        raise RankLost(f"{lost}; {go_on}") from lost
    except torch.OutOfMemoryError as wrong:
        text = f"out of memory on {config.device}: {_relief(config)}; {_after_failure(run)}"
        raise OutOfMemory(text) from wrong
    except NotWritten as wrong:
        raise Unwritten(wrong, _after_failure(run)) from wrong
    except SettingError:
        run.forget_unwritten()
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as wrong:
        if own_line(wrong):
            run.forget_unwritten()
            raise
        if not _of_model_or_loss(wrong):
            raise
        run.forget_unwritten()
        rule = f"fails in training: {type(wrong).__name__}: {one_line(wrong)}"
        raise SettingError("model", str(config.model), rule, _after_failure(run)) from wrong


def last_good(folder: Path) -> str:
    """Return where the last good checkpoint is."""
    last = folder / "last.pt"
    return f"the last good checkpoint is {last}" if last.exists() else "nothing was saved yet"


def require_finite(model: Mapping[str, Tensor], step: int, run: RunFolder) -> None:
    """Raise `Diverged` for a model that must not become the last good checkpoint."""
    for name, value in model.items():
        if not value.isfinite().all():
            told = f"{name} of the model is not finite after step {step}; {last_good(run.folder)}"
            run.log(told)
            raise Diverged(told)


def _of_model_or_loss(wrong: BaseException) -> bool:
    """Return whether torch raised this in what a model or a loss called."""
    frames = [frame for frame, _ in traceback.walk_tb(wrong.__traceback__)]
    ours = [f.f_code for f in frames if f.f_globals.get("__name__", "").startswith("simsgd.")]
    return bool(ours) and ours[-1] in _CALLERS


def _after_failure(run: RunFolder) -> str:
    folder = run.folder
    if run.fresh:
        return "nothing of the run was kept"
    if not folder.is_dir():
        return "nothing of the run is left there"
    return f"{last_good(folder)}; to continue: simsgd train --resume {folder}"


def _relief(config: Config) -> str:
    from .memory_use.advice import relief  # here: the estimate lies above what it estimates

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return relief(config)
