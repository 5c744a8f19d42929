"""Estimates the BatchNorm statistics of an averaged model again, on training batches."""

import itertools

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .experiment import Experiment


@torch.no_grad()
def recalibrate_(experiment: Experiment, model: nn.Module, batches: int) -> None:
    """Estimate a model's BatchNorm statistics again, as the mean over the first training batches.

    An average of models need not have the average of their statistics. Layers that evaluate in
    training too keep theirs.
    """
    frozen = experiment.simulator.components.mode.evaluating
    norms = [
        module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and name not in frozen
    ]
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
