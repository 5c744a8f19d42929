"""X."""

from typing import Any

from .compressors.grace import Grace


def grace(compressor: Any, memory: Any = None) -> Grace:
    """Return an object with GRACE's interface as a compressor.

    `compressor` has compress(tensor, name) -> (tensors, ctx) and decompress(tensors, ctx);
    `memory`, if there is one, compensate(tensor, name) and update(tensor, name, compressor,
    tensors, ctx). Each worker gets a copy of its own; of a class, an instance.

    >>> class Half:
    ...     def compress(self, tensor, name):
    ...         return [tensor.half()], tensor.dtype
    ...     def decompress(self, tensors, ctx):
    ...         return tensors[0].to(ctx)
    >>> grace(Half()).probe((2, 5)).payload_bytes()
    tensor([20])
    """
    return Grace(compressor, memory)
