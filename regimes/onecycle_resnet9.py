"""CIFAR-10 in 24 epochs: up to 0.4 in five epochs and straight down to 0, for `resnet9`.

lr(t) goes through (0, 0), (5, 0.4), (E, 0) in epochs, at every step, for a batch of 512.
Page, "How to Train Your ResNet", 2018, https://myrtle.ai/learn/how-to-train-your-resnet/, there
with the sum of losses, lr / 512 and 512 times the weight decay, which is the same.
"""

from collections.abc import Callable
from typing import Any

epochs = 24
batch = 512

_PEAK, _RISE = 0.4, 5  # lr, epochs


def schedule(epochs: int, batches: int, steps: int) -> dict[int, dict[str, Any]]:
    """Return the regime of a run of `steps` steps, `batches` of them an epoch."""
    return {
        0: {
            "optimizer": "SGD",
            "lr": _cycle(steps / batches, batches),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "nesterov": True,
        }
    }


def _cycle(epochs: float, batches: int) -> Callable[[int, int], float]:
    rise = min(_RISE, epochs / 2)

    def lr(epoch: int, step: int) -> float:
        done = step / batches  # in epochs
        if done < rise:
            return _PEAK * done / rise
        return _PEAK * max(0.0, (epochs - done) / (epochs - rise))

    return lr
