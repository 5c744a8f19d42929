"""How well a model does on the validation split.

Letters: B samples of a batch.
"""

import itertools
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .config import Config
from .experiment import Experiment
from .runlog import load_checkpoint
from .settings import SettingError

_CHUNK = 1000  # samples at a time, the mean does not depend on it,
_PIXELS = 1 << 23  # or as many as have so many numbers


def wrong(output: Tensor, target: Tensor) -> Tensor:
    """Return how many of `output` [B, classes] miss `target` [B] with 1 and with 5 guesses, [2]."""
    ranked = output.topk(min(5, output.shape[1]), dim=1).indices  # [B, 5]
    hit = ranked == target.unsqueeze(1)
    return len(target) - torch.stack([hit[:, :1].sum(), hit.sum()])


@torch.no_grad()
def evaluate(experiment: Experiment, model: nn.Module) -> dict[str, float]:
    """Return loss, error1 and error5 (in percent) over the whole validation split."""
    split = experiment.dataset.val
    loss, missed = 0.0, torch.zeros(2)
    chunk = max(1, min(_CHUNK, _PIXELS // prod(experiment.dataset.input_shape)))
    for images, labels in split.batches(torch.arange(len(split)).split(chunk)):
        output = model(experiment.prepared(images, "eval"))
        loss += float(experiment.criterion(output, labels)) * len(labels)
        missed += wrong(output, labels).cpu()
    error1, error5 = (100 * missed.double() / len(split)).tolist()
    return {"loss": loss / len(split), "error1": error1, "error5": error5}


def evaluate_workers(experiment: Experiment) -> list[dict[str, float]]:
    """Return what `evaluate` says of each worker's own model, with its own statistics."""
    simulator = experiment.simulator
    return [
        evaluate(experiment, simulator.evaluation_model(worker=worker))
        for worker in range(experiment.config.workers)
    ]


@torch.no_grad()
def recalibrate_(experiment: Experiment, model: nn.Module, batches: int) -> None:
    """Estimate a model's BatchNorm statistics anew, as the mean over the first training batches.

    An average of models need not have the average of their statistics.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean
        norm.train()
    for x, _ in itertools.islice(experiment.epoch_batches(0), batches):
        model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def evaluate_checkpoint(path: Path, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return what `evaluate` says of the model in a checkpoint; `settings` override its own.

    Raises `SettingError` for a file that is no checkpoint, or no longer fits its model.
    """
    state = load_checkpoint(path, "checkpoint")
    try:
        config = Config.from_plain({**state["config"], **settings, "resume": None})
        experiment = Experiment.of(config)
        experiment.model.load_state_dict(state["model"])
    except (KeyError, RuntimeError) as cause:
        told = "does not fit its model any more"
        raise SettingError("checkpoint", str(path), told) from cause
    return evaluate(experiment, experiment.model.eval())
