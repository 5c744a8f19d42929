"""Runs on text: their settings, and how well a language model does.

Letters: T tokens of a stretch.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

DERIVED = {  # columns that follow from a loss in nats
    "train_perplexity": "train_loss",
    "val_perplexity": "val_loss",
    "val_bits": "val_loss",
}


def perplexity(loss: float) -> float:
    """Return how many equally likely tokens a model wavers between, of its mean loss in nats."""
    return math.exp(loss) if loss < 700 else math.inf


def bits(loss: float) -> float:
    """Return a loss in bits, of one in nats."""
    return loss / math.log(2)


def told(loss: float, tokens: str) -> str:
    """Return a mean loss in nats as the field tells it, for text of words, chars or bytes.

    >>> told(4.5, "word"), told(1.2, "char")
    ('perplexity 90.02', 'perplexity 3.32 (1.731 bits per char)')
    """
    also = "" if tokens == "word" else f" ({bits(loss):.3f} bits per {tokens})"
    return f"perplexity {perplexity(loss):.2f}{also}"


def with_perplexity(epochs: "pd.DataFrame", tokens: str | None) -> "pd.DataFrame":
    """Return a table of epochs with the columns of `DERIVED` that the field tells of such text."""
    shown = [c for c in DERIVED if tokens is not None and (tokens != "word" or "bits" not in c)]
    how = {c: bits if "bits" in c else perplexity for c in shown}
    return epochs.assign(**{c: epochs[DERIVED[c]].map(how[c]) for c in shown})
