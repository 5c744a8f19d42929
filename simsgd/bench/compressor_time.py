"""Times the compression of one worker's gradient.

Letters: n elements of one segment.
"""

from collections.abc import Mapping, Sequence

import torch

from ..communication.ledger import Ledger
from ..communication.segments import Layout
from ..communication.transport import Channel, InProcess
from ..communication.wire import Wire
from ..keyed_random import RandomKey, derived
from ..methods.algorithms import AllReduce, ExchangeContext
from ..methods.compressors import StepInfo, composed
from ..recipe import Recipe
from ..training.devices import device_of
from .timing import taking_turns

_ROUNDS = 2


def seconds_to_compress(
    shapes: Mapping[str, Sequence[int]], recipe: Recipe, dtype: str = "float32", device: str = "cpu"
) -> float:
    """Return the least seconds of a few in which a worker compresses and decodes its segments.

    `shapes` are those of the parameters, {name: shape}. The gradient is a normal draw. What is
    sent whole costs nothing. Raises `SettingError` for settings that do not go together.
    """
    device, own = device_of(device), getattr(torch, dtype)
    torch_shapes = {name: torch.Size(shape) for name, shape in shapes.items()}
    layout = Layout.of(torch_shapes, recipe.granularity, recipe.rule, own.itemsize)
    channel = Channel(InProcess(), Ledger(1), Wire(recipe.value_dtype, recipe.index_dtype))
    exchange = AllReduce(recipe.aggregate)
    worker = torch.zeros(1, dtype=torch.int64, device=device)
    base = RandomKey(recipe.seed, worker)
    whole = composed(recipe.compressor or "none")
    contexts = []
    for segment in (segment for segment in layout.segments if not segment.dense):
        generator = torch.Generator(device).manual_seed(derived(recipe.seed, segment.name))
        gradient = torch.randn(1, segment.n, generator=generator, dtype=own, device=device)
        compressor = whole.for_shape(segment.shape)
        state = compressor.init(gradient)
        squares = torch.ones_like(gradient) if compressor.needs_squares else None
        key = base.fold_in(0, segment.name)
        info = StepInfo(key, segment=segment.name, gradient=gradient, squares=squares)
        contexts.append((gradient, ExchangeContext(compressor, state, info, segment, channel)))

    def compress() -> None:
        for gradient, context in contexts:
            exchange.gradients(gradient, context)
        channel.ledger.transfers.clear()

    return min(taking_turns({"compress": compress}, device, _ROUNDS)["compress"])
