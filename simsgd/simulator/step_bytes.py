"""Counts what a step would put on the network, from nothing but the shapes of the parameters.

The real exchange runs once for each segment, on one worker's gradient drawn from the normal
distribution, and its ledger is read: what is counted are the buffers of real messages.

Letters: W workers, b samples each, n elements of one segment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..communication.ledger import Ledger, Transfer
from ..communication.messages import Message
from ..communication.messages.contract import term
from ..communication.segments import Layout, Segment
from ..communication.transport import Channel, InProcess
from ..communication.wire import Wire
from ..config import Config, worker_batches
from ..keyed_random import RandomKey, derived
from ..methods.algorithms import AllReduce, ExchangeContext
from ..methods.compressors import Compressor, StepInfo, composed
from ..methods.compressors.none import NoCompression
from ..recipe import Recipe
from ..results.tables import ratio
from ..settings import SettingError, kept, require
from .model_shapes import shapes_of
from .step_settings import check_use

_BEGUN = 1_000_000  # an even step, so late that a method which begins late has begun
_PROBE = torch.Size([256, 512])  # of a segment on which it is tried whether sizes vary


@dataclass(frozen=True)
class Sent:
    """What one collective carries of one segment."""

    collective: str  # all-reduce, all-gather, gather or broadcast
    direction: str  # up: from the workers; down: to them
    payload_bytes: int  # of one worker's buffer
    network_bytes: int  # of all workers together
    words: str  # the arithmetic of the payload


@dataclass(frozen=True)
class SegmentSize:
    """The bytes of one segment in one step."""

    name: str
    shape: tuple[int, ...]
    elements: int  # n
    compressed: bool
    dense_bytes: int  # of one worker's uncompressed gradient
    sent: tuple[Sent, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes that one worker sends."""
        return sum(sent.payload_bytes for sent in self.sent if sent.direction == "up")

    @property
    def downlink_bytes(self) -> int:
        """Bytes that one worker receives from a server."""
        return sum(sent.payload_bytes for sent in self.sent if sent.direction == "down")


@dataclass(frozen=True)
class Sizes:
    """The bytes of a step, by segment; and of an epoch, where its steps are known."""

    compressor: str
    workers: int
    tensors: int
    varies: str  # with the gradient, with the step, or not: ""
    segments: tuple[SegmentSize, ...]
    steps: int | None = None  # in an epoch
    model: str = "model"

    @property
    def elements(self) -> int:
        """Elements of all segments."""
        return sum(segment.elements for segment in self.segments)

    @property
    def payload_bytes(self) -> int:
        """Bytes that one worker sends in a step."""
        return sum(segment.payload_bytes for segment in self.segments)

    @property
    def downlink_bytes(self) -> int:
        """Bytes that one worker receives from a server."""
        return sum(segment.downlink_bytes for segment in self.segments)

    @property
    def dense_bytes(self) -> int:
        """Bytes of one worker's uncompressed gradient."""
        return sum(segment.dense_bytes for segment in self.segments)

    @property
    def ratio(self) -> float:
        """Dense bytes over payload bytes."""
        return ratio(self.dense_bytes, self.payload_bytes)

    @property
    def network_bytes(self) -> dict[str, int]:
        """Bytes that all workers together put on the network in a step, by collective."""
        carried: dict[str, int] = {}
        for sent in (sent for segment in self.segments for sent in segment.sent):
            carried[sent.collective] = carried.get(sent.collective, 0) + sent.network_bytes
        return carried

    def summary(self, per_layer: bool = False, explain: bool = False) -> str:
        """Return the totals, with a line for each segment, and its arithmetic, where asked for."""
        from .step_bytes_report import bill

        return bill(self, per_layer, explain)

    def plain(self) -> dict[str, object]:
        """Return all of it as JSON takes it."""
        totals = {
            "payload_bytes": self.payload_bytes,
            "downlink_bytes": self.downlink_bytes,
            "dense_bytes": self.dense_bytes,
        }
        return {
            "compressor": self.compressor,
            "workers": self.workers,
            "parameters": self.elements,
            "tensors": self.tensors,
            "varies": self.varies,
            "ratio": self.ratio,
            "step": {**totals, "network_bytes": self.network_bytes},
            "epoch": None if self.steps is None else self._of_epoch(totals, self.steps),
            "segments": [_plain(segment) for segment in self.segments],
        }

    def _of_epoch(self, totals: dict[str, int], steps: int) -> dict[str, object]:
        carried = {name: number * steps for name, number in self.network_bytes.items()}
        whole = {name: number * steps for name, number in totals.items()}
        return {"steps": steps, **whole, "network_bytes": carried}


def sizes(shapes: Mapping[str, Sequence[int]], dtype: str = "float32", **settings: object) -> Sizes:
    """Return the bytes of a step for parameters {name: shape}; settings are those of `Recipe`.

    A method whose sizes follow the gradient is measured on one normal draw; `varies` says so.
    `prune` is what it is after the warm-up.

    >>> sizes({"weight": (10, 20), "bias": (10,)}, compressor="topk:0.1").payload_bytes
    200

    Raises `SettingError` for settings that do not go together, and for another exchange than
    all-reduce without a downlink: who exchanges with whom, and when, is not in the shapes.
    """
    recipe, own = Recipe.of(settings), getattr(torch, dtype)
    _check_exchange(recipe)
    spec = f"topk:{kept(recipe.prune)}" if recipe.prune else recipe.compressor or "none"
    compressor = composed(spec)
    AllReduce(recipe.aggregate).check_compressor(compressor)
    check_use(recipe, compressor.compresses)
    torch_shapes = {name: torch.Size(shape) for name, shape in shapes.items()}
    layout = Layout.of(torch_shapes, recipe.granularity, recipe.rule, own.itemsize)
    return Sizes(
        compressor=spec,
        workers=recipe.workers,
        tensors=len(shapes),
        varies=_varies(compressor, recipe),
        segments=tuple(_size(segment, compressor, recipe, own) for segment in layout.segments),
    )


