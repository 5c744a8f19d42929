"""The gradient of each worker on its share of a batch.

Letters: W simulated workers, L hosted here, G devices of each, b samples of these, M passes,
B = W * G * b * M.
"""

import dataclasses

import torch
from torch import Tensor

from ..gradients import Gradients
from ..gradients.accumulation import accumulated
from ..gradients.attributes import attributes_kept
from ..gradients.contract import Tensors, require_gradient
from ..gradients.dropout import KeyedDropout
from ..gradients.flat_rows import FlatRows
from ..gradients.generators import seeded
from ..gradients.loop import Loop
from ..gradients.sample_squares import sample_squares
from ..gradients.self_check import Batch
from ..gradients.thread_count import thread_count
from ..gradients.trees import Tree, cloned, leaves, mapped, row
from ..keyed_random import RandomKey
from ..settings import SettingError, require
from .components import Components
from .kept_state import check_kept_state
from .model_check import check_hooks
from .node_gradients import (
    gradient_of_node,
    key_of_devices,
    mean_over_devices,
    of_devices,
    places_of_devices,
    rows_of_devices,
)
from .running_state import RunningState
from .shard import shard

_TRIED = 2  # workers


def hosted_shards(parts: Components, batch: Tree) -> Tree:
    """Return the samples of the devices of workers hosted here, [L * G, M, b, ...], of [B, ...].

    Raises `SettingError` if B is no multiple of W * G * M.
    """
    devices, hosted = parts.recipe.devices, parts.hosted
    each = shard(batch, parts.recipe.workers, parts.recipe.accumulate, devices)
    return row(each, slice(hosted.start * devices, hosted.stop * devices))


def compute_gradients(
    parts: Components, state: RunningState, x: Tree, y: Tree, key: RandomKey
) -> Gradients:
    """Return the gradient of each worker, and keep the buffers that the forward pass left.

    `x` [B, ...] and `y` [B, ...]. What is not finite is treated as `on_nonfinite` says.
    """
    rule, fix = "was left in the middle of a step by an error", "load a state_dict, or make another"
    require(not state.half_done, "simulator", None, rule, fix)
    _check_frozen(parts)
    check_hooks(parts.params, parts.recipe.engine, parts.parameters.has_models)
    parts.given_optimizers.check()
    parts.constants.check(state.buffers, evaluated=not (state.is_tried and parts.model.training))
    _check_autocast(parts)
    parts.mode.enter()
    seed, workers = parts.recipe.seed, parts.recipe.workers
    participants = parts.algorithm.participants(seed, workers, state.steps, state.epoch or 0)
    x, y = _hosted_pair(parts, x, y)
    _check_kept(parts, state, x, y)
    state.is_tried = True
    with thread_count(parts.engine.operation_threads):
        if participants is None:
            gradients = _gradients(parts, parts.parameters.read(), state.buffers, x, y, key)
        else:
            trains = participants[parts.hosted].nonzero().flatten().to(parts.workers.device)  # rows
            gradients = _of_some(parts, state.buffers, x, y, key, trains)
    gradients = _without_frozen(parts, gradients)
    gradients = parts.guard.admit(gradients, state.buffers, participants)
    state.buffers, state.half_done = gradients.buffers, True
    return gradients


def _check_kept(parts: Components, state: RunningState, x: Tree, y: Tree) -> None:
    """Look at what model and criterion keep, unless that was done; one worker in a loop may."""
    alone = parts.recipe.workers * parts.recipe.devices == 1
    if not (state.is_checked or (alone and parts.engine_name == "loop")):
        own = {name: buffer[0] for name, buffer in _of_rows(parts, state).items()}
        check_kept_state(parts, own, row(x, (0, 0)), row(y, (0, 0)), alone)
    state.is_checked = True


def _check_autocast(parts: Components) -> None:
    if torch.is_autocast_enabled(parts.workers.device.type):
        rule = "is set by torch.autocast around the step, which the engines do not follow"
        raise SettingError("amp", None, rule, 'set amp="bf16" of the simulator instead')


