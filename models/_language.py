"""What language models share: their loss, and how they are told from models of images.

Letters: b streams of T tokens, V words of the vocabulary.
"""

from torch import Tensor
from torch.nn import functional

_MOST_LAYERS = 1000
_LARGEST = 1 << 20


def token_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over tokens of -log p(target), in nats: `output` [b, T, V], `target` [b, T].

    Its exponential is the perplexity.
    """
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def require_text(name: str, input_shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless a sample is a stretch of T tokens, of shape (T,)."""
    if len(input_shape) != 1:
        raise ValueError(f"{name} takes text, T tokens in a row, not images of {input_shape}")


def require_sizes(**sizes: object) -> None:
    """Raise `ValueError` unless each is a whole number of at least 1, and no endless one."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {size}")
        most = _MOST_LAYERS if name == "layers" else _LARGEST
        if size > most:
            raise ValueError(f"{name} must be at most {most:,}, not {size}")


def require_dropout(dropout: float) -> None:
    """Raise `ValueError` unless `dropout` is a probability below 1."""
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), not {dropout}")