def _check_exchange(recipe: Recipe) -> None:
    fix = "train a step and read payload_bytes in its steps.csv"
    if recipe.algorithm != "allreduce":
        rule = "cannot be counted from shapes alone: they do not show who exchanges with whom"
        raise SettingError("algorithm", recipe.algorithm, rule, fix)
    if recipe.downlink is not None:
        rule = "cannot be counted from shapes alone: its size depends on what all workers send"
        raise SettingError("downlink", recipe.downlink, rule, fix)


def bytes_of(
    *,
    samples: int | None = None,
    num_classes: int | None = None,
    input_shape: str | None = None,
    **settings: object,
) -> Sizes:
    """Return the bytes of a step for a model, and of an epoch of so many samples, without training.

    `settings` are those of `train` that concern a message. `input_shape` is such as "3x32x32"; what
    is left out is the model's default. Raises `SettingError` as `sizes` does.
    """
    config = Config.of(settings)
    model = config.model or "lenet"
    shapes = shapes_of(model, config.model_config, num_classes, input_shape)
    recipe = config.recipe()
    own = {name: getattr(recipe, name) for name in Recipe.__dataclass_fields__}
    steps = None
    if samples is not None:
        require(samples >= 1, "samples", samples, "must be at least 1")
        steps = worker_batches(samples, config.workers, config.worker_batch)
    return replace(sizes(shapes, config.dtype, **own), steps=steps, model=model)


def _size(
    segment: Segment, compressor: Compressor, recipe: Recipe, dtype: torch.dtype
) -> SegmentSize:
    generator = torch.Generator().manual_seed(derived(recipe.seed, "sizing", segment.name))
    gradient = torch.randn(1, segment.n, generator=generator, dtype=dtype)
    return SegmentSize(
        name=segment.name,
        shape=segment.shape,
        elements=segment.n,
        compressed=not segment.dense and compressor.compresses,
        dense_bytes=segment.n * dtype.itemsize,
        sent=_sent(segment, compressor, recipe, gradient),
    )


def _sent(
    segment: Segment, compressor: Compressor, recipe: Recipe, gradient: Tensor, step: int = _BEGUN
) -> tuple[Sent, ...]:
    """Return what is sent of one worker's `gradient` [1, n]."""
    wire = Wire(recipe.value_dtype, recipe.index_dtype)
    words: list[str] = []

    def explain(transfer: Transfer, message: Message | None) -> None:
        if message is None:  # the outcome of a vote
            words.append(term(segment.n, "vote", "votes", 1, "bit"))
        else:
            words.append(message.explained(0))

    channel = Channel(InProcess(), Ledger(recipe.workers), wire, [explain])
    own = NoCompression() if segment.dense else compressor.for_shape(segment.shape)
    state = own.init(gradient)
    own.skip_to(step, state)
    key = RandomKey(recipe.seed, torch.zeros(1, dtype=torch.int64)).fold_in(step, segment.name)
    squares = torch.ones_like(gradient) if own.needs_squares else None
    info = StepInfo(key, step, segment=segment.name, gradient=gradient, squares=squares)
    context = ExchangeContext(own, state, info, segment, channel)
    AllReduce(recipe.aggregate).gradients(gradient, context)
    explained = zip(channel.ledger.transfers, words, strict=True)
    return tuple(_priced(transfer, recipe.workers, text) for transfer, text in explained)


def _priced(transfer: Transfer, workers: int, words: str) -> Sent:
    whole = replace(transfer, payload=transfer.payload.expand(workers))
    return Sent(
        collective=transfer.collective,
        direction=transfer.direction,
        payload_bytes=int(transfer.payload),
        network_bytes=int(whole.on_network(workers)),
        words=words,
    )


def _varies(compressor: Compressor, recipe: Recipe) -> str:
    """Return what changes the sizes of a segment: gradient, step or nothing."""
    segment = Segment("probe", ("probe",), (_PROBE,), dense=False)
    generator = torch.Generator().manual_seed(derived(recipe.seed, "sizing"))
    gradient = torch.randn(1, segment.n, generator=generator)
    sent = _sent(segment, compressor, recipe, gradient)
    others = {
        "gradient": _sent(segment, compressor, recipe, torch.zeros_like(gradient)),
        "step": _sent(segment, compressor, recipe, gradient, _BEGUN + 1),
    }
    return next((why for why, other in others.items() if _bytes(other) != _bytes(sent)), "")


def _bytes(sent: Sequence[Sent]) -> list[int]:
    return [each.payload_bytes for each in sent]


def _plain(segment: SegmentSize) -> dict[str, object]:
    return {
        "name": segment.name,
        "shape": list(segment.shape),
        "elements": segment.elements,
        "compressed": segment.compressed,
        "payload_bytes": segment.payload_bytes,
        "downlink_bytes": segment.downlink_bytes,
        "dense_bytes": segment.dense_bytes,
        "ratio": ratio(segment.dense_bytes, segment.payload_bytes),
        "sent": [dict(vars(sent)) for sent in segment.sent],
    }
