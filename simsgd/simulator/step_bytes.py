"""Counts what a step would put on the network, from nothing but the shapes of the parameters.

The real exchange runs for each segment, see `probe_exchange`, on gradients drawn from the normal
distribution: what is counted are the buffers of real messages.

Letters: W workers, b samples each, n elements of one segment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..communication.node_bytes import WithinNodes
from ..communication.segments import Layout, Segment
from ..config import Config
from ..given_object import plain_arguments, with_objects
from ..methods.algorithms import Algorithm, AllReduce
from ..methods.compressors import Compressor, composed
from ..recipe import Recipe
from ..results.config_values import OF_BYTES, refuse_idle
from ..results.tables import ratio
from ..settings import SettingError, check_size, kept, require
from ..units import in_units
from .epoch_length import worker_batches
from .layer_compressors import in_words, layer_rules, specs_of
from .method_choice import algorithm_of, compressors_for
from .model_shapes import shapes_of
from .probe_exchange import Exchange, Sent, busiest
from .room import memory_of
from .step_settings import check_use

_COPIES = 3  # of a segment's gradients, at least: they, a model or a memory, and what is sent
_MOST_WORKERS = 1_000_000
_MOST_STEPS = 10_000  # of a round, which is gone through
_NOT_COUNTED = ("client_buffers", "inner_state", "local_epochs", "staleness")  # and told why
_OF_AN_EPOCH = ("batch_size", "global_batch_size", "accumulate")
_PROBE = torch.Size([256, 512])  # of a segment on which it is tried whether sizes vary


@dataclass(frozen=True)
class SegmentSize:
    """The bytes of one segment in one step."""

    name: str
    shape: tuple[int, ...]
    elements: int  # n
    compressed: bool
    dense_bytes: int  # of one worker's uncompressed gradient
    sent: tuple[Sent, ...]
    compressor: str = ""  # its spec, where layers have their own

    @property
    def payload_bytes(self) -> int:
        """Bytes that one worker sends; where workers differ, the one that sends most."""
        return busiest(self.sent)

    @property
    def downlink_bytes(self) -> int:
        """Bytes that one worker receives from a server."""
        return sum(sent.payload_bytes for sent in self.sent if sent.direction == "down")


@dataclass(frozen=True)
class Sizes:
    """The bytes of a step, by segment; and of an epoch, where its steps are known.

    Where workers exchange once in a round of several steps, or part of the model in each, the bytes
    are those of the round, and `step_payloads` says when a worker sends them.
    """

    compressor: str
    workers: int
    tensors: int
    varies: str  # with the gradient, with the step, or not: ""
    segments: tuple[SegmentSize, ...]
    steps: int | None = None  # in an epoch
    model: str = "model"
    step_payloads: tuple[int, ...] = (0,)  # bytes that a worker sends in each step of a round
    algorithm: str = "allreduce"
    layers: str = ""  # compressors of layers that have their own
    within: WithinNodes | None = None  # of a step, where workers are nodes of a cluster

    @property
    def period(self) -> int:
        """Steps of a round."""
        return len(self.step_payloads)

    @property
    def elements(self) -> int:
        """Elements of all segments."""
        return sum(segment.elements for segment in self.segments)

    @property
    def payload_bytes(self) -> int:
        """Bytes that one worker sends in a round: where workers differ, the most."""
        return sum(segment.payload_bytes for segment in self.segments)

    @property
    def downlink_bytes(self) -> int:
        """Bytes that one worker receives from a server in a round."""
        return sum(segment.downlink_bytes for segment in self.segments)

    @property
    def dense_bytes(self) -> int:
        """Bytes of one worker's uncompressed gradients in a round."""
        return self.period * sum(segment.dense_bytes for segment in self.segments)

    @property
    def received_bytes(self) -> int:
        """Bytes that reach one worker in a round, the mean."""
        return sum(sent.received_bytes for segment in self.segments for sent in segment.sent)

    @property
    def link_bytes(self) -> int:
        """Bytes on the busiest link in a round, one way in each collective."""
        return sum(sent.link_bytes for segment in self.segments for sent in segment.sent)

    @property
    def ratio(self) -> float:
        """Dense bytes over payload bytes."""
        return ratio(self.dense_bytes, self.payload_bytes)

    @property
    def network_bytes(self) -> dict[str, int]:
        """Bytes that all workers together put on the network in a round, by collective."""
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
            "received_bytes": self.received_bytes,
            "busiest_link_bytes": self.link_bytes,
        }
        return {
            "compressor": self.compressor,
            **({"compress_layers": self.layers} if self.layers else {}),
            "workers": self.workers,
            "parameters": self.elements,
            "tensors": self.tensors,
            "varies": self.varies,
            "algorithm": self.algorithm,
            "round": {"steps": self.period, "payload_bytes": list(self.step_payloads)},
            "ratio": self.ratio,
            "step": {**totals, "network_bytes": self.network_bytes},
            "epoch": None if self.steps is None else self._of_epoch(totals, self.steps),
            "segments": [_plain(segment) for segment in self.segments],
            **self._within(),
        }

    def _within(self) -> dict[str, object]:
        if self.within is None:
            return {}
        sent, received = list(self.within.sent), list(self.within.received)
        return {"within_node": {"sent_bytes": sent, "received_bytes": received}}

    def _of_epoch(self, totals: dict[str, int], steps: int) -> dict[str, object]:
        carried = {n: number * steps // self.period for n, number in self.network_bytes.items()}
        whole = {name: number * steps // self.period for name, number in totals.items()}
        return {"steps": steps, **whole, "network_bytes": carried}


def sizes(shapes: Mapping[str, Sequence[int]], dtype: str = "float32", **settings: object) -> Sizes:
    """Return the bytes of a step for parameters {name: shape}; settings are those of `Recipe`.

    A method whose sizes follow the gradient is measured on one normal draw; `varies` says so.
    `prune` is what it is after the warm-up.

    >>> sizes({"weight": (10, 20), "bias": (10,)}, compressor="topk:0.1").payload_bytes
    200

    Where workers exchange models, they are of a round of steps; where these send different numbers
    of bytes, of the one who sends most. Raises `SettingError` for settings that do not go together,
    and for a downlink and a server that waits for nobody: what these send is not in the shapes.
    """
    recipe, own = Recipe.of(with_objects(settings)), getattr(torch, dtype)
    rule = f"must be at most {_MOST_WORKERS:,} to be counted"
    require(recipe.workers <= _MOST_WORKERS, "workers", recipe.workers, rule)
    algorithm = _algorithm(recipe)
    spec = f"topk:{kept(recipe.prune)}" if recipe.prune else recipe.compressor or "none"
    layers = layer_rules(recipe.compress_layers)
    torch_shapes = {name: torch.Size(shape) for name, shape in shapes.items()}
    layout = Layout.of(torch_shapes, recipe.granularity, recipe.rule, own.itemsize)
    compressors = compressors_for(recipe, algorithm, layout, spec, layers)
    used = [composed(spec)]
    if layers:
        pairs = zip(layout.segments, compressors, strict=True)
        used = [compressor for segment, compressor in pairs if not segment.dense]
    check_use(recipe, any(compressor.compresses for compressor in used))
    exchange = Exchange(algorithm.for_layout(layout, recipe.workers), recipe)
    _require_room(exchange, layout, own)
    specs = specs_of(layout, layers, spec) if layers else [""] * len(compressors)
    segments = tuple(
        replace(_size(segment, compressor, exchange, own), compressor=each)
        for segment, compressor, each in zip(layout.segments, compressors, specs, strict=True)
    )
    return Sizes(
        compressor=spec,
        workers=recipe.workers,
        tensors=len(shapes),
        varies=_varies_any(used, exchange),
        segments=segments,
        step_payloads=exchange.step_payloads(segments),
        algorithm=recipe.algorithm,
        layers=in_words(layers),
        within=_within(layout, own, recipe.devices),
    )


def _within(layout: Layout, dtype: torch.dtype, devices: int) -> WithinNodes | None:
    """Return the bytes of the devices of a node in a step; None where each worker is one."""
    return None if devices == 1 else WithinNodes.of([(layout.n, dtype.itemsize)], devices)


def _require_room(exchange: Exchange, layout: Layout, dtype: torch.dtype) -> None:
    """Raise `SettingError` for an endless round, or gradients that memory cannot hold."""
    rule = f"must be at most {_MOST_STEPS:,} to be counted"
    require(exchange.period <= _MOST_STEPS, "local_steps", exchange.period, rule)
    there = memory_of(torch.device("cpu"))
    largest = max(layout.segments, key=lambda segment: segment.n)
    needed = _COPIES * exchange.rows * largest.n * dtype.itemsize
    if there is not None and needed > there:
        room = f"{in_units(needed)} of memory, and there are {in_units(there)}"
        if exchange.rows > 1:
            raise SettingError("workers", exchange.rows, f"are counted in {room}", "use fewer")
        rule = f"has {largest.n:,} elements in {largest.name}, whose bytes are counted in {room}"
        raise SettingError("model", None, rule, "use a smaller one")


def _algorithm(recipe: Recipe) -> Algorithm:
    algorithm = algorithm_of(recipe)
    fix = "train a step and read payload_bytes in its steps.csv"
    if not algorithm.sized_by_shapes:
        rule = "cannot be counted from shapes alone: they do not show what a worker sends when"
        raise SettingError("algorithm", recipe.algorithm, rule, fix)
    if algorithm.inner_state == "average":
        rule = "cannot be counted from shapes alone: they do not show what the optimizer keeps"
        raise SettingError("inner_state", algorithm.inner_state, rule, fix)
    if algorithm.client_buffers == "average":
        rule = "cannot be counted from shapes alone: they do not show which buffers a model has"
        raise SettingError("client_buffers", algorithm.client_buffers, rule, fix)
    if algorithm.local_epochs is not None:
        rule = "cannot be counted from shapes alone: they do not show how many samples clients have"
        fix = "give local_steps: the bytes of a round are the same"
        raise SettingError("local_epochs", algorithm.local_epochs, rule, fix)
    if recipe.downlink is not None:
        rule = "cannot be counted from shapes alone: its size depends on what all workers send"
        raise SettingError("downlink", recipe.downlink, rule, fix)
    return algorithm


@plain_arguments
def bytes_of(
    *,
    samples: int | None = None,
    num_classes: int | None = None,
    input_shape: str | None = None,
    **settings: object,
) -> Sizes:
    """Return the bytes of a step for a model, and of an epoch of so many samples, without training.

    `settings` are those of `train` that concern a message. `input_shape` is such as "3x32x32"; what
    is left out is the model's default. Raises `SettingError` as `sizes` does, and for a setting
    that the bytes do not depend on.
    """
    config = Config.of(with_objects(settings))
    refuse_idle(settings, (*OF_BYTES, *_NOT_COUNTED), "the bytes of a step")
    if samples is None:
        used, fix = settings.keys() - {*_OF_AN_EPOCH}, "set samples=N too, to count an epoch's"
        refuse_idle(settings, used, "the bytes of a step", fix)
    model = config.model or "lenet"
    shapes = shapes_of(model, config.model_config, num_classes, input_shape)
    recipe = config.recipe()
    own = {name: getattr(recipe, name) for name in Recipe.__dataclass_fields__}
    steps = None
    if samples is not None:
        require(samples >= 1, "samples", samples, "must be at least 1")
        check_size("samples", samples)
        each = config.worker_batch // config.devices
        steps = worker_batches(samples, config.workers, each, config.devices)
    return replace(sizes(shapes, config.dtype, **own), steps=steps, model=model)


def _size(
    segment: Segment, compressor: Compressor, exchange: Exchange, dtype: torch.dtype
) -> SegmentSize:
    gradient = exchange.drawn(segment.n, dtype, segment.name)
    return SegmentSize(
        name=segment.name,
        shape=segment.shape,
        elements=segment.n,
        compressed=not segment.dense and compressor.compresses,
        dense_bytes=segment.n * dtype.itemsize,
        sent=exchange.sent(segment, compressor, gradient),
    )


def _varies_any(compressors: Sequence[Compressor], exchange: Exchange) -> str:
    """Return what changes the sizes of a segment of the first compressor where something does."""
    once = [own for place, own in enumerate(compressors) if own not in compressors[:place]]
    return next(filter(None, (_varies(own, exchange) for own in once)), "")


def _varies(compressor: Compressor, exchange: Exchange) -> str:
    """Return what changes the sizes of a segment: gradient, step or nothing."""
    segment = Segment("probe", ("probe",), (_PROBE,), dense=False)
    collective = getattr(exchange.algorithm, "collective", "allgather")
    algorithm = AllReduce("vote" if exchange.votes else "mean", collective=collective)
    probe = replace(exchange, algorithm=algorithm)
    gradient = probe.drawn(segment.n, torch.float32)
    sent = probe.sent(segment, compressor, gradient)
    others = {
        "gradient": probe.sent(segment, compressor, torch.zeros_like(gradient)),
        "step": probe.sent(segment, compressor, gradient, later=1),
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
        **({"compressor": segment.compressor} if segment.compressor else {}),
        "payload_bytes": segment.payload_bytes,
        "downlink_bytes": segment.downlink_bytes,
        "dense_bytes": segment.dense_bytes,
        "ratio": ratio(segment.dense_bytes, segment.payload_bytes),
        "sent": [
            {name: value for name, value in vars(sent).items() if name != "operation"}
            for sent in segment.sent
        ],
    }
