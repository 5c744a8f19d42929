"""Compression both ways without a server: each worker serves a W-th of the entries.

Letters: W workers, L hosted here, n elements of one segment, c = ceil(n / W) of a chunk.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...communication.messages import Dense, Message, State
from ...settings import SettingError
from ..compressors import Compressor, Quantizer
from .contract import ExchangeContext


def chunk_state(x: Tensor, workers: int) -> State:
    """Return what W `workers` like `x` [L, n] leave out, and what their chunks do, [L, c]."""
    chunk = x.new_zeros(len(x), -(-x.shape[1] // workers))
    return {"residual": torch.zeros_like(x), "served": chunk}


def mean_both_ways(
    compensated: Tensor, context: ExchangeContext, state: State
) -> tuple[Message, Tensor]:
    """Send what workers have with their residuals, `compensated` [L, n], and chunks of the mean.

    Each worker takes the mean of its chunk, which an all-to-all brings it, adds what it left out
    before, and sends it compressed to all. Returns the messages as they arrive, and what all then
    know, [n].
    """
    message = context.compress(compensated)
    sent, mean = context.channel.all_to_all_mean(message, context.segment)
    state["residual"].copy_(compensated)
    sent.subtract_from_(state["residual"])
    return sent, _served(mean, context, state)


def check_quantizer(compressor: Compressor, name: str) -> None:
    """Raise `SettingError` for a compressor that does not send every entry in few bits."""
    if compressor.compresses and not isinstance(compressor, Quantizer):
        rule = f"must be a quantizer with algorithm {name}, which a server's chunk needs too"
        raise SettingError("compressor", None, rule, "use sign:rms")


def _served(mean: Tensor, context: ExchangeContext, state: State) -> Tensor:
    """Return what the workers' chunks of `mean` [n] come to when each has sent its own, [n]."""
    n, size, workers = len(mean), state["served"].shape[1], context.workers
    chunks = F.pad(mean, (0, workers * size - n)).view(workers, size)
    served = state["served"].add_(chunks[context.channel.hosted])  # [L, c]
    begins = torch.arange(workers, device=mean.device)[context.channel.hosted] * size
    counts = (n - begins).clamp(0, size)  # [L]
    message = _chunk_message(served, counts, context)
    sent, rows = context.channel.all_gather(message, context.segment)
    sent.subtract_from_(served)
    return rows.flatten()[:n]


def _chunk_message(served: Tensor, counts: Tensor, context: ExchangeContext) -> Message:
    compressor, step = context.compressor, context.step.with_key("served")
    if isinstance(compressor, Quantizer):
        return compressor.quantize(served, counts, {}, step)
    return Dense(served.clone(), served.dtype, counts)
