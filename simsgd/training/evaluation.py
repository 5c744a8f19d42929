"""Measures loss and errors of a model on the validation split.

Letters: B samples of a batch, T tokens of each where it is text, V classes or words.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor, nn

from ..catalog import begin_texts
from ..gradients.contract import carried
from ..settings import require
from .data import Text, in_order
from .experiment import Experiment
from .totals import Measures

_CHUNK = 1000  # samples at a time, the mean does not depend on it,
_CHUNK_ON_CPU = 125  # with a cache that more would outgrow,
_PIXELS = 1 << 23  # or as many as have so many numbers


def num_missed(output: Tensor, target: Tensor) -> Tensor:
    """Return how many of `target` [B, ...] are missed with 1 and with 5 guesses, [2].

    The guesses are the largest of `output` [B, ..., V]; of a single number, V = 1, that is class 1
    if it is positive and else class 0.
    """
    output, target = output.flatten(0, -2), target.flatten()
    if output.shape[1] == 1:
        output = torch.cat([-output, output], dim=1)
    ranked = output.topk(min(5, output.shape[1]), dim=1).indices  # [samples, 5]
    hit = ranked == target.unsqueeze(1)
    return len(target) - torch.stack([hit[:, :1].sum(), hit.sum()])


@torch.no_grad()
def evaluate(experiment: Experiment, model: nn.Module, part: str = "val") -> Measures:
    """Return loss, error1 and error5 (in percent) over the whole validation split.

    Of a text these are means over tokens, and `part` may be "test" too.
    """
    loss, missed, counted = 0.0, torch.zeros(2), 0
    for x, y in evaluation_batches(experiment, model, part):
        output = model(x)
        loss += float(experiment.criterion(output, y)) * y.numel()
        missed += num_missed(output, y).cpu()
        counted += y.numel()
    error1, error5 = (100 * missed.double() / counted).tolist()
    return {"loss": loss / counted, "error1": error1, "error5": error5}


def evaluation_batches(
    experiment: Experiment, model: nn.Module, part: str
) -> Iterator[tuple[Tensor, Tensor]]:
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
    for images, labels in dataset.val.batches(torch.arange(len(dataset.val)).split(chunk)):
        yield experiment.prepared(images, "eval"), labels


def chunk_size(input_shape: tuple[int, ...], device: str) -> int:
    """Return how many samples are evaluated at a time."""
    most = _CHUNK_ON_CPU if device == "cpu" else _CHUNK
    return max(1, min(most, _PIXELS // prod(input_shape)))


def evaluate_workers(experiment: Experiment) -> list[Measures]:
    """Return what `evaluate` says of each worker's own model, with its own statistics."""
    simulator = experiment.simulator
    return [
        evaluate(experiment, simulator.evaluation_model(worker=worker))
        for worker in range(experiment.config.workers)
    ]
