"""One step of W data-parallel workers, from batch to parameters.

Letters: W simulated workers, L hosted here, b samples each, M passes, B = W * b * M,
n elements of one segment.
"""

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from ..communication.transport import Observer, Transport
from ..given_object import plain_arguments, with_objects
from ..gradients.contract import Criterion, Tensors
from ..gradients.trees import Tree, leaves, mapped
from ..methods.algorithms import ParameterAlgorithm
from ..recipe import Recipe
from ..settings import require
from .client_pool import begin_round, drawn_clients
from .components import Components, WrapEngine, components_of, recipe_of
from .entry import Entry, guarded_entry
from .exchange_step import ExchangeStep
from .gradient_noise import check_one_model, measure_noise
from .gradient_transforms import transform_gradients
from .group_exchange import exchange_gradients
from .layer_compressors import in_words
from .parameter_step import exchange_parameters, local_gradients, step_parameters
from .phases import check_phases, enter_epoch, follow_regime, numbers_of, told_last
from .record import StepRecord, no_measures, record_of
from .regime import Form, Regime
from .running_state import RunningState, StateDict
from .step_listener import StepListener, checked_listener, refuse_while_recorded
from .step_settings import told_of_method
from .step_timer import StepTimer
from .summary import html_table, one_line
from .worker_gradients import (
    compute_gradients,
    engine_name,
    forward_once,
    hosted_shards,
    unused_once,
    unused_parameters,
)


