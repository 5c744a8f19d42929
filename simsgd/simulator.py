"""One step of W data-parallel workers, from batch to parameters.

Letters: W simulated workers, L hosted here, b samples each, M passes, B = W * b * M,
n elements of one segment.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .compressors import composed
from .compressors.dense import NoCompression
from .config import Recipe
from .draw import Draw
from .exchange import AllReduce
from .gradients import GradientEngine, Gradients
from .gradients.accumulation import accumulated
from .gradients.auto import Auto
from .gradients.clipping import clip_
from .gradients.contract import Criterion, Tensors
from .gradients.randomness import KeyedDropout
from .gradients.squares import sample_squares
from .layout import Layout
from .ledger import Ledger
from .measures import SegmentMeasures, measured, of_all_workers, squared_norms
from .method import Method, memory_name, memory_of, regime_of
from .optimizer import RegimeOptimizer
from .portrait import in_a_line, in_html
from .record import StepRecord
from .regime import Form, Regime
from .registry import find
from .settings import require
from .transport import Channel, InProcess, Transport
from .voice import Voice, memory_shapes
from .wire import Wire


class Simulator:
    """W workers that train one model together.

    >>> model = nn.Linear(4, 2)
    >>> simulator = Simulator(model, workers=2, prune=0.5, warmup=False, lr=0.1, momentum=0.9)
    >>> record = simulator.step(torch.ones(6, 4), torch.zeros(6, dtype=torch.long))
    >>> record.payload_bytes, record.dense_bytes
    ([40, 40], 40)

    Here 4 of 8 weights go as 4 bytes of value and 4 of index, and both biases whole.

    The parameters of `model` are updated in place. Each worker has BatchNorm statistics of its
    own; `evaluation_model()` puts their mean into the model. Settings are those of `Recipe`, by
    the same names as the command line's options. Raises `SettingError` for any that is wrong.

    With a `transport` between processes, each hosts W / ranks of the workers and is given the same
    global batches; records and states are those of all W.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Criterion = F.cross_entropy,
        *,
        regime: Form | Regime = None,
        transport: Transport | None = None,
        **settings: Any,
    ) -> None:
        recipe = Recipe.of(settings)
        self.regime = regime_of(recipe, regime)
        recipe = self.recipe = replace(recipe, memory=memory_name(recipe, self.regime))
        self.model = model
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        require(bool(self.params), "model", None, "has no parameters to train")
        like = next(iter(self.params.values()))
        self.transport = transport or InProcess()
        self.hosted = self.transport.hosted(recipe.workers)
        self.alone = isinstance(self.transport, InProcess)  # hosts all workers
        workers = torch.arange(recipe.workers, device=like.device)[self.hosted]  # ids, [L]
        self.buffers = {n: torch.stack([b] * len(workers)) for n, b in model.named_buffers()}
        self.draw = Draw(recipe.seed, workers)
        self.engine: GradientEngine = find("engine", recipe.engine)(
            model, criterion, recipe.worker_chunk
        )
        shapes = {name: p.shape for name, p in self.params.items()}
        self.layout = Layout.of(shapes, recipe.granularity, recipe.rule, like.element_size())
        self.exchange = AllReduce(recipe.aggregate)
        wire = Wire(recipe.value_dtype, recipe.index_dtype)
        self.channel = Channel(self.transport, Ledger(recipe.workers), wire)
        self.optimizer = RegimeOptimizer(self.params)
        self.memory, one = memory_of(recipe, self.regime), like.detach().new_empty(1)
        self.voices = [
            Voice(segment, one.expand(len(workers), segment.n), self.memory)
            for segment in self.layout.segments
        ]
        self.steps = 0
        self.epoch: int | None = None
        self.spec = ""
        self._follow(Method.at(recipe, self.regime, 0, 0, self.memory))

    def step(self, x: Tensor, y: Tensor, epoch: int | None = None) -> StepRecord:
        """Train on one global batch, `x` [B, ...] and `y` [B, ...], B a multiple of W * M.

        Worker w gets the samples w * b * M to (w + 1) * b * M. `epoch` counts from 0 and drives the
        regime and the warm-up; without it the last one given holds. Raises `SettingError` if B is
        no such multiple, or if the regime follows epochs and none was ever given.
        """
        method, draw = self._method(epoch), self.draw.at(self.steps)
        gradients = self._gradients(self._shard(x), self._shard(y), draw)
        pieces = self._prepared(gradients, method)
        heard, measures = [], []
        for voice, grad in zip(self.voices, pieces, strict=True):
            said = method.memory.compensate(grad, voice.remembered)
            norms = squared_norms(said)
            message, answer = self.exchange.gradients(
                said,
                NoCompression() if method.flush else voice.compressor,
                voice.told(grad, gradients.squares),
                draw.at(voice.segment.name),
                voice.segment,
                self.channel,
            )
            method.memory.keep(said, message, voice.remembered)
            voice.forget()
            heard.append(method.memory.hear(answer, voice.remembered))
            measures.append(measured(voice.segment, said, norms, message, voice.remembered))
        self._update(self.layout.join(heard), method)
        self.steps += 1
        return self._record(gradients, method, measures)

    def engine_for(self, x: Tensor, y: Tensor) -> str:
        """Return the name of the engine that a step on such a batch uses.

        `x` [B, ...] and `y` [B, ...] as for `step`, which this leaves as it would be.
        """
        if not isinstance(self.engine, Auto):
            return self.recipe.engine
        if not self.engine.chosen:
            self.model.train()
            batch, target = self._shard(x)[:, 0], self._shard(y)[:, 0]
            keys = self.draw.at(0).at("dropout").at(0).keys()
            self.engine.choose(dict(self.params), self.buffers, batch, target, keys)
        return self.engine.chosen

    def tried(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the output for one worker's share of a batch, in training mode, changing nothing.

        `x` [B, ...] and `y` [B, ...] as for `step`. What model and criterion raise is passed on.
        """
        self.model.train()
        batch, target = self._shard(x)[0, 0], self._shard(y)[0, 0]
        own = {name: buffer[0].clone() for name, buffer in self.buffers.items()}
        with torch.no_grad(), KeyedDropout(self.draw.keys()[0]):
            return self.engine.loss(dict(self.params), own, batch, target)[1]

    def evaluation_model(self, buffers: str = "mean") -> nn.Module:
        """Return the model in evaluation mode, with BatchNorm statistics to evaluate with.

        `buffers` is "mean", the mean over workers, or "rank0", worker 0's. Training goes on as if
        this had not been called.
        """
        for name, buffer in self.model.named_buffers():
            own = self.transport.rows(self.buffers[name])  # [W, ...]
            averaged = buffers == "mean" and own.is_floating_point()
            buffer.copy_(own.mean(0) if averaged else own[0])
        return self.model.eval()

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed simulation needs: tensors and plain values."""
        return {
            "parameters": {name: p.detach() for name, p in self.params.items()},
            "buffers": {name: self.transport.rows(own) for name, own in self.buffers.items()},
            "compressor": self.spec,
            "voices": {
                voice.segment.name: voice.state_dict(None if self.alone else self.transport.rows)
                for voice in self.voices
            },
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises `SettingError` if it belongs to another model, another W or another memory.
        """
        own = self.state_dict()
        same = _shapes(state["parameters"]) == _shapes(own["parameters"])
        require(same, "checkpoint", None, "belongs to another model")
        same = _shapes(state["buffers"]) == _shapes(own["buffers"])
        require(same, "checkpoint", None, "belongs to another number of workers")
        same = memory_shapes(state["voices"]) == memory_shapes(own["voices"])
        told = "belongs to another memory, granularity or number of workers"
        require(same, "checkpoint", None, told)
        with torch.no_grad():
            for name, parameter in self.params.items():
                parameter.copy_(state["parameters"][name])
        for name, buffer in self.buffers.items():
            buffer.copy_(state["buffers"][name][self.hosted])
        self._speak(state["compressor"])
        for voice in self.voices:
            hosted = None if self.alone else self.hosted
            voice.load_state_dict(state["voices"][voice.segment.name], hosted)
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.epoch = state["steps"], state["epoch"]

    def __repr__(self) -> str:
        return in_a_line(self)

    def _repr_html_(self) -> str:
        return in_html(self)

    def _method(self, epoch: int | None) -> Method:
        self.epoch = self.epoch if epoch is None else epoch
        known = self.epoch is not None or not self.regime.follows_epochs
        fix = "call step(x, y, epoch=e), or set warmup=False and a regime without epochs"
        require(known, "epoch", None, "is needed: the regime or the warm-up follows it", fix)
        method = Method.at(self.recipe, self.regime, self.epoch or 0, self.steps, self.memory)
        self._follow(method)
        return method

    def _follow(self, method: Method) -> None:
        self.optimizer.follow(method.optimizer)
        self._speak(method.compressor)

    def _speak(self, spec: str) -> None:
        if spec != self.spec:
            compressor, self.spec = composed(spec), spec
            for voice in self.voices:
                voice.speak(compressor)

    def _shard(self, batch: Tensor) -> Tensor:
        workers, passes = self.recipe.workers, self.recipe.accumulate
        even = len(batch) > 0 and len(batch) % (workers * passes) == 0
        what = f"{workers} workers" + (f" x {passes} passes" if passes > 1 else "")
        require(even, "batch", len(batch), f"must be a multiple of the {what}")
        shards: Tensor = batch.unflatten(0, (workers, passes, -1))  # [W, M, b, ...]
        return shards[self.hosted]

    def _gradients(self, x: Tensor, y: Tensor, draw: Draw) -> Gradients:
        self.model.train()
        wanted = any(voice.compressor.needs_squares for voice in self.voices)
        gradients = accumulated(
            self.engine,
            dict(self.params),
            self.buffers,
            x,
            y,
            draw.at("dropout"),
            sample_squares if wanted else None,
        )
        self.buffers = gradients.buffers
        return gradients

    def _prepared(self, gradients: Gradients, method: Method) -> list[Tensor]:
        pieces = self.layout.split(gradients.values)
        if self.recipe.clip is not None:
            clip_(pieces, self.recipe.clip, self.recipe.workers, self.recipe.clip_by)
        if method.local_decay:
            shared = {name: p.detach().unsqueeze(0) for name, p in self.params.items()}
            for piece, weights in zip(pieces, self.layout.split(shared), strict=True):
                piece.add_(weights, alpha=method.local_decay)
        return pieces

    def _update(self, heard: Tensors, method: Method) -> None:
        if method.own_decay:
            memory: Any = method.memory
            self.optimizer.decay(heard, method.own_decay, memory.momentum, memory.nesterov)
        self.optimizer.step(heard)

    def _record(
        self, gradients: Gradients, method: Method, measures: list[SegmentMeasures]
    ) -> StepRecord:
        dense = sum(p.numel() * p.element_size() for p in self.params.values())
        rows = self.transport.rows
        return StepRecord(
            step=self.steps,
            epoch=self.epoch or 0,
            lr=method.lr,
            nominal=method.kept,
            losses=rows(gradients.loss),
            output=rows(gradients.output).flatten(0, 1),
            bytes=self.channel.ledger.close(dense, rows),
            segments=measures if self.alone else of_all_workers(measures, rows),
        )


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
