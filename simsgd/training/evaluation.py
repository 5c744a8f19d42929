"""Measures loss and metrics of a model on the validation split."""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..catalog import begin_texts
from ..gradients.contract import carried
from ..gradients.trees import Tree
from ..settings import require
from .data import Text, in_order
from .totals import Measures

if TYPE_CHECKING:
    from .experiment import Experiment

_CHUNK = 1000  # samples at a time, the mean does not depend on it,
_CHUNK_ON_CPU = 125  # with a cache that more would outgrow,
_PIXELS = 1 << 23  # or as many as have so many numbers


@torch.no_grad()
def evaluate(experiment: "Experiment", model: nn.Module, part: str = "val") -> Measures:
    """Return loss, errors (in percent) and metric over the whole validation split.

    Of a text these are means over tokens, of pictures to be labeled over pixels; `part` may be
    "test" of a text.
    """
    loss, sums = 0.0, torch.zeros(4, dtype=torch.float64)
    for x, y in evaluation_batches(experiment, model, part):
        output = model(x)
        lost = float(experiment.criterion(output, y))  # before a metric changes the output in place
        own = experiment.metric.sums(output, y).cpu()
        if own[3] > 0:  # else the loss is a mean of nothing
            loss += lost * float(own[3])
            sums += own
    counted = float(sums[3])
    error1, error5 = (100 * sums[:2] / counted).tolist()
    return {
        "loss": loss / counted,
        "error1": error1,
        "error5": error5,
        "metric": float(sums[2]) / counted,
    }


def evaluation_batches(
    experiment: "Experiment", model: nn.Module, part: str
) -> Iterator[tuple[Tree, Tree]]:
    """Return what a model in evaluation mode gets of a part of the data, and what is right."""
    dataset = experiment.dataset
    if isinstance(dataset, Text):
        assert experiment.config.bptt is not None
        columns, batches = in_order(getattr(dataset, part), experiment.config.bptt)
        if carried(model):
            begin_texts(model, columns)
        yield from batches
        return
    rule = f"cannot be {part} with {dataset.name}, which has no such part"
    require(part == "val", "part", None, rule, "leave it out")
    chunk = chunk_size(dataset.input_shape, experiment.config.device)
    for x, y in dataset.val.batches(torch.arange(len(dataset.val)).split(chunk)):
        yield experiment.prepared(x, "eval"), experiment.typed(y)


def chunk_size(input_shape: tuple[int, ...] | None, device: str) -> int:
    """Return how many samples are evaluated at a time."""
    most = _CHUNK_ON_CPU if device == "cpu" else _CHUNK
    return max(1, min(most, _PIXELS // prod(input_shape or (1,))))


def evaluate_workers(experiment: "Experiment") -> list[Measures]:
    """Return what `evaluate` says of each worker's own model, with its own statistics."""
    simulator = experiment.simulator
    return [
        evaluate(experiment, simulator.evaluation_model(worker=worker))
        for worker in range(experiment.config.workers)
    ]
