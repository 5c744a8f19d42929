"""CIFAR by half a cosine: up to 0.1 in five epochs, then down to 0 at the end, 200 by default.

lr(t) = 0.1 t / 5 up to t = 5 epochs, then 0.1 (1 + cos(pi (t - 5) / (E - 5))) / 2 of E epochs, at
every step.
Loshchilov, Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017,
https://arxiv.org/abs/1608.03983
"""

import math
from collections.abc import Callable
from typing import Any

epochs = 200

_PEAK, _WARMUP = 0.1, 5  # lr, epochs


def schedule(epochs: int, batches: int, steps: int) -> dict[int, dict[str, Any]]:
    """Return the regime of a run of `steps` steps, `batches` of them an epoch."""
    return {
        0: {
            "optimizer": "SGD",
            "lr": _cosine(steps / batches, batches),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "nesterov": True,
        }
    }


def _cosine(epochs: float, batches: int) -> Callable[[int, int], float]:
    warmup = min(_WARMUP, epochs // 2)

    def lr(epoch: int, step: int) -> float:
        done = step / batches  # in epochs
        if done < warmup:
            return _PEAK * done / warmup
        turned = math.pi * min(1.0, (done - warmup) / (epochs - warmup))
        return _PEAK * (1 + math.cos(turned)) / 2

    return lr
