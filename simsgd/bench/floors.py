"""Lower bounds: one plain forward and backward of all workers' samples.

A large batch may outgrow a processor's cache, so that it is also taken in W parts whose gradients
are added up. A language model with an LSTM of its own is set against torch.nn.LSTM as well.

Letters: W workers, b samples each, B = W * b, T tokens of a sample, V words of a vocabulary.
"""

import copy
from collections.abc import Callable, Sized

import torch
from torch import Tensor, nn

from .cases import Task, begun
from .timing import Work

PLAIN, PARTS, TORCHS = "plain", "plain in W parts", "plain nn.LSTM"


def floors(task: Task, step: bool = False) -> dict[str, Work]:
    """Return the floors by name; with `step`, each moves the parameters by momentum SGD too."""
    x, y = task.x, task.y
    whole = x.flatten(0, 1).unsqueeze(0), y.flatten(0, 1).unsqueeze(0)  # [1, B, ...]
    works = {
        PLAIN: _work(task, _copied(task.model, whole[0].shape[1]), *whole, step),
        PARTS: _work(task, _copied(task.model, x.shape[1]), x, y, step),
    }
    torchs = _torchs(task.model)
    if torchs is not None:
        works[TORCHS] = _work(task, torchs.to(x.device).train(), *whole, step)
    return works


def _work(task: Task, model: nn.Module, x: Tensor, y: Tensor, step: bool) -> Work:
    """Return the gradient of the mean loss, the sum of those of the parts of `x` [parts, ...]."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def gradient() -> list[Tensor]:
        total: list[Tensor] = []
        for part, target in zip(x, y, strict=True):
            loss = task.criterion(model(part), target) / len(x)
            found = torch.autograd.grad(loss, parameters)
            total = [a.add_(b) for a, b in zip(total, found, strict=True)] if total else [*found]
        return total

    def moved() -> None:
        for parameter, grad in zip(parameters, gradient(), strict=True):
            parameter.grad = grad
        optimizer.step()

    chosen: Callable[[], object] = moved if step else gradient
    return chosen


def _copied(model: nn.Module, samples: int) -> nn.Module:
    return begun(copy.deepcopy(model), samples)


def _torchs(model: nn.Module) -> nn.Module | None:
    """Return the same language model made of torch.nn.LSTM; None for any other model."""
    layers: Sized | None = getattr(model, "layers", None)
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    if not tables or not hasattr(model, "carried") or layers is None:
        return None
    words, inputs = tables[0].weight.shape
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    tied = last.weight is tables[0].weight
    return _TorchsLSTM(words, inputs, last.in_features, len(layers), tied)


class _TorchsLSTM(nn.Module):
    """Embedding, torch.nn.LSTM and decoder."""

    def __init__(self, words: int, inputs: int, units: int, layers: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, inputs)
        self.inner = nn.LSTM(inputs, units, layers, batch_first=True)
        self.decoder = nn.Linear(units, words)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores [b, T, V] of `tokens` [b, T]."""
        scores: Tensor = self.decoder(self.inner(self.embedding(tokens))[0])
        return scores
