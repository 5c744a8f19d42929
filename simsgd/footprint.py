"""How much memory a run will take at its peak, by part, without training.

Letters: W workers, L hosted here, b samples each, n elements of one segment, P all parameters.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .allocations import peak_of
from .bill import columns
from .config import Config
from .draw import Draw
from .experiment import Experiment
from .gradients.contract import Gradients, Tensors
from .layout import Segment
from .ledger import Ledger
from .measures import measured, squared_norms
from .method import Method
from .optimizer import RegimeOptimizer
from .settings import require
from .transport import Channel, InProcess
from .units import in_units
from .voice import Voice
from .wire import Wire

_EVALUATED = 1000  # samples at a time
_FEW = 2  # workers, or hundreds of samples, that a probe takes


@dataclass(frozen=True)
class Footprint:
    """The bytes of a run, by part.

    `lasting` stay all the time; of `passing`, the parts follow one another within an epoch.
    """

    lasting: dict[str, int]
    passing: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.lasting.values()) + max(self.passing.values())

    def told(self) -> str:
        """Return a table."""
        shown = [*self.lasting.items(), *self.passing.items()]
        rows = [[name, in_units(size), f"{size:,} B"] for name, size in shown]
        rows.append(["at the peak", in_units(self.total), f"{self.total:,} B"])
        one_at_a_time = f"of the last {len(self.passing)} parts, the largest alone counts"
        return f"{columns(rows)}\n\n{one_at_a_time}; Python and its libraries come on top"


def footprint(**settings: Any) -> Footprint:
    """Return what the run that `simsgd.train` would make of the settings takes at its peak.

    The model and the data are made, a few workers compute one gradient and send it once; nothing
    is written. Raises `SettingError` as `train` does.
    """
    config = Config.of(settings)
    fix = "it tells of a run from its settings"
    require(config.resume is None, "resume", str(config.resume), "has no place in a dry run", fix)
    return footprint_of(Experiment.of(config))


def footprint_of(experiment: Experiment) -> Footprint:
    """Return the bytes of an experiment that has not begun; it stays as it is."""
    simulator = experiment.simulator
    workers = len(simulator.draw.workers)
    parameters = _bytes(simulator.params.values())
    states = [voice.remembered | voice.state for voice in simulator.voices]
    held = _bytes(t for state in states for t in state.values())
    at_once, activations = _activations(experiment)
    return Footprint(
        lasting={
            "data": _bytes(t for s in _splits(experiment) for t in (s.images, s.labels)),
            "parameters, their update, optimizer": parameters * (2 + _optimizer_tensors(simulator)),
            f"memory and compressor of {workers} workers": held,
            f"buffers of {workers} workers": 2 * _bytes(simulator.buffers.values()),
            f"gradients of {workers} workers": workers * parameters,
        },
        passing={
            f"activations of {at_once} workers at a time": activations,
            "compression of the largest segment": _compression(experiment),
            f"evaluation of {_EVALUATED:,} samples at a time": _evaluation(experiment),
        },
    )


def _activations(experiment: Experiment) -> tuple[int, int]:
    """Return how many workers go at a time, and what a forward and backward of theirs takes."""
    simulator = experiment.simulator
    recipe, batch = simulator.recipe, next(experiment.epoch_batches(0))
    shards = (part.unflatten(0, (recipe.workers, recipe.accumulate, -1)) for part in batch)
    x, y = (part[simulator.hosted, 0] for part in shards)  # [L, b, ...]
    params: Tensors = dict(simulator.params)
    keys = simulator.draw.keys()
    simulator.model.train()
    engine = simulator.engine

    def call(workers: int) -> int:
        own = {name: buffer[:workers] for name, buffer in simulator.buffers.items()}

        def compute() -> Gradients:
            return engine(params, own, x[:workers], y[:workers], keys[:workers])

        compute()  # makes what it keeps from call to call
        return peak_of(compute)

    call(1)
    at_once = engine.at_once(len(keys))
    few = min(at_once, _FEW)
    one = call(1)
    more = (call(few) - one) / (few - 1) if few > 1 else 0
    return at_once, round(one + (at_once - 1) * more)


def _compression(experiment: Experiment) -> int:
    """Return what one exchange of the largest segment takes beside gradient and state."""
    simulator, recipe = experiment.simulator, experiment.simulator.recipe
    segment = max(simulator.layout.segments, key=lambda s: (s.n, not s.dense))
    method = Method.at(recipe, simulator.regime, 0, 0, simulator.memory)
    workers = len(simulator.draw.workers)
    few = min(workers, _FEW)
    ids = simulator.draw.workers[:few]
    generator = torch.Generator().manual_seed(0)
    like = next(iter(simulator.params.values()))
    grad = torch.randn(few, segment.n, generator=generator).to(like.device, like.dtype)
    own = next(voice for voice in simulator.voices if voice.segment is segment)
    voice = Voice(segment, grad[:, :1].expand(few, segment.n), simulator.memory, own.dtype)
    voice.speak(own.compressor)
    channel = Channel(InProcess(), Ledger(few), Wire(recipe.value_dtype, recipe.index_dtype))
    draw = Draw(recipe.seed, ids).at(0, segment.name)

    def speak() -> object:
        said = method.memory.compensate(grad, voice.recall())
        norms = squared_norms(said)
        state = voice.told(grad, _ones(segment, grad))
        message, answer = simulator.exchange.gradients(
            said, voice.compressor, state, draw, segment, channel
        )
        method.memory.keep(said, message, voice.remembered)
        measures = measured(segment, said, norms, message, voice.remembered)
        voice.store()
        return answer, measures

    speak()
    return round(peak_of(speak) * workers / few)


def _ones(segment: Segment, like: Tensor) -> dict[str, Tensor]:
    pairs = zip(segment.parameters, segment.shapes, strict=True)
    return {name: like.new_ones(1).expand(len(like), *shape) for name, shape in pairs}


def _evaluation(experiment: Experiment) -> int:
    """Return what a forward pass of the validation split takes, in parts."""
    split = experiment.dataset.val
    samples = min(len(split), _EVALUATED)
    few = min(samples, 100 * _FEW)
    images, _ = split.batch(torch.arange(few))
    model = copy.deepcopy(experiment.model).eval()
    with torch.no_grad():
        return peak_of(lambda: model(experiment.prepared(images, "eval"))) * samples // few


def _optimizer_tensors(simulator: Any) -> int:
    """Return how many tensors of its size the optimizer keeps for a parameter."""
    method = Method.at(simulator.recipe, simulator.regime, 0, 0, simulator.memory)
    one = torch.nn.Parameter(torch.zeros(2))
    small = RegimeOptimizer({"one": one})
    small.follow(method.optimizer)
    small.step({"one": torch.ones(2)})
    assert small.inner is not None
    kept = [t for t in small.inner.state[one].values() if isinstance(t, Tensor) and t.numel() == 2]
    return len(kept) + (1 if method.own_decay else 0)


def _splits(experiment: Experiment) -> tuple[Any, Any]:
    return experiment.dataset.train, experiment.dataset.val


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
