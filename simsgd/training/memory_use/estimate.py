"""Estimates how much memory a run takes at its peak, by part, without training.

Letters: W workers, L hosted here, b samples each, n elements of one segment, P all parameters.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...communication.ledger import Ledger
from ...communication.segments import Segment
from ...communication.transport import Channel, InProcess
from ...config import Config
from ...gradients.contract import Gradients
from ...gradients.thread_count import thread_count
from ...gradients.trees import leaves, row
from ...gradients.worker_threads import single_threaded
from ...keyed_random import RandomKey
from ...methods.algorithms import ParameterAlgorithm
from ...results.text_table import columns
from ...settings import require
from ...simulator.components import Components
from ...simulator.exchange_step import ExchangeStep, exchange_gradient
from ...simulator.group_exchange import exchange_models
from ...simulator.layer_compressors import by_segment
from ...simulator.segment_state import SegmentState
from ...simulator.state_groups import StateGroups
from ...simulator.step_settings import StepSettings
from ...simulator.worker_gradients import device_rows, hosted_shards
from ...units import in_units
from ..devices import device_of
from ..evaluation import evaluation_batches
from ..experiment import Experiment
from ..thread_choice import requested_threads
from .disk import disk_bytes
from .malloc import gaps
from .optimizer_bytes import optimizer_bytes
from .peak import Peak, load
from .tensor_bytes import num_bytes, peak_of

Work = Callable[[], object]
Taken = Callable[[Work], int]

_FEW = 2  # workers that a probe takes


@dataclass(frozen=True)
class Footprint:
    """The bytes of a run, by part.

    `lasting` stay all the time; of `passing`, the parts follow one another within an epoch. `disk`
    are the files of its folder.
    """

    lasting: dict[str, int]
    passing: dict[str, int]
    chunk_size: int = 1  # workers that go through the model at a time
    disk: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.lasting.values()) + max(self.passing.values())

    def summary(self) -> str:
        """Return a table of the memory, and one of the disk."""
        shown = {**self.lasting, **self.passing, "at the peak": self.total}
        one_at_a_time = f"of the last {len(self.passing)} parts, the largest alone counts"
        memory = f"{_table(shown)}\n\n{one_at_a_time}; Python and its libraries come on top"
        if not self.disk:
            return memory
        on_disk = {**self.disk, "on disk at the end": sum(self.disk.values())}
        return f"{memory}\n\n{_table(on_disk)}"


def _table(sizes: Mapping[str, int]) -> str:
    return columns([[name, in_units(size), f"{size:,} B"] for name, size in sizes.items()])


def footprint(**settings: object) -> Footprint:
    """Return what the run that `simsgd.train` would make of the settings takes, at its peak.

    The model and the data are made, a few workers compute one gradient and send it once; nothing
    is written. Where the system tells more than tensors take, as buffers of libraries do, that
    counts. Raises `SettingError` as `train` does.
    """
    config = Config.of(settings)
    fix = "it estimates a run from its settings"
    require(config.resume is None, "resume", str(config.resume), "has no place in a dry run", fix)
    load(config.dataset)
    device = device_of(config.device)
    before = Peak(device)
    with thread_count(requested_threads(config)):
        experiment = Experiment.of(config)
        disk = disk_bytes(experiment)
        found = footprint_of(experiment, lambda work: _grown_by(work, device), before.kept())
        if device == "cpu":
            found.lasting["gaps in the heap, about"] = gaps(found.total)
        return replace(found, disk=disk)


def footprint_of(
    experiment: Experiment, taken: Taken = peak_of, kept: int | None = None
) -> Footprint:
    """Return the bytes of an experiment that has not begun; it stays as it is.

    `taken` returns the most bytes that some work takes at a time. `kept` are those by which the
    process grew when the experiment was made, if that is to count what libraries and the engine
    keep, and the heaps of threads.
    """
    parts, simulator = experiment.simulator.components, experiment.simulator
    workers = len(parts.workers)
    parameters = num_bytes(parts.params.values())
    trained = num_bytes(parts.parameters.trained.values())
    settings = StepSettings.at(parts.recipe, parts.regime, 0, 0, parts.memory)
    kept_by_optimizer = optimizer_bytes(parts, settings) + (trained if settings.own_decay else 0)
    per_step = trained + kept_by_optimizer + max(parameters, trained)
    evaluated = parameters if parts.parameters.has_models else 0
    states = [state for own in parts.segment_states for state in own.state_dict().values()]
    held = num_bytes(tensor for state in states for tensor in state.values())
    data, buffers = num_bytes(_data(experiment)), num_bytes(simulator.buffers.values())
    chunk_size, threads, activations = _activations(experiment, taken)
    lasting = {
        "data": data,
        "parameters, their update, optimizer": per_step + evaluated,
        f"memory, compressor and exchange of {workers} workers": held,
        **_of_clients(experiment),
        f"buffers of {workers} workers": 2 * buffers,
        f"gradients of {workers} workers": workers * parts.recipe.devices * parameters,
    }
    forward_and_backward = f"activations of {chunk_size} workers at a time"
    passing = {
        forward_and_backward: activations,
        "compression of the largest segment": _compression(experiment),
        "evaluation": _evaluation(experiment, taken),
    }
    if kept is not None:
        known = data + trained + held + buffers + sum(_of_clients(experiment).values())
        lasting["kept by libraries and engine"] = max(0, kept - known)
        if threads > 1:
            lasting[forward_and_backward] = passing.pop(forward_and_backward)
    return Footprint(lasting, passing, chunk_size)


def _grown_by(work: Work, device: str) -> int:
    """Return the most bytes that `work` takes at a time, of tensors or as the system tells."""
    counted = peak_of(work)
    peak = Peak(device)
    work()
    return max(counted, peak.bytes() or 0)


def _activations(experiment: Experiment, taken: Taken) -> tuple[int, int, int]:
    """Return how many workers go at a time, in how many threads, and what their passes take."""
    simulator, parts = experiment.simulator, experiment.simulator.components
    batch = next(experiment.epoch_batches(0))
    x, y = (row(hosted_shards(parts, part), (slice(None), 0)) for part in batch)
    params, buffers, keys = device_rows(parts, simulator.buffers)
    parts.mode.enter()
    engine = parts.engine

    def call(workers: int) -> int:
        own = {name: buffer[:workers] for name, buffer in buffers.items()}
        read = params
        if parts.parameters.per_worker:
            read = {name: p[:workers] for name, p in params.items()}

        def compute() -> Gradients:
            first = slice(workers)
            return engine(read, own, row(x, first), row(y, first), keys[first])

        compute()  # makes what it keeps from call to call
        with single_threaded():
            return taken(compute)

    call(1)
    chunk_size, threads = engine.chunk_size(len(keys)), engine.num_threads(len(keys))
    together = math.ceil(chunk_size / threads)  # in one thread
    few = min(together, _FEW)
    one = call(1)
    more = (call(few) - one) / (few - 1) if few > 1 else 0
    return chunk_size, threads, round(threads * (one + (together - 1) * more))


def _compression(experiment: Experiment) -> int:
    """Return what one exchange takes beside gradient and state: of the largest segments."""
    parts = experiment.simulator.components
    rules = StepSettings.at(parts.recipe, parts.regime, 0, 0, parts.memory).layers
    kinds = by_segment(parts.layout, rules, range(len(rules)), -1)  # of compressors
    largest: dict[int, Segment] = {}
    for segment, kind in zip(parts.layout.segments, kinds, strict=True):
        largest[kind] = max(largest.get(kind, segment), segment, key=lambda s: (s.n, not s.dense))
    return max(_exchange(parts, segment) for segment in largest.values())


def _exchange(parts: Components, segment: Segment) -> int:
    """Return what one exchange of a segment takes beside gradient and state."""
    workers, own_models = len(parts.workers), parts.parameters.has_models
    few = workers if own_models else min(workers, _FEW)  # models are exchanged by worker
    generator = torch.Generator().manual_seed(0)
    like = next(iter(parts.params.values()))
    gradient = torch.randn(few, segment.n, generator=generator).to(like.device, like.dtype)
    kept = next(own for own in parts.segment_states if own.segment is segment)
    at = gradient if own_models else gradient[:, :1].expand(few, segment.n)
    state = SegmentState(segment, at, parts.memory, parts.algorithm, kept.dtype)
    state.set_compressor(kept.compressor)
    settings = StepSettings.at(parts.recipe, parts.regime, 0, 0, parts.memory)
    epoch = parts.recipe.post_local_from or 0
    first = parts.algorithm.round_of(parts.recipe.seed, parts.recipe.workers, 0, epoch)
    number = first.end - 1  # steps before the first exchange
    key = RandomKey(parts.recipe.seed, parts.workers[:few]).fold_in(number)

    def exchange() -> object:
        channel = Channel(InProcess(), Ledger(few), parts.channel.wire)
        step = ExchangeStep(channel, settings.memory, key, number, epoch, settings.flush)
        if isinstance(parts.algorithm, ParameterAlgorithm):
            return exchange_models(step, StateGroups([state]), [gradient])
        return exchange_gradient(step, state, gradient, _ones(segment, gradient))

    exchange()
    return round(peak_of(exchange) * workers / few)


def _ones(segment: Segment, like: Tensor) -> dict[str, Tensor]:
    pairs = zip(segment.parameters, segment.shapes, strict=True)
    return {name: like.new_ones(1).expand(len(like), *shape) for name, shape in pairs}


def _evaluation(experiment: Experiment, taken: Taken) -> int:
    """Return what a forward pass of the validation split takes, in parts."""
    model = copy.deepcopy(experiment.model).eval()
    with torch.no_grad():
        return taken(lambda: model(next(evaluation_batches(experiment, model, "val"))[0]))


def _of_clients(experiment: Experiment) -> dict[str, int]:
    """Return what clients keep while nobody acts for them, if there are such."""
    clients = experiment.simulator.components.algorithm.clients
    if clients is None:
        return {}
    return {f"kept for {clients:,} clients": num_bytes(experiment.simulator.client_states.values())}


def _data(experiment: Experiment) -> list[Tensor]:
    """Return the tensors that the data set holds."""
    parts = [getattr(experiment.dataset, name) for name in ("train", "val")]
    fields = [v for part in parts if not isinstance(part, Tensor) for v in vars(part).values()]
    held = [leaf for field in [*parts, *fields] for leaf in leaves(field)]
    return list({id(leaf): leaf for leaf in held}.values())
