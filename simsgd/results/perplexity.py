"""Perplexity, and bits per character or byte, of the loss of a language model."""

import math


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