class Simulator:
    """W workers that train together: one model, or a model each.

    >>> import torch
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
    `compressor`, `memory`, `algorithm`, `optimizer`, `scheduler` and `param_groups` may be objects
    too, where a name stands otherwise; `compress_layers` may be a dict {pattern: compressor}.

    A model with an attribute `carried` keeps a state of each sample in the buffers [b, ...] that it
    names: each worker has its own, keeps it from step to step, and starts again with each epoch.

    With a `transport` between processes, each hosts W / ranks of the workers and is given the same
    global batches; records and states are those of all W. `samples` [W] are how many each worker
    holds, if not as many as the others; with `clients`, each of these, [N]. `local_epochs` needs
    them and `worker_batch`, the samples of a worker in a step. `observers` see every message that
    is sent; `wrap_engine` may put another engine around the one that the settings name,
    whose calls then are no CUDA graphs.
    """

    @plain_arguments
    def __init__(
        self,
        model: nn.Module,
        criterion: Criterion = F.cross_entropy,
        *,
        regime: Form | Regime = None,
        transport: Transport | None = None,
        samples: Tensor | None = None,
        worker_batch: int | None = None,
        observers: Sequence[Observer] = (),
        wrap_engine: WrapEngine | None = None,
        **settings: object,
    ) -> None:
        recipe = recipe_of(with_objects(settings))
        with told_of_method(recipe):
            parts = components_of(
                model,
                criterion,
                recipe,
                regime,
                transport,
                samples,
                worker_batch,
                observers,
                wrap_engine,
            )
        self._entry, self._parts = Entry(model), parts  # first what refuses to be pickled
        self._state = RunningState.of(self._parts)
        check_phases(self._parts)
        check_one_model(self._parts)
        follow_regime(self._parts, self._state)
        self._listener: StepListener | None = None

    def __setattr__(self, name: str, value: object) -> None:
        fix = "give it to Simulator; a regime or a scheduler changes lr and momentum later"
        require(name not in Recipe.__dataclass_fields__, name, value, "cannot be set later", fix)
        super().__setattr__(name, value)

    @guarded_entry
    def step(self, x: Tree, y: Tree, epoch: int | None = None, last: bool = False) -> StepRecord:
        """Train on one global batch, `x` [B, ...] and `y` [B, ...], B a multiple of W * M.

        Both may be dicts, lists and tuples of such tensors, as model and criterion take them.
        Worker w gets the samples w * b * M to (w + 1) * b * M. `epoch` counts from 0 and drives the
        regime and the warm-up; without it the last one given holds. `last` says that no step
        follows, without which `final_exchange` does nothing. With `on_nonfinite` stop it does not
        wait for its numbers: a loss that is NaN is left to the caller, or to `recording`. Raises
        `SettingError` if B is no such multiple, if parts of the batch differ in B, if an epoch is
        needed and none was given, if another thread steps, or if the model has other parts.
        """
        parts, guard, state = self._parts, self._parts.guard, self._state
        last = told_last(last)
        if self._listener is not None:
            self._listener.begin_step(last)
        epoch = enter_epoch(parts, state, epoch)
        settings = follow_regime(parts, state)
        begin_round(parts, state.clients, state.own_buffers, state.steps, epoch)
        key = parts.key.fold_in(state.steps)
        timer = StepTimer(parts.workers)
        gradients = compute_gradients(parts, state, x, y, key)
        timer.mark("compute")
        noise = None
        if parts.recipe.noise_scale:
            noise = measure_noise(parts, gradients.values.values(), len(leaves(x)[0]))
            timer.mark("noise")
        measures = no_measures(parts.layout, parts.workers)
        unused = unused_parameters(parts, gradients)
        if guard.applied:
            segments = transform_gradients(
                gradients.values,
                parts.layout,
                settings,
                parts.clip,
                parts.regularized,
                parts.parameters,
                unused,
            )
            if parts.attack is not None:
                parts.attack.replace_(segments, key, parts.transport.all_gather_rows)
            exchange = ExchangeStep(
                channel=parts.channel,
                memory=settings.memory,
                key=key,
                number=state.steps,
                epoch=epoch,
                last=last,
                flush=settings.flush,
                samples=parts.samples,
                unused=unused,
                lr=settings.lr,
                rates=parts.optimizer.rates(),
            )
            if isinstance(parts.algorithm, ParameterAlgorithm):
                segments = local_gradients(parts, segments)
                step_parameters(parts, segments, settings, unused, gradients.unused)
                measures = exchange_parameters(parts, state, exchange)
                timer.mark("compression")
            else:
                aggregated, measures = guard.protect(
                    lambda own: exchange_gradients(exchange, parts.groups, own, gradients.squares),
                    segments,
                    parts.segment_states,
                    parts.channel.ledger,
                )
                timer.mark("compression")
                if guard.applied:
                    step_parameters(parts, aggregated, settings, unused, {})
        parts.parameters.stepped()
        state.end_step()
        record = record_of(
            parts, settings, gradients, measures, timer, state.steps, epoch, unused, noise
        )
        if self._listener is not None:
            self._listener.end_step(record, x, y)
        return record

    def listen(self, listener: StepListener | None) -> None:
        """Have a listener called around each step from now on; None: no more."""
        self._listener = checked_listener(listener)

    def begin(self) -> None:
        """Put back the states that the model carries from step to step, as at the start."""
        self._state.begin()

    def end_epoch(self, results: Mapping[str, float]) -> None:
        """Let the regime know the results of the epoch that ended, such as {"val_loss": 0.3}."""
        self._state.results.append(numbers_of(results))

    @guarded_entry
    def engine_for(self, x: Tree, y: Tree) -> str:
        """Return the name of the engine that a step on such a batch uses.

        `x` [B, ...] and `y` [B, ...] as for `step`, which this leaves as it would be.
        """
        return engine_name(self._parts, self._state, x, y)

    @guarded_entry
    def forward_once(self, x: Tree, y: Tree) -> Tree:
        """Return the output for one worker's share of a batch, in training mode, changing nothing.

        `x` [B, ...] and `y` [B, ...] as for `step`. What model and criterion raise is passed on.
        """
        return forward_once(self._parts, self._state, x, y)

    @guarded_entry
    def unused_parameters(self, x: Tree, y: Tree) -> list[str]:
        """Return the parameters that get no gradient from a worker's share of a batch.

        `x` [B, ...] and `y` [B, ...] as for `step`, which this leaves as it would be.
        """
        return unused_once(self._parts, self._state, x, y)

    @plain_arguments
    @guarded_entry
    def evaluation_model(self, buffers: str = "mean", worker: int | None = None) -> nn.Module:
        """Return the model in evaluation mode, with BatchNorm statistics to evaluate with.

        Where workers have models of their own it is their mean, or that of one `worker`, with that
        worker's statistics. A state that the model carries is no worker's: a text to evaluate
        starts from the beginning. `buffers` is "mean", the mean over workers, or "rank0", worker
        0's. Training continues as if this had not been called.
        """
        parts, state, recipe = self._parts, self._state, self._parts.recipe
        require(buffers in ("mean", "rank0"), "buffers", buffers, "must be mean or rank0")
        one_of = worker is None or 0 <= worker < recipe.workers
        require(one_of, "worker", worker, f"must lie in [0, {recipe.workers})")
        weights = parts.algorithm.weights(
            recipe.seed, recipe.workers, state.steps - 1, state.epoch or 0, parts.samples
        )
        return parts.parameters.load_average(
            parts.model,
            state.buffers,
            state.initial,
            self.all_gather,
            buffers,
            worker,
            weights if state.steps else None,
        )

    @guarded_entry
    def parameters(self) -> dict[str, Tensor]:
        """Return what is trained: {name: [*shape]}, or of all workers' own, [W, *shape]."""
        state = self._parts.parameters.state_dict(self.all_gather)
        return {name: state[name] for name in self._parts.params}

    @guarded_entry
    def consensus_distance(self) -> float:
        """Return sqrt(mean_i ||x_i - mean||^2) over the workers' models; 0 where they share one.

        This waits for the device.
        """
        return self._parts.parameters.consensus_distance(self.all_gather)

    def all_gather(self, rows: Tensor) -> Tensor:
        """Return [W, ...] for `rows` [L, ...] of the workers that each process hosts."""
        return self._parts.transport.all_gather_rows(rows)

    def hosted_samples(self, batch: Tree) -> Tree:
        """Return the samples [L * M * b, ...] of a batch [B, ...] that go to workers hosted here.

        Raises `SettingError` if B is no multiple of W * M.
        """
        return mapped(lambda part: part.flatten(0, 2), hosted_shards(self._parts, batch))

    @guarded_entry
    def state_dict(self) -> StateDict:
        """Return what a resumed simulation needs: plain values, and tensors that steps change."""
        return self._state.state_dict(self._parts)

    @guarded_entry
    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned.

        Raises `SettingError` for that of another model, W, memory or optimizer, or if recorded.
        """
        refuse_while_recorded(self._listener)
        self._state.load_state_dict(self._parts, state)

    @property
    def listener(self) -> StepListener | None:
        """What is called around each step, if something is."""
        return self._listener

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
        return self._state.compressor

    @property
    def compress_layers(self) -> str:
        """The rules in force for layers that have a compressor of their own."""
        return in_words(self._state.layers)

    @property
    def buffers(self) -> Tensors:
        """Each hosted worker's buffers, {name: [L, *shape]}."""
        return dict(self._state.buffers)

    @property
    def clients(self) -> Tensor | None:
        """The clients that the workers act for in the next step, ids [W]; None: for themselves."""
        nobody = self._state.clients is None
        return None if nobody else drawn_clients(self._parts, self.steps, self._state.epoch or 0)

    @property
    def client_states(self) -> Tensors:
        """What all N clients keep between rounds, {name: [N, ...]}."""
        return {} if self._state.clients is None else dict(self._state.clients.rows)

    @property
    def steps(self) -> int:
        """Steps done."""
        return self._state.steps

    def __repr__(self) -> str:
        return one_line(self)

    def _repr_html_(self) -> str:
        return html_table(self)
