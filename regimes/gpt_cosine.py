"""AdamW for a GPT: a warm-up to 1e-3, then half a cosine down to a tenth of it; 10 epochs.

What has one dimension does not decay. The warm-up takes 100 steps, or a tenth of the run if that is
less.
Karpathy, nanoGPT, config/train_shakespeare_char.py, https://github.com/karpathy/nanoGPT

Differs from it: the first moment's coefficient is 0.9 and the second's 0.95, as of its GPT-2.
"""

import math
from collections.abc import Callable
from typing import Any

epochs = 10

_PEAK, _LEAST, _WARMUP = 1e-3, 1e-4, 100  # lr, lr, steps


def schedule(epochs: int, batches: int, steps: int) -> dict[int, dict[str, Any]]:
    """Return the regime of a run of `steps` steps."""
    return {
        0: {
            "optimizer": "AdamW",
            "lr": _cosine(steps),
            "betas": (0.9, 0.95),
            "weight_decay": 0.1,
            "param_groups": "no_decay_1d",
        }
    }


def _cosine(steps: int) -> Callable[[int, int], float]:
    warmup = max(1, min(_WARMUP, steps // 10))

    def lr(epoch: int, step: int) -> float:
        if step < warmup:
            return _PEAK * (step + 1) / warmup
        turned = math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))
        return _LEAST + (_PEAK - _LEAST) * (1 + math.cos(turned)) / 2

    return lr
