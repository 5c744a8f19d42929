"""Joins the processes of a run that torchrun started, and checks that they agree."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .. import __version__
from ..communication.transport import (
    Distributed,
    all_gather_object,
    is_initialized,
    is_torchrun,
    launched_group,
    restarts,
)
from ..config import Config
from ..results.config_values import PER_RANK
from ..settings import SettingError, require

_PATIENCE = 30.0  # seconds that one rank waits for another


@contextmanager
def joined_transport(config: Config) -> Iterator[Distributed | None]:
    """Be one of torchrun's processes, each with a part of the workers; None without torchrun.

    Raises `SettingError` if the ranks were asked for different things, or do not divide the
    workers.
    """
    if is_initialized():
        yield _agreed(config)
    elif is_torchrun():
        local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        own_gpu = config.device != "cpu" and torch.cuda.device_count() >= here
        if own_gpu:
            torch.cuda.set_device(local)
        with launched_group("nccl" if own_gpu else "gloo", _PATIENCE):
            yield _agreed(config)
    else:
        yield None


def restarted_folder(config: Config) -> Path | None:
    """Return the folder of the run that torchrun starts anew after a rank died, if there is one.

    Raises `SettingError` where a restart could not find it again.
    """
    done, most = restarts()
    rule = "is needed with torchrun --max-restarts, so that a restart finds the run"
    require(not most or config.resume is not None or bool(config.name), "name", None, rule)
    if not done or config.name is None:
        return None
    folder = config.runs_dir / config.name
    return folder if (folder / "config.json").is_file() else None


def _agreed(config: Config) -> Distributed:
    plain = {name: value for name, value in config.plain().items() if name not in PER_RANK}
    everyone = all_gather_object({**plain, "torch": torch.__version__, "simsgd": __version__})
    for name in everyone[0]:
        for rank, other in enumerate(everyone):
            if other[name] != everyone[0][name]:
                told = f"is {other[name]} on rank {rank} and {everyone[0][name]} on rank 0"
                raise SettingError(name, None, told, "start every rank alike")
    return Distributed(config.workers, partial_sums=True)
