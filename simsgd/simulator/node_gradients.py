"""The gradient of a node: the mean over its devices, which share its samples.

Letters: L workers hosted here, which are nodes, G devices of each, M passes, b samples of a device.
"""

import dataclasses

import torch
from torch import Tensor

from ..gradients.contract import Gradients, Tensors
from ..gradients.flat_rows import FlatRows
from ..gradients.trees import mapped
from ..keyed_random import RandomKey


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

    def apart(rows: Tensor) -> Tensor:
        own: Tensor = rows.unflatten(0, (-1, devices))
        return own

    def mean(rows: Tensor) -> Tensor:
        return apart(rows).mean(1)

    def beside(output: Tensor) -> Tensor:  # [L * G, M * b, ...], or numbers [L * G]
        return apart(output).flatten(1, 2) if output.dim() > 1 else apart(output)

    every = FlatRows(found.flat, found.values).mapped(mean)
    return dataclasses.replace(
        found,
        values=every.values,
        flat=every.flat,
        loss=mean(found.loss),
        output=mapped(beside, found.output),
        buffers={name: apart(own) for name, own in found.buffers.items()},
        unused={name: apart(own).all(1) for name, own in found.unused.items()},
    )
