"""The parts that a simulator is made of, built from its settings.

Letters: W simulated workers, L hosted here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..communication.ledger import Ledger
from ..communication.segments import Layout
from ..communication.transport import Channel, InProcess, Observer, Transport, broadcast_object
from ..communication.wire import Wire
from ..config import Config
from ..given_object import WITHOUT_ASYNC, is_async
from ..gradients import GradientEngine
from ..gradients.contract import Criterion, EngineConfig, carried
from ..gradients.cuda_graph import CudaGraphs, graphs_of
from ..gradients.plan import Plan, plan_of
from ..gradients.training_mode import TrainingMode
from ..keyed_random import RandomKey
from ..methods.algorithms import Algorithm, GradientAlgorithm, ParameterAlgorithm
from ..methods.attacks import Attack, attack_of
from ..methods.memories import Memory
from ..recipe import Recipe
from ..registry import find
from ..settings import SettingError, require, require_kind
from .checkpoint_check import shapes
from .constant_buffers import ConstantBuffers
from .gradient_transforms import Clip
from .method_choice import algorithm_of, amp_dtype, memory_name, memory_of, stored_dtype
from .model_check import check_hooks, check_memory, check_one_forward
from .model_form import check_tensors
from .nonfinite import NonfiniteGuard
from .optimizer import RegimeOptimizer
from .outside_parameters import note_trained
from .own_optimizer import GivenOptimizers
from .regime import Form, Regime
from .regularizers import Regularized
from .room import check_room
from .segment_state import SegmentState
from .state_groups import StateGroups
from .step_settings import regime_of
from .worker_parameters import Parameters, parameters_of

WrapEngine = Callable[[GradientEngine], GradientEngine]


@dataclass(frozen=True)
class Components:
    """What a simulator is made of; none of it is replaced while it trains."""

    recipe: Recipe
    regime: Regime
    model: nn.Module
    mode: TrainingMode  # of its modules
    params: dict[str, nn.Parameter]  # the model's, those to train
    frozen: dict[str, nn.Parameter]  # those that are not trained
    samples: Tensor | None  # of each worker, [W], or client, [N]; None: as many as the others
    transport: Transport
    key: RandomKey  # with the ids of the workers hosted here
    layout: Layout
    algorithm: Algorithm
    memory: Memory
    parameters: Parameters
    engine: GradientEngine
    graphs: CudaGraphs | None  # of its calls
    channel: Channel
    guard: NonfiniteGuard
    optimizer: RegimeOptimizer
    given_optimizers: GivenOptimizers
    constants: ConstantBuffers
    regularized: Regularized
    clip: Clip | None
    attack: Attack | None
    segment_states: Sequence[SegmentState]
    groups: StateGroups  # of these: which are exchanged together

    @property
    def workers(self) -> Tensor:
        """The ids of the workers hosted here, [L]."""
        return self.key.workers

    @property
    def engine_name(self) -> str:
        """The name of the engine that computes, "" if it is still to be chosen."""
        return self.engine.chosen if self.engine.chooses else self.recipe.engine

    @property
    def plan(self) -> Plan:
        """The ways of the device, or those that the settings name."""
        return plan_of(self.recipe.plan, self.workers.device.type)

    @property
    def hosted(self) -> slice:
        """Which of all W workers those are."""
        return self.transport.hosted(self.recipe.workers)

    @property
    def hosts_all(self) -> bool:
        """Whether all workers are hosted here."""
        return len(self.workers) == self.recipe.workers and isinstance(self.transport, InProcess)


def recipe_of(settings: Mapping[str, object]) -> Recipe:
    """Return the settings of a simulator. Raises `SettingError` for those of a whole run."""
    for name, value in settings.items():
        of_a_run = name in Config.__dataclass_fields__ and name not in Recipe.__dataclass_fields__
        fix = "a Simulator gets its batches in step"
        require(not of_a_run, name, value, "is a setting of train", fix)
    return Recipe.of(settings)


def components_of(
    model: nn.Module,
    criterion: Criterion,
    recipe: Recipe,
    regime: Form | Regime,
    transport: Transport | None,
    samples: Tensor | None,
    worker_batch: int | None,
    observers: Sequence[Observer],
    wrap_engine: WrapEngine | None,
) -> Components:
    """Return the parts of a simulator. Raises `SettingError` for settings that do not fit."""
    params = _trainable(model)
    note_trained(params.values())
    regime = regime_of(recipe, regime, model, params)
    recipe = replace(recipe, memory=memory_name(recipe, regime))
    _check_criterion(criterion)
    like = next(iter(params.values()))
    transport = transport or InProcess()
    require_kind("transport", transport, Transport)
    require_kind("observers", observers, Sequence)
    for own in observers:
        require(callable(own), "observers", own, "must be functions of a transfer and its message")
    hosted = transport.hosted(recipe.workers)
    gradients = len(range(*hosted.indices(recipe.workers)))
    check_room(params.values(), gradients, "workers", recipe.workers)
    key = RandomKey(recipe.seed, torch.arange(recipe.workers, device=like.device)[hosted])
    dtypes = {name: p.dtype for name, p in params.items()}
    layout = Layout.of(shapes(params), recipe.granularity, recipe.rule, like.element_size(), dtypes)
    algorithm = algorithm_of(recipe).for_layout(layout, recipe.workers)
    _check_samples(samples, worker_batch, recipe.workers, algorithm.clients)
    algorithm = algorithm.for_clients(recipe.workers, samples, worker_batch)
    if not (algorithm.between_processes or isinstance(transport, InProcess)):
        rule = "runs in one process only"
        raise SettingError("algorithm", recipe.algorithm, rule, "start it without torchrun")
    _check_float16(recipe, algorithm)
    plan = plan_of(recipe.plan, like.device.type)
    together = plan.together and isinstance(transport, InProcess)
    parameters = parameters_of(algorithm, params, layout, key, together)
    check_memory(params)
    check_hooks(params, recipe.engine, parameters.has_models)
    if not parameters.has_models:
        check_one_forward(model, recipe.workers)
    memory = memory_of(recipe, regime)
    segment_states = [
        SegmentState(segment, like, memory, algorithm, stored_dtype(recipe))
        for segment, like in zip(layout.segments, parameters.segments(layout), strict=True)
    ]
    engine = _engine(model, criterion, recipe, parameters, transport)
    wire = Wire(recipe.value_dtype, recipe.index_dtype)
    return Components(
        recipe=recipe,
        regime=regime,
        model=model,
        mode=_mode(model),
        params=params,
        frozen={n: p for n, p in model.named_parameters() if n not in params},
        samples=samples,
        transport=transport,
        key=key,
        layout=layout,
        algorithm=algorithm,
        memory=memory,
        parameters=parameters,
        engine=_wrapped(engine, wrap_engine),
        graphs=None if wrap_engine else graphs_of(engine, recipe.cuda_graph, like.device),
        channel=Channel(transport, Ledger(recipe.workers), wire, tuple(observers)),
        guard=NonfiniteGuard(
            recipe.on_nonfinite,
            recipe.value_dtype == "float16",
            transport.all_gather_rows,
            hosted,
        ),
        optimizer=RegimeOptimizer(
            parameters.trained, params if parameters.has_models else None, plan.together
        ),
        given_optimizers=GivenOptimizers(recipe.optimizer),
        constants=ConstantBuffers(model),
        regularized=Regularized(model, parameters.trained),
        clip=_clip(recipe, algorithm),
        attack=_attack(recipe),
        segment_states=segment_states,
        groups=StateGroups(segment_states, together),
    )


def _mode(model: nn.Module) -> TrainingMode:
    mode = TrainingMode(model)
    mode.enter()
    return mode


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    if not isinstance(model, nn.Module):
        rule = f"must be a torch.nn.Module, not {type(model).__name__}"
        raise SettingError("model", model, rule)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        rule = f"is wrapped in {type(model).__name__}"
        raise SettingError("model", None, rule, "give what is in it, its .module")
    if isinstance(model, torch.jit.ScriptModule):
        rule = "is compiled by torch.jit, whose operations cannot be watched"
        raise SettingError("model", None, rule, "give the module that was compiled")
    if hasattr(model, "_orig_mod"):
        rule = "is compiled by torch.compile, and would be again for each engine that is tried"
        raise SettingError("model", None, rule, "give the module itself, with engine compiled")
    waits = any(is_async(module) for module in model.modules())
    require(not waits, "model", None, "has an async forward", WITHOUT_ASYNC)
    lacking = sorted(set(carried(model)) - {name for name, _ in model.named_buffers()})
    rule = f"declares carried, and has no buffer {', '.join(lacking)}"
    require(not lacking, "model", None, rule, "name those that register_buffer made")
    saved = sorted(set(carried(model)) & model.state_dict().keys())
    rule = f"carries {', '.join(saved)}, which its state_dict() holds at the size of a batch"
    require(not saved, "model", None, rule, "register it with persistent=False")
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise SettingError("model", None, "has no parameters to train")
    check_tensors(model)
    return params


def _check_criterion(criterion: Criterion) -> None:
    """Raise `SettingError` for what is no function, and for parameters to train in it."""
    if not callable(criterion):
        rule = f"must be a function of (output, target), not {type(criterion).__name__}"
        raise SettingError("criterion", criterion, rule, "such as torch.nn.functional.mse_loss")
    if isinstance(criterion, type):
        rule = f"is the class {criterion.__name__}, not a function of (output, target)"
        raise SettingError("criterion", None, rule, f"make one, as {criterion.__name__}()")
    require(not is_async(criterion), "criterion", None, "is an async function", WITHOUT_ASYNC)
    if _reduction(criterion) == "sum":
        rule = "adds up the losses of samples, and gradients are those of their mean"
        raise SettingError("criterion", None, rule, "use reduction mean")
    if isinstance(criterion, nn.Module):
        own = [name for name, p in criterion.named_parameters() if p.requires_grad]
        if own:
            rule = f"has parameters ({', '.join(own)}), and only the model's are trained"
            fix = "let the model have them and return what the loss needs, or freeze them"
            raise SettingError("criterion", None, rule, fix)


def _reduction(criterion: Criterion) -> object:
    """Return what a loss of torch, or a partial one, does with the losses of samples."""
    if isinstance(criterion, partial):
        return criterion.keywords.get("reduction")
    return getattr(criterion, "reduction", None)


def _check_float16(recipe: Recipe, algorithm: Algorithm) -> None:
    """Raise `SettingError` where an overflow of float16 would be neither skipped nor zeroed."""
    unseen = isinstance(algorithm, ParameterAlgorithm) and recipe.value_dtype == "float16"
    if unseen and recipe.on_nonfinite != "stop":
        rule = f"does not see models that overflow float16, as algorithm {recipe.algorithm} sends"
        fix = "use value_dtype bfloat16, or on_nonfinite stop"
        raise SettingError("on_nonfinite", recipe.on_nonfinite, rule, fix)


def _check_samples(
    samples: Tensor | None, batch: int | None, workers: int, clients: int | None
) -> None:
    """Raise `SettingError` for anything but a tensor [W], or [N] of clients, and a whole number."""
    if batch is not None:
        require(batch >= 1, "worker_batch", batch, "must be at least 1")
    if samples is None:
        return
    shape = list(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
    number, whose = (workers, "worker") if clients is None else (clients, "client")
    rule = f"must be a tensor [{number}], a number for each {whose}"
    require(shape == [number], "samples", shape, rule)
    least = float(samples.min())
    require(least > 0, "samples", least, "must be greater than 0 for each")


def _engine(
    model: nn.Module,
    criterion: Criterion,
    recipe: Recipe,
    parameters: Parameters,
    transport: Transport,
) -> GradientEngine:
    make = find("engine", recipe.engine)
    config = EngineConfig(
        chunk=recipe.worker_chunk,
        plan=recipe.plan,
        per_worker=parameters.per_worker,
        amp=amp_dtype(recipe, next(iter(parameters.trained.values())).dtype),
    )
    if not isinstance(transport, InProcess):
        config = replace(config, agree=broadcast_object)
    engine: GradientEngine = make(model, criterion, config)
    return engine


def _wrapped(engine: GradientEngine, wrap_engine: WrapEngine | None) -> GradientEngine:
    if wrap_engine is None:
        return engine
    rule, fix = "must be a function of an engine", "let it return an engine"
    require(callable(wrap_engine), "wrap_engine", wrap_engine, rule)
    wrapped = wrap_engine(engine)
    is_one = isinstance(wrapped, GradientEngine)
    require(is_one, "wrap_engine", type(wrapped).__name__, "returns no engine", fix)
    return wrapped


def _attack(recipe: Recipe) -> Attack | None:
    if recipe.attack is None:
        return None
    attack = attack_of(recipe.attack)
    attack.check_workers(recipe.workers)
    return attack


def _clip(recipe: Recipe, algorithm: Algorithm) -> Clip | None:
    if recipe.clip is None:
        return None
    averaged = recipe.workers if isinstance(algorithm, GradientAlgorithm) else 1
    return Clip(recipe.clip, recipe.clip_by, averaged)
