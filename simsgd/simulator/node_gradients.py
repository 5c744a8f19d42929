"""The gradient of a node: the mean over its devices, which share its samples.

Letters: L workers hosted here, which are nodes, G devices of each, M passes, b samples of a device.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..communication.transport import NodeRanks
from ..gradients.contract import Gradients, Tensors
from ..gradients.flat_rows import FlatRows
from ..gradients.trees import leaves, mapped
from ..keyed_random import RandomKey

Compute = Callable[[Tensors, Tensors, RandomKey], Gradients]  # of params, buffers and keys


def of_devices(params: Tensors, devices: int) -> Tensors:
    """Return {name: [L * G, ...]} for nodes' models [L, ...], which all their devices have."""
    return {name: p.repeat_interleave(devices, dim=0) for name, p in params.items()}


def rows_of_devices(buffers: Tensors) -> Tensors:
    """Return {name: [L * G, ...]} for buffers [L, G, ...]."""
    return {name: own.flatten(0, 1) for name, own in buffers.items()}


def key_of_devices(key: RandomKey, devices: int) -> RandomKey:
    """Return the random numbers of each device: those of node w are w G to (w + 1) G."""
    return dataclasses.replace(key, workers=places_of_devices(key.workers, devices))


def places_of_devices(workers: Tensor, devices: int) -> Tensor:
    """Return where the devices of `workers` [L] are among all devices, [L * G]."""
    own = torch.arange(devices, device=workers.device)
    return (workers.unsqueeze(1) * devices + own).flatten()


def mean_over_devices(found: Gradients, devices: int) -> Gradients:
    """Return the gradients of nodes, [L, ...], for those of their devices, [L * G, ...].

    The output is [L, G * M * b, ...], buffers are [L, G, ...]; a parameter is unused where no
    device used it.
    """
    every = FlatRows(found.flat, found.values).mapped(
        lambda rows: rows.unflatten(0, (-1, devices)).mean(1)
    )
    return _of_nodes(found, every, devices)


def _of_nodes(found: Gradients, every: FlatRows, devices: int) -> Gradients:
    """Return what `mean_over_devices` does, with `every` gradient of the nodes."""

    def apart(rows: Tensor) -> Tensor:
        own: Tensor = rows.unflatten(0, (-1, devices))
        return own

    def mean(rows: Tensor) -> Tensor:
        return apart(rows).mean(1)

    def beside(output: Tensor) -> Tensor:  # [L * G, M * b, ...], or numbers [L * G]
        return apart(output).flatten(1, 2) if output.dim() > 1 else apart(output)

    return dataclasses.replace(
        found,
        values=every.values,
        flat=every.flat,
        loss=mean(found.loss),
        output=mapped(beside, found.output),
        buffers={name: apart(own) for name, own in found.buffers.items()},
        unused={name: apart(own).all(1) for name, own in found.unused.items()},
    )


def gradient_of_node(
    node: NodeRanks,
    compute: Compute,
    params: Tensors,
    buffers: Tensors,
    key: RandomKey,
    trains: bool = True,
) -> Gradients:
    """Return the gradient of a node whose devices are processes, all of which call this.

    `params` {name: [*shape] or [1, *shape]} and `buffers` {name: [1, G, *shape]} are those of the
    first device, `key` is the node's; it alone gets the gradient, and the others zeros. A node that
    does not train sends nothing.
    """
    at_first = [{name: value[0, d] for name, value in buffers.items()} for d in range(node.devices)]
    own, names = node.tell((at_first, list(params)))
    before = {name: value.unsqueeze(0) for name, value in own[node.device].items()}
    params = {name: params[name] for name in names}
    read = _told(node, params) if trains else params
    keys = key_of_devices(key, node.devices)
    keys = dataclasses.replace(keys, workers=keys.workers[node.device : node.device + 1])
    found = compute(read, before, keys)
    sums = [node.sum_at_first(flat[0]) if trains else flat[0] for flat in found.flat]
    like = {name: value[0] for name, value in found.values.items()}
    every = FlatRows.over([(total / node.devices).unsqueeze(0) for total in sums], like)
    rows = _beside(node.ask((found.loss, found.output, found.buffers, found.unused)), found)
    return _of_nodes(rows, every, node.devices)


def _told(node: NodeRanks, params: Tensors) -> Tensors:
    """Return the first device's parameters at all devices of its node."""
    told = {name: p.detach() for name, p in params.items()}
    for dtype in dict.fromkeys(p.dtype for p in told.values()):
        names = [name for name, p in told.items() if p.dtype == dtype]
        flat = node.from_first(torch.cat([told[name].flatten() for name in names]))
        parts = flat.split([told[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            told[name] = part.view_as(told[name])
    with torch.no_grad():
        for name, p in params.items():
            if isinstance(p, torch.nn.Parameter) and not node.is_first:
                p.copy_(told[name])
    return params if node.is_first else told


def _beside(told: Sequence[tuple[Tensor, Tensor, Tensors, Tensors]], own: Gradients) -> Gradients:
    """Return gradients with the losses, outputs, buffers and unused parameters of all devices."""
    losses, outputs, buffers, unused = zip(*told, strict=True)
    parts = [leaves(output) for output in outputs]
    joined = iter([torch.cat(each) for each in zip(*parts, strict=True)])
    names = dict.fromkeys(name for each in unused for name in each)
    used = torch.zeros(1, dtype=torch.bool)
    return dataclasses.replace(
        own,
        loss=torch.cat(losses),
        output=mapped(lambda _: next(joined), own.output),
        buffers={name: torch.cat([each[name] for each in buffers]) for name in own.buffers},
        unused={name: torch.cat([each.get(name, used) for each in unused]) for name in names},
    )
