"""PTB by plain SGD: a rate of 20, a quarter of it after every epoch that does not improve.

An epoch improves if its validation loss is below that of all before it. The averaged gradient is
clipped to a norm of 0.25; with a memory, `--clip` clips each worker's own before it.
It is that of PyTorch's word language model, examples/word_language_model.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def regime(epoch: int, step: int, results: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the settings after `results`, one {"val_loss": ...} for each epoch that ended."""
    best, worse = float("inf"), 0
    for result in results:
        if result["val_loss"] < best:
            best = result["val_loss"]
        else:
            worse += 1
    return {
        "optimizer": "SGD",
        "lr": 20 / 4**worse,
        "regularizer": {"name": "GradClip", "value": 0.25},
    }


epochs = 40
batch = 20