def _hosted_pair(parts: Components, x: Tree, y: Tree) -> tuple[Tree, Tree]:
    """Return `hosted_shards` of inputs and targets. Raises `SettingError` for other numbers."""
    pair = hosted_shards(parts, x), hosted_shards(parts, y)
    inputs, targets = (len(leaves(part)[0]) for part in (x, y))
    rule = f"has {inputs} inputs and {targets} targets"
    require(inputs == targets, "batch", None, rule, "each input needs a target")
    return pair


def _gradients(
    parts: Components,
    params: Tensors,
    buffers: Tensors,
    x: Tensor,
    y: Tensor,
    key: RandomKey,
    trains: bool = True,
) -> Gradients:
    """Return the gradients of workers whose samples are `x` and `y`, [L * G, M, b, ...].

    Where no device of a node here `trains`, what is returned is dropped.
    """
    needs_squares = any(own.compressor.needs_squares for own in parts.segment_states)
    squares = sample_squares if needs_squares else None
    params = {name: params[name] for name in parts.groups.parameters}  # as they lie in [L, P]

    node, devices = parts.transport.node, parts.recipe.devices
    if node is not None:
        x, y = (row(part, slice(node.device, node.device + 1)) for part in (x, y))

    def compute(own: Tensors, before: Tensors, keys: RandomKey) -> Gradients:
        key = keys.fold_in("dropout")
        return accumulated(parts.engine, own, before, x, y, key, squares, parts.graphs)

    if node is not None:
        return gradient_of_node(node, compute, params, buffers, key, trains)
    if devices == 1:
        return compute(params, buffers, key)
    if parts.parameters.per_worker:
        params = of_devices(params, devices)
    found = compute(params, rows_of_devices(buffers), key_of_devices(key, devices))
    return mean_over_devices(found, devices)


def _check_frozen(parts: Components) -> None:
    """Raise `SettingError` where other parameters require gradients, or none does."""
    trained = any(p.requires_grad for p in parts.params.values())
    rule, fix = "has no parameters to train any more", "let some require gradients again"
    require(trained, "model", None, rule, fix)
    for name, p in parts.frozen.items():
        if p.requires_grad:
            rule = f"trains {name}, whose requires_grad was False when the Simulator was made"
            raise SettingError("model", None, rule, "set it before, or make another Simulator")


def _without_frozen(parts: Components, gradients: Gradients) -> Gradients:
    """Return the gradients with none for parameters whose requires_grad is False by now."""
    frozen = [name for name, p in parts.params.items() if not p.requires_grad]
    if not frozen:
        return gradients
    parts.parameters.freeze(frozen)
    for name in frozen:
        gradients.values[name].zero_()
    nobody = torch.ones(len(gradients.loss), dtype=torch.bool)
    return dataclasses.replace(
        gradients, unused={**gradients.unused, **dict.fromkeys(frozen, nobody)}
    )


def unused_parameters(parts: Components, gradients: Gradients) -> frozenset[str]:
    """Return the parameters that no worker used, of all W; the gradients are those of L.

    Where processes share the workers, they tell each other.
    """
    names, unused = list(parts.params), gradients.unused
    if parts.hosts_all:
        return frozenset(name for name, own in unused.items() if own.all())
    used = torch.zeros(len(gradients.loss), dtype=torch.bool)
    own = torch.stack([unused.get(name, used) for name in names], dim=1)  # [L, parameters]
    everywhere = parts.transport.all_gather_rows(own.to(parts.workers.device)).all(0)
    return frozenset(name for name, idle in zip(names, everywhere.tolist(), strict=True) if idle)


def _of_some(
    parts: Components, buffers: Tensors, x: Tensor, y: Tensor, key: RandomKey, trains: Tensor
) -> Gradients:
    """Return gradients of all L workers, computed for the rows `trains` alone.

    Those of the others are 0, and so are their losses and outputs; their buffers stay. A process
    that hosts none of those who train computes one and drops it, to stay in step with the others.
    """
    rows = trains if len(trains) else trains.new_zeros(1)
    params = {name: p.detach()[rows] for name, p in parts.parameters.read().items()}
    before = {name: buffer[rows] for name, buffer in buffers.items()}
    own_key = dataclasses.replace(key, workers=key.workers[rows])
    places = places_of_devices(rows, parts.recipe.devices)
    x, y = row(x, places), row(y, places)
    own = _gradients(parts, params, before, x, y, own_key, trains=len(trains) > 0)
    num, workers = len(trains), len(parts.workers)

    def of_all(values: Tensor) -> Tensor:
        every = values.new_zeros(workers, *values.shape[1:])
        return every.index_copy_(0, trains, values[:num])

    every = FlatRows(own.flat, own.values).mapped(of_all)
    return Gradients(
        values=every.values,
        flat=every.flat,
        loss=of_all(own.loss),
        output=mapped(of_all, own.output),
        buffers={
            name: buffer.index_copy(0, trains, own.buffers[name][:num])
            for name, buffer in buffers.items()
        },
        unused={
            name: torch.ones(workers, dtype=torch.bool).index_copy_(0, trains.cpu(), missing[:num])
            for name, missing in own.unused.items()
        },
    )


