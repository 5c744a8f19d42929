"""One step of W data-parallel workers, from batch to parameters.

Letters: W simulated workers, L hosted here, b samples each, M passes, B = W * b * M,
n elements of one segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..communication.ledger import Ledger
from ..communication.segments import Layout
from ..communication.transport import Channel, InProcess, Observer, Transport, broadcast_object
from ..communication.wire import Wire
from ..gradients import GradientEngine, Gradients
from ..gradients.accumulation import accumulated
from ..gradients.auto import Auto
from ..gradients.contract import Criterion, Tensors, carried
from ..gradients.dropout import KeyedDropout
from ..gradients.sample_squares import sample_squares
from ..keyed_random import RandomKey
from ..methods.algorithms import Asynchronous, ParameterAlgorithm
from ..methods.compression_error import SegmentMeasures, of_all_workers
from ..recipe import Recipe
from ..registry import find
from ..settings import require
from .checkpoint_check import require_fitting, shapes
from .components import (
    amp_dtype,
    check_memory,
    check_optimizer,
    exchange_of,
    memory_name,
    memory_of,
    spoken,
    stored_dtype,
)
from .exchange_step import ExchangeStep
from .gradient_transforms import prepared
from .nonfinite import Guard, silence
from .optimizer import RegimeOptimizer, Rows
from .record import StepRecord
from .regime import Form, Regime
from .regime_check import foresee
from .regularizers import Regularized
from .segment_state import SegmentState
from .step_settings import Method, regime_of
from .step_timer import Spent
from .summary import in_a_line, in_html
from .worker_parameters import WorkerParameters, averaged_into, holding


class Simulator:
    """W workers that train together: one model, or a model each.

    >>> model = nn.Linear(4, 2)
    >>> simulator = Simulator(model, workers=2, prune=0.5, warmup=False, lr=0.1, momentum=0.9)
    >>> record = simulator.step(torch.ones(6, 4), torch.zeros(6, dtype=torch.long))
    >>> record.payload_bytes, record.dense_bytes
    ([40, 40], 40)

    Here 4 of 8 weights go as 4 bytes of value and 4 of index, and both biases whole.

    The parameters of `model` are updated in place; where workers have models of their own,
    `evaluation_model()` puts the mean of these into it. Each worker has BatchNorm statistics of its
    own, of which `evaluation_model()` takes the mean too. Settings are those of `Recipe`, by
    the same names as the command line's options. Raises `SettingError` for any that is wrong.

    A model with an attribute `carried` keeps a state of each sample in the buffers [b, ...] that it
    names: each worker's is its own, goes on from step to step, and begins anew with each epoch.

    With a `transport` between processes, each hosts W / ranks of the workers and is given the same
    global batches; records and states are those of all W. `samples` [W] are how many each worker
    holds, if not as many as the others. `wrap_engine` returns the engine to use in place of the
    one it is given, such as one that records its calls.
    `observers` see every transfer and its message.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Criterion = F.cross_entropy,
        *,
        regime: Form | Regime = None,
        transport: Transport | None = None,
        samples: Tensor | None = None,
        wrap_engine: Callable[[GradientEngine], GradientEngine] | None = None,
        observers: Sequence[Observer] = (),
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
        self._fresh = {name: self.buffers[name].clone() for name in carried(model)}
        self.key = RandomKey(recipe.seed, workers)
        forms = shapes(self.params)
        self.layout = Layout.of(forms, recipe.granularity, recipe.rule, like.element_size())
        self.exchange, self.samples = exchange_of(recipe), samples
        spans = self.alone or self.exchange.between_processes
        rule = "runs in one process only"
        require(spans, "algorithm", recipe.algorithm, rule, "start it without torchrun or verify")
        self.held = holding(self.exchange, self.params, self.layout, self.key)
        self.engine: GradientEngine = find("engine", recipe.engine)(
            model, criterion, recipe.worker_chunk, self.held.per_worker
        )
        self.engine.amp = amp_dtype(recipe, like.dtype)
        if not self.alone:
            self.engine.agree = broadcast_object
        if wrap_engine is not None:
            self.engine = wrap_engine(self.engine)
        wire = Wire(recipe.value_dtype, recipe.index_dtype)
        self.channel = Channel(self.transport, Ledger(recipe.workers), wire, observers)
        narrow = recipe.value_dtype == "float16"
        self.guard = Guard(recipe.on_nonfinite, narrow, self.transport.all_gather_rows, self.hosted)
        self.optimizer = RegimeOptimizer(self.held.trained)
        self.regularized = Regularized(model, self.held.trained)
        self.memory = memory_of(recipe, self.regime)
        stored = stored_dtype(recipe)
        self.segment_states = [
            SegmentState(segment, like, self.memory, self.exchange, stored)
            for segment, like in zip(self.layout.segments, self.held.rows(self.layout), strict=True)
        ]
        self.steps = 0
        self.epoch: int | None = None
        self.results: list[dict[str, float]] = []  # of the epochs that ended, for the regime
        self.spec = ""
        about = self.exchange, self.layout, self.held.trained
        foresee(recipe, self.regime, self.memory, *about)
        self._follow(Method.at(recipe, self.regime, 0, 0, self.memory))

    def step(self, x: Tensor, y: Tensor, epoch: int | None = None) -> StepRecord:
        """Train on one global batch, `x` [B, ...] and `y` [B, ...], B a multiple of W * M.

        Worker w gets the samples w * b * M to (w + 1) * b * M. `epoch` counts from 0 and drives the
        regime and the warm-up; without it the last one given holds. Raises `SettingError` if B is
        no such multiple, or if the regime follows epochs and none was ever given.
        """
        method, key = self._method(epoch), self.key.fold_in(self.steps)
        spent = Spent(self.key.workers)
        gradients = self._gradients(self._shard(x), self._shard(y), key)
        spent.on("compute")
        measures = self._learn(gradients, method, key, spent)
        self.held.stepped()
        self.steps += 1
        return self._record(gradients, method, measures, spent)

    def begin(self) -> None:
        """Put back the states that the model carries from step to step, as at the start."""
        self.buffers.update({name: state.clone() for name, state in self._fresh.items()})

    def engine_for(self, x: Tensor, y: Tensor) -> str:
        """Return the name of the engine that a step on such a batch uses.

        `x` [B, ...] and `y` [B, ...] as for `step`, which this leaves as it would be.
        """
        if not isinstance(self.engine, Auto):
            return self.recipe.engine
        if not self.engine.chosen:
            self.model.train()
            batch, target = self._shard(x)[:, 0], self._shard(y)[:, 0]
            keys = self.key.fold_in(0, "dropout", 0).keys()
            self.engine.choose(self.held.read(), self.buffers, batch, target, keys)
        return self.engine.chosen

    def forward_once(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the output for one worker's share of a batch, in training mode, changing nothing.

        `x` [B, ...] and `y` [B, ...] as for `step`. What model and criterion raise is passed on.
        """
        self.model.train()
        batch, target = self._shard(x)[0, 0], self._shard(y)[0, 0]
        own = {name: buffer[0].clone() for name, buffer in self.buffers.items()}
        with torch.no_grad(), KeyedDropout(self.key.keys()[0]):
            return self.engine.loss(dict(self.params), own, batch, target)[1]

    def evaluation_model(self, buffers: str = "mean", worker: int | None = None) -> nn.Module:
        """Return the model in evaluation mode, with BatchNorm statistics to evaluate with.

        Where workers have models of their own it is their mean, or that of one `worker`, with that
        worker's statistics. States that it carries are those of no worker: it has to begin a text
        of its own. `buffers` is "mean", the mean over workers, or "rank0", worker 0's. Training
        goes on as if this had not been called.
        """
        own, rows = (self.buffers, self._fresh), self.transport.all_gather_rows
        return averaged_into(self.model, self.held, *own, rows, buffers, worker)

    def parameters(self) -> dict[str, Tensor]:
        """Return what is trained: {name: [*shape]}, or of all workers' own, [W, *shape]."""
        held = self.held.state_dict(self.transport.all_gather_rows)
        return {name: held[name] for name in self.params}

    def consensus_distance(self) -> float:
        """Return sqrt(mean_i ||x_i - mean||^2) over the workers' models; 0 where they share one.

        This waits for the device.
        """
        return self.held.spread(self.transport.all_gather_rows)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed simulation needs: tensors and plain values."""
        return {
            "parameters": self.held.state_dict(self.transport.all_gather_rows),
            "buffers": {
                name: self.transport.all_gather_rows(own) for name, own in self.buffers.items()
            },
            "compressor": self.spec,
            "voices": {
                segment_state.segment.name: segment_state.state_dict(
                    None if self.alone else self.transport.all_gather_rows
                )
                for segment_state in self.segment_states
            },
            "optimizer": self.optimizer.state_dict(
                self._of_optimizer(self.transport.all_gather_rows)
            ),
            "steps": self.steps,
            "epoch": self.epoch,
            "results": list(self.results),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises `SettingError` if it belongs to another model, another W or another memory.
        """
        require_fitting(state, self.state_dict())
        self.held.load_state_dict(state["parameters"], self.hosted)
        for name, buffer in self.buffers.items():
            buffer.copy_(state["buffers"][name][self.hosted])
        self._speak(state["compressor"])
        for segment_state in self.segment_states:
            hosted = None if self.alone else self.hosted
            segment_state.load_state_dict(state["voices"][segment_state.segment.name], hosted)
        rows = self._of_optimizer(lambda all: all[self.hosted])
        self.optimizer.load_state_dict(state["optimizer"], rows)
        self.steps, self.epoch = state["steps"], state["epoch"]
        self.results = list(state["results"])

    def _of_optimizer(self, rows: Rows) -> Rows:
        """Return `rows` if the optimizer steps a row a worker, else what changes nothing."""
        return rows if isinstance(self.held, WorkerParameters) else lambda own: own

    def __repr__(self) -> str:
        return in_a_line(self)

    def _repr_html_(self) -> str:
        return in_html(self)

    def _method(self, epoch: int | None) -> Method:
        if epoch is not None and epoch != self.epoch:
            self.epoch = epoch
            self.begin()
        known = self.epoch is not None or not self.regime.follows_epochs
        fix = "call step(x, y, epoch=e), or set warmup=False and a regime without epochs"
        require(known, "epoch", None, "is needed: the regime or the warm-up follows it", fix)
        method = Method.at(
            self.recipe, self.regime, self.epoch or 0, self.steps, self.memory, self.results
        )
        self._follow(method)
        return method

    def _follow(self, method: Method) -> None:
        check_optimizer(self.exchange, method.optimizer.get("optimizer", "SGD"))
        self.optimizer.follow(method.optimizer)
        self._speak(method.compressor)

    def _speak(self, spec: str) -> None:
        if spec != self.spec:
            compressor, self.spec = spoken(self.exchange, spec), spec
            check_memory(self.recipe, compressor, spec)
            for segment_state in self.segment_states:
                segment_state.speak(compressor)

    def own_part(self, batch: Tensor) -> Tensor:
        """Return the samples [L * M * b, ...] of a batch [B, ...] that go to workers hosted here.

        Raises `SettingError` if B is no multiple of W * M.
        """
        return self._shard(batch).flatten(0, 2)

    def _shard(self, batch: Tensor) -> Tensor:
        workers, passes = self.recipe.workers, self.recipe.accumulate
        even = len(batch) > 0 and len(batch) % (workers * passes) == 0
        what = f"{workers} workers" + (f" x {passes} passes" if passes > 1 else "")
        require(even, "batch", len(batch), f"must be a multiple of the {what}")
        shards: Tensor = batch.unflatten(0, (workers, passes, -1))  # [W, M, b, ...]
        return shards[self.hosted]

    def _gradients(self, x: Tensor, y: Tensor, key: RandomKey) -> Gradients:
        self.model.train()
        wanted = any(
            segment_state.compressor.needs_squares for segment_state in self.segment_states
        )
        gradients = accumulated(
            self.engine,
            self.held.read(),
            self.buffers,
            x,
            y,
            key.fold_in("dropout"),
            sample_squares if wanted else None,
        )
        now = self.key.seed, self.recipe.workers, self.steps, self.epoch or 0
        gradients = self.guard.judge(gradients, self.buffers, self.exchange.drawn(*now))
        self.buffers = gradients.buffers
        return gradients

    def _learn(
        self, gradients: Gradients, method: Method, key: RandomKey, spent: Spent
    ) -> list[SegmentMeasures]:
        """Speak of the gradients and change the parameters; return the measures."""
        if not self.guard.passed:
            return silence(self.layout, self.key.workers)
        about = self.exchange, self.regularized, self.held
        pieces = prepared(gradients.values, self.layout, self.recipe, method, *about)
        now = self.steps, self.epoch or 0
        talk = ExchangeStep(self.exchange, self.channel, method, key, *now, self.samples)
        if isinstance(self.held, WorkerParameters) and isinstance(
            self.exchange, ParameterAlgorithm
        ):
            self._update(self.layout.join(pieces), method)
            spoke, measures = talk.of_parameters(self.segment_states, self.held.pieces)
            spent.on("compression")
            if spoke and self.exchange.resets_optimizer:
                self.optimizer.forget()
            return measures
        heard, measures = self.guard.heard(talk, self.segment_states, pieces, gradients.squares)
        spent.on("compression")
        if self.guard.passed:
            self._update(self.layout.join(heard), method)
        return measures

    def _update(self, heard: Tensors, method: Method) -> None:
        rows = self.held.per_worker
        self.regularized.clip_(heard, method.regularizers, rows)
        chosen = () if method.locally else method.regularizers
        pulls = self.regularized.pulls(chosen, method.own_decay)
        self.optimizer.pull(heard, pulls, *method.inertia)
        if isinstance(self.exchange, Asynchronous):
            self.optimizer.push(heard)
        else:
            self.optimizer.step(heard)

    def _record(
        self, gradients: Gradients, method: Method, measures: list[SegmentMeasures], spent: Spent
    ) -> StepRecord:
        dense = sum(p.numel() * p.element_size() for p in self.params.values())
        rows = self.transport.all_gather_rows
        return StepRecord(
            step=self.steps,
            epoch=self.epoch or 0,
            lr=method.lr,
            nominal=method.kept,
            losses=rows(gradients.loss),
            output=gradients.output.flatten(0, 1),
            bytes=self.channel.ledger.close(dense, rows),
            segments=measures if self.alone else of_all_workers(measures, rows),
            spent=spent,
            wild=self.guard.wild,
            applied=self.guard.passed,
            drawn=self.guard.drawn,
        )
