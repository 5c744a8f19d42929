"""One step of W data-parallel workers, from batch to parameters.

Letters: W simulated workers, L hosted here, b samples each, M passes, B = W * b * M,
n elements of one segment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..communication.transport import Observer, Transport
from ..gradients import Gradients
from ..gradients.accumulation import accumulated
from ..gradients.contract import Criterion, Tensors, carried
from ..gradients.dropout import KeyedDropout
from ..gradients.sample_squares import sample_squares
from ..keyed_random import RandomKey
from ..methods.algorithms import ParameterAlgorithm
from ..recipe import Recipe
from ..settings import SettingError
from .checkpoint_check import require_fitting
from .components import Components, WrapEngine, components_of
from .exchange_step import ExchangeStep, exchange_gradients, exchange_models
from .gradient_transforms import transform_gradients
from .method_choice import check_memory, check_optimizer, compressor_for
from .nonfinite import no_measures
from .parameter_step import step_parameters
from .record import StepRecord, record_of
from .regime import Form, Regime
from .regime_check import check_phases
from .shard import shard
from .step_settings import StepSettings
from .step_timer import StepTimer
from .summary import html_table, one_line
from .worker_parameters import load_average


class Simulator:
    """W workers that train together: one model, or a model each.

    >>> model = nn.Linear(4, 2)
    >>> simulator = Simulator(model, workers=2, prune=0.5, warmup=False, lr=0.1, momentum=0.9)
    >>> record = simulator.step(torch.ones(6, 4), torch.zeros(6, dtype=torch.long))
    >>> record.payload_bytes, record.dense_bytes
    ([40, 40], 40)

    Here 4 of 8 weights go as 4 bytes of value and 4 of index, and both biases whole.

    The parameters of `model` are updated in place; where workers have models of their own,
    `evaluation_model()` puts the mean of these into it. Each worker has its own BatchNorm
    statistics, of which `evaluation_model()` takes the mean too. Settings are those of `Recipe`, by
    the same names as the command line's options. Raises `SettingError` for any that is wrong.

    A model with an attribute `carried` keeps a state of each sample in the buffers [b, ...] that it
    names: each worker has its own, keeps it from step to step, and starts again with each epoch.

    With a `transport` between processes, each hosts W / ranks of the workers and is given the same
    global batches; records and states are those of all W. `samples` [W] are how many each worker
    holds, if not as many as the others. `observers` see every message that is sent; `wrap_engine`
    may put another engine around the one that the settings name.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Criterion = F.cross_entropy,
        *,
        regime: Form | Regime = None,
        transport: Transport | None = None,
        samples: Tensor | None = None,
        observers: Sequence[Observer] = (),
        wrap_engine: WrapEngine | None = None,
        **settings: Any,
    ) -> None:
        recipe = Recipe.of(settings)
        parts = self._parts = components_of(
            model, criterion, recipe, regime, transport, samples, observers, wrap_engine
        )
        self._buffers = {n: torch.stack([b] * len(parts.workers)) for n, b in model.named_buffers()}
        self._initial = {name: self._buffers[name].clone() for name in carried(model)}
        self._steps = 0
        self._epoch: int | None = None
        self._results: list[Mapping[str, float]] = []  # of the epochs that ended, for the regime
        self._compressor = ""  # the spec in force
        check_phases(parts)
        self._follow(StepSettings.at(parts.recipe, parts.regime, 0, 0, parts.memory))

    def step(self, x: Tensor, y: Tensor, epoch: int | None = None) -> StepRecord:
        """Train on one global batch, `x` [B, ...] and `y` [B, ...], B a multiple of W * M.

        Worker w gets the samples w * b * M to (w + 1) * b * M. `epoch` counts from 0 and drives the
        regime and the warm-up; without it the last one given holds. Raises `SettingError` if B is
        no such multiple, or if the regime follows epochs and none was ever given.
        """
        parts, guard = self._parts, self._parts.guard
        settings = self._settings_at(epoch)
        key = parts.key.fold_in(self._steps)
        timer = StepTimer(parts.workers)
        gradients = self._gradients(self._shard(x), self._shard(y), key)
        timer.mark("compute")
        measures = no_measures(parts.layout, parts.workers)
        if guard.applied:
            segments = transform_gradients(
                gradients.values,
                parts.layout,
                settings,
                parts.clip,
                parts.regularized,
                parts.parameters,
            )
            exchange = self._exchange_step(settings, key)
            if isinstance(parts.algorithm, ParameterAlgorithm):
                step_parameters(parts, segments, settings)
                measures, anything_sent = exchange_models(
                    exchange, parts.segment_states, parts.parameters.segments(parts.layout)
                )
                if anything_sent and parts.algorithm.resets_optimizer:
                    parts.optimizer.reset()
                timer.mark("compression")
            else:
                aggregated, measures = guard.protect(
                    lambda own: exchange_gradients(
                        exchange, parts.segment_states, own, gradients.squares
                    ),
                    segments,
                    parts.segment_states,
                    parts.channel.ledger,
                )
                timer.mark("compression")
                if guard.applied:
                    step_parameters(parts, aggregated, settings)
        parts.parameters.stepped()
        self._steps += 1
        return record_of(parts, settings, gradients, measures, timer, self._steps, self._epoch or 0)

    def begin(self) -> None:
        """Put back the states that the model carries from step to step, as at the start."""
        self._buffers.update({name: state.clone() for name, state in self._initial.items()})

    def end_epoch(self, results: Mapping[str, float]) -> None:
        """Let the regime know the results of the epoch that ended, such as {"val_loss": 0.3}."""
        self._results.append(results)

    def engine_for(self, x: Tensor, y: Tensor) -> str:
        """Return the name of the engine that a step on such a batch uses.

        `x` [B, ...] and `y` [B, ...] as for `step`, which this leaves as it would be.
        """
        parts = self._parts
        if not parts.engine.chooses:
            return parts.recipe.engine
        if not parts.engine.chosen:
            parts.model.train()
            batch, target = self._shard(x)[:, 0], self._shard(y)[:, 0]
            keys = parts.key.fold_in(0).fold_in("dropout").fold_in(0).keys()
            parts.engine.choose(parts.parameters.read(), self._buffers, batch, target, keys)
        return parts.engine.chosen

    def forward_once(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the output for one worker's share of a batch, in training mode, changing nothing.

        `x` [B, ...] and `y` [B, ...] as for `step`. What model and criterion raise is passed on.
        """
        parts = self._parts
        parts.model.train()
        batch, target = self._shard(x)[0, 0], self._shard(y)[0, 0]
        own = {name: buffer[0].clone() for name, buffer in self._buffers.items()}
        with torch.no_grad(), KeyedDropout(parts.key.keys()[0]):
            return parts.engine.loss(dict(parts.params), own, batch, target)[1]

    def evaluation_model(self, buffers: str = "mean", worker: int | None = None) -> nn.Module:
        """Return the model in evaluation mode, with BatchNorm statistics to evaluate with.

        Where workers have models of their own it is their mean, or that of one `worker`, with that
        worker's statistics. A state that the model carries is no worker's: a text to evaluate
        starts from the beginning. `buffers` is "mean", the mean over workers, or "rank0", worker
        0's. Training continues as if this had not been called.
        """
        parts = self._parts
        return load_average(
            parts.model,
            parts.parameters,
            self._buffers,
            self._initial,
            parts.transport.all_gather_rows,
            buffers,
            worker,
        )

    def parameters(self) -> dict[str, Tensor]:
        """Return what is trained: {name: [*shape]}, or of all workers' own, [W, *shape]."""
        state = self._parts.parameters.state_dict(self.all_gather)
        return {name: state[name] for name in self._parts.params}

    def consensus_distance(self) -> float:
        """Return sqrt(mean_i ||x_i - mean||^2) over the workers' models; 0 where they share one.

        This waits for the device.
        """
        return self._parts.parameters.consensus_distance(self.all_gather)

    def all_gather(self, rows: Tensor) -> Tensor:
        """Return [W, ...] for `rows` [L, ...] of the workers that each process hosts."""
        return self._parts.transport.all_gather_rows(rows)

    def hosted_samples(self, batch: Tensor) -> Tensor:
        """Return the samples [L * M * b, ...] of a batch [B, ...] that go to workers hosted here.

        Raises `SettingError` if B is no multiple of W * M.
        """
        return self._shard(batch).flatten(0, 2)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed simulation needs: tensors and plain values."""
        parts, gather = self._parts, self.all_gather
        return {
            "parameters": parts.parameters.state_dict(gather),
            "buffers": {name: gather(own) for name, own in self._buffers.items()},
            "compressor": self._compressor,
            "voices": {
                state.segment.name: state.state_dict(None if parts.hosts_all else gather)
                for state in parts.segment_states
            },
            "optimizer": parts.optimizer.state_dict(parts.parameters.optimizer_rows(gather)),
            "steps": self._steps,
            "epoch": self._epoch,
            "results": list(self._results),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises `SettingError` if it belongs to another model, another W or another memory.
        """
        parts = self._parts
        require_fitting(state, self.state_dict())
        parts.parameters.load_state_dict(state["parameters"], parts.hosted)
        for name, buffer in self._buffers.items():
            buffer.copy_(state["buffers"][name][parts.hosted])
        self._set_compressor(state["compressor"])
        for own in parts.segment_states:
            saved = state["voices"][own.segment.name]
            own.load_state_dict(saved, None if parts.hosts_all else parts.hosted)
        rows = parts.parameters.optimizer_rows(lambda every: every[parts.hosted])
        parts.optimizer.load_state_dict(state["optimizer"], rows)
        self._steps, self._epoch = state["steps"], state["epoch"]
        self._results = list(state["results"])

    @property
    def components(self) -> Components:
        """The parts that the simulator is made of."""
        return self._parts

    @property
    def recipe(self) -> Recipe:
        """The settings of a step, with the memory that they come to."""
        return self._parts.recipe

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._parts.model

    @property
    def compressor(self) -> str:
        """The spec of the compressor in force."""
        return self._compressor

    @property
    def buffers(self) -> Tensors:
        """Each hosted worker's buffers, {name: [L, *shape]}."""
        return dict(self._buffers)

    @property
    def steps(self) -> int:
        """Steps done."""
        return self._steps

    def __repr__(self) -> str:
        return one_line(self)

    def _repr_html_(self) -> str:
        return html_table(self)

    def _settings_at(self, epoch: int | None) -> StepSettings:
        parts = self._parts
        if epoch is not None and epoch != self._epoch:
            self._epoch = epoch
            self.begin()
        if self._epoch is None and parts.regime.follows_epochs:
            rule = "is needed: the regime or the warm-up follows it"
            fix = "call step(x, y, epoch=e), or set warmup=False and a regime without epochs"
            raise SettingError("epoch", None, rule, fix)
        now = self._epoch or 0, self._steps
        settings = StepSettings.at(parts.recipe, parts.regime, *now, parts.memory, self._results)
        self._follow(settings)
        return settings

    def _follow(self, settings: StepSettings) -> None:
        check_optimizer(self._parts.algorithm, settings.optimizer.get("optimizer", "SGD"))
        self._parts.optimizer.follow(settings.optimizer)
        self._set_compressor(settings.compressor)

    def _set_compressor(self, spec: str) -> None:
        if spec != self._compressor:
            compressor = compressor_for(self._parts.algorithm, spec)
            check_memory(self._parts.recipe, compressor, spec)
            self._compressor = spec
            for state in self._parts.segment_states:
                state.set_compressor(compressor)

    def _shard(self, batch: Tensor) -> Tensor:
        """Return the samples of the workers hosted here, [L, M, b, ...]."""
        recipe = self._parts.recipe
        return shard(batch, recipe.workers, recipe.accumulate)[self._parts.hosted]

    def _gradients(self, x: Tensor, y: Tensor, key: RandomKey) -> Gradients:
        """Return the gradient of each worker, and keep the buffers that the forward pass left."""
        parts = self._parts
        parts.model.train()
        needs_squares = any(state.compressor.needs_squares for state in parts.segment_states)
        gradients = accumulated(
            parts.engine,
            parts.parameters.read(),
            self._buffers,
            x,
            y,
            key.fold_in("dropout"),
            sample_squares if needs_squares else None,
        )
        seed, workers = parts.recipe.seed, parts.recipe.workers
        participants = parts.algorithm.participants(seed, workers, self._steps, self._epoch or 0)
        gradients = parts.guard.admit(gradients, self._buffers, participants)
        self._buffers = gradients.buffers
        return gradients

    def _exchange_step(self, settings: StepSettings, key: RandomKey) -> ExchangeStep:
        return ExchangeStep(
            channel=self._parts.channel,
            memory=settings.memory,
            key=key,
            number=self._steps,
            epoch=self._epoch or 0,
            flush=settings.flush,
            samples=self._parts.samples,
        )