def device_rows(parts: Components, buffers: Tensors) -> tuple[Tensors, Tensors, Tensor]:
    """Return what an engine takes at step 0: parameters, buffers and keys, [L * G, ...] each."""
    devices, params, key = parts.recipe.devices, parts.parameters.read(), parts.key
    if devices > 1:
        params = of_devices(params, devices) if parts.parameters.per_worker else params
        buffers, key = rows_of_devices(buffers), key_of_devices(key, devices)
    return params, buffers, key.fold_in(0).fold_in("dropout").fold_in(0).keys()


def engine_name(parts: Components, state: RunningState, x: Tree, y: Tree) -> str:
    """Return the name of the engine that a step on such a batch uses, which it may choose now.

    One that was asked for is tried before the first step, on few workers: it raises what it would
    raise then.
    """
    parts.mode.enter()
    x, y = _hosted_pair(parts, x, y)
    _check_kept(parts, state, x, y)
    batch, target = (row(part, (slice(None), 0)) for part in (x, y))  # of the first pass
    params, buffers, keys = device_rows(parts, state.buffers)
    if not parts.engine_name:  # which the check may have chosen
        parts.engine.choose(params, buffers, batch, target, keys)
    elif not (state.is_tried or parts.engine.chooses or parts.engine_name == "loop"):
        _try_engine(parts, params, buffers, batch, target, keys)
    return parts.engine_name


def _try_engine(
    parts: Components, params: Tensors, buffers: Tensors, x: Tree, y: Tree, keys: Tensor
) -> None:
    few = slice(_TRIED)
    own = Batch(params, buffers, x, y, keys, parts.engine.per_worker).of(few)
    with attributes_kept(parts.model, parts.engine.criterion):
        parts.engine(own.params, own.buffers, cloned(own.x), cloned(own.y), own.keys)


def forward_once(parts: Components, state: RunningState, x: Tree, y: Tree) -> Tree:
    """Return the output for one worker's share of a batch, in training mode, changing nothing.

    Generators are left as they were too.
    """
    parts.mode.enter()
    batch, target = (cloned(row(part, (0, 0))) for part in _hosted_pair(parts, x, y))
    own = {name: buffer[0].clone() for name, buffer in _of_rows(parts, state).items()}
    key = parts.key.keys()[0]
    kept = attributes_kept(parts.model, parts.engine.criterion)
    with kept, torch.enable_grad(), seeded(key), KeyedDropout(key):
        loss, output = parts.engine.loss(dict(parts.params), own, batch, target)
    require_gradient(loss)
    return output


def unused_once(parts: Components, state: RunningState, x: Tree, y: Tree) -> list[str]:
    """Return the parameters that get no gradient from one worker's share of a batch."""
    parts.mode.enter()
    config = dataclasses.replace(parts.engine.config, per_worker=False)
    loop = Loop(parts.model, parts.engine.criterion, config)
    own = {name: buffer[:1] for name, buffer in _of_rows(parts, state).items()}
    keys = parts.key.keys()[:1]
    x, y = (cloned(row(part, (slice(1), 0))) for part in _hosted_pair(parts, x, y))
    with attributes_kept(parts.model, parts.engine.criterion):
        return [*loop(dict(parts.params), own, x, y, keys).unused]


def _of_rows(parts: Components, state: RunningState) -> Tensors:
    """Return the buffers with a row for each device, or worker if it is one."""
    return rows_of_devices(state.buffers) if parts.recipe.devices > 1 else state.buffers
