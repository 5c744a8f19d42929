"""Joins the processes of a run that torchrun started, and checks that they agree."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import torch

from .. import __version__
from ..communication.transport import (
    Distributed,
    all_gather_object,
    is_initialized,
    is_torchrun,
    launched_group,
    launched_number,
    odd_rank,
    restarts,
)
from ..config import Config
from ..results.config_values import PER_RANK
from ..settings import SettingError, require

_PATIENCE = 30.0  # seconds that one rank waits for another
_SOON = 3.0  # after which it says so
_NUMBERS = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE")


@contextmanager
def joined_transport(config: Config) -> Iterator[Distributed | None]:
    """Be one of torchrun's processes, each with a part of the workers; None without torchrun.

    Raises `SettingError` if the ranks were asked for different things, or do not divide the
    workers.
    """
    if is_initialized():
        yield _agreed(config)
    elif is_torchrun():
        local, here, rank, ranks = map(launched_number, _NUMBERS)
        require(rank < ranks, "RANK", rank, f"must be below WORLD_SIZE, {ranks}")
        own_gpu = config.device != "cpu" and torch.cuda.device_count() >= here
        if own_gpu:
            torch.cuda.set_device(local)
        waiting = Timer(_SOON, _tell_waiting, (ranks,))
        waiting.start()
        try:
            joined = launched_group("nccl" if own_gpu else "gloo", _PATIENCE)
        finally:
            waiting.cancel()
        with joined:
            yield _agreed(config)
    else:
        yield None


def _tell_waiting(ranks: int) -> None:
    """Say what this process waits for, as it does where torchrun did not start the others."""
    waits = f"waits up to {_PATIENCE:.0f} s for all {ranks} processes of torchrun (WORLD_SIZE)"
    fix = "to train in this one alone, unset TORCHELASTIC_RUN_ID"
    print(f"simsgd: {waits}; {fix}", file=sys.stderr, flush=True)


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
    if (odd := odd_rank(everyone)) is not None:
        name, rank = odd
        told = f"is {everyone[rank][name]} on rank {rank} and {everyone[0][name]} on rank 0"
        raise SettingError(name, None, told, "start every rank alike")
    return Distributed(config.workers, partial_sums=True)
