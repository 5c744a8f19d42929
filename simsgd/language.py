"""Runs on text: their settings, and how well a language model does.

Letters: T tokens of a stretch.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .settings import require, setting

if TYPE_CHECKING:
    import pandas as pd

TOKENS = ("word", "char", "byte")
BPTT = 35  # as in Zaremba et al., "Recurrent Neural Network Regularization", 2014
DERIVED = {  # columns that follow from a loss in nats
    "train_perplexity": "train_loss",
    "val_perplexity": "val_loss",
    "val_bits": "val_loss",
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a text is read; none of it has a meaning for other data."""

    tokens: str | None = setting(
        None,
        "text",
        "What a text is made of; default: word.",
        choices=TOKENS,
    )
    min_count: int | None = setting(
        None,
        "text",
        "Times that a word or character must occur in the training text to be known, else it is "
        "<unk>; default: 2 for words of pydoc and text:PATH, else 1.",
        unit="N",
    )
    bptt: int | None = setting(
        None,
        "text",
        f"Tokens T that each stream goes on by in a pass, and gradients go back; default: {BPTT}.",
        unit="T",
    )
    vary_bptt: bool = setting(
        False, "text", "Draw the tokens of each step anew, from T / 2 to 3 T / 2."
    )

    def _check_reading(self) -> None:
        for name in ("min_count", "bptt"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "must be at least 1")
        idle = self.min_count is not None and self.tokens == "byte"
        rule = "has no effect with tokens byte, which are all known"
        require(not idle, "min_count", self.min_count, rule, "leave it out")


def refuse_reading(config: Reading, dataset: str) -> None:
    """Raise `SettingError` for a setting of texts where the data are none."""
    for name in ("tokens", "min_count", "bptt", "vary_bptt"):
        value, idle = getattr(config, name), f"has no effect with {dataset}, which is no text"
        require(value is None or value is False, name, value, idle, "leave it out")


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
