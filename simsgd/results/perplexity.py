"""Perplexity, and bits per character or byte, of the loss of a language model."""

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
    """Return the perplexity of a mean loss in nats: exp(loss)."""
    return math.exp(loss) if loss < 700 else math.inf


def bits(loss: float) -> float:
    """Convert a loss in nats into bits."""
    return loss / math.log(2)


def loss_in_words(loss: float, tokens: str) -> str:
    """Return a mean loss in nats in the usual terms, for text of words, chars or bytes.

    >>> loss_in_words(4.5, "word"), loss_in_words(1.2, "char")
    ('perplexity 90.02', 'perplexity 3.32 (1.731 bits per char)')
    """
    also = "" if tokens == "word" else f" ({bits(loss):.3f} bits per {tokens})"
    return f"perplexity {perplexity(loss):.2f}{also}"


def with_perplexity(epochs: "pd.DataFrame", tokens: str | None) -> "pd.DataFrame":
    """Return a table of epochs with those columns of `DERIVED` that are usual for such text."""
    shown = [c for c in DERIVED if tokens is not None and (tokens != "word" or "bits" not in c)]
    functions = {c: bits if "bits" in c else perplexity for c in shown}
    return epochs.assign(**{c: epochs[DERIVED[c]].map(functions[c]) for c in shown})
