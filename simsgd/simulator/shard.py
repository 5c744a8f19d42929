"""Splits a global batch over the workers.

Letters: W simulated workers, G devices of each, b samples of these, M passes, B = W * G * b * M.
"""

from collections.abc import Iterator, Mapping, Sized

import numpy as np
from torch import Tensor

from ..gradients.trees import Tree, leaves, mapped, odd_form
from ..settings import SettingError, require


def shard(batch: Tree, workers: int, passes: int, devices: int = 1) -> Tree:
    """Return the samples of each device and pass, [W * G, M, b, ...], of a batch [B, ...].

    A batch may be dicts, lists and tuples of such tensors. Raises `SettingError` if it has no
    tensor or one that requires a gradient, which no step gives it, if B is no multiple of
    W * G * M, or if parts differ in B.
    """
    if not leaves(batch):
        rule, fix = "has no tensor", "give tensors, as torch.as_tensor makes of an array"
        if isinstance(batch, Mapping):
            rule, fix = "is a mapping of another kind than dict", "give dict(batch)"
        raise SettingError("batch", type(batch).__name__, rule, fix)
    lengths = [*dict.fromkeys(len(part) for part in leaves(batch) if part.dim())]
    rule = f"has parts of {' and '.join(map(str, lengths))} samples"
    require(len(lengths) < 2, "batch", None, rule, "give each a row for each sample")
    for values in _undivided(batch):
        rule = f"has {type(values).__name__} of {len(values)} values, which is not divided"
        require(lengths != [len(values)], "batch", None, rule, "give a tensor, or leave it out")
    return mapped(lambda part: _shard(part, workers, passes, devices), batch)


def _undivided(tree: Tree) -> Iterator[Sized]:
    """Yield what has several values and no tensor."""
    if isinstance(tree, np.ndarray) or (isinstance(tree, list) and not leaves(tree)):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for own in tree.values() if isinstance(tree, dict) else tree:
            yield from _undivided(own)


def _shard(batch: Tensor, workers: int, passes: int, devices: int) -> Tensor:
    if form := odd_form(batch):
        fix = "give dense tensors, with a row for each sample"
        raise SettingError("batch", form, "has a tensor of another form", fix)
    if batch.requires_grad:
        rule, fix = "requires a gradient, which a step gives to the model alone", "give x.detach()"
        raise SettingError("batch", None, rule, fix)
    if batch.is_inference():
        fix = "make it outside, or give a clone of it"
        raise SettingError("batch", None, "has a tensor of torch.inference_mode", fix)
    if not batch.dim():
        fix = "give [B, ...], a row for each sample"
        raise SettingError("batch", batch.item(), "has a tensor without dimensions", fix)
    if not len(batch) or len(batch) % (workers * devices * passes):
        what = f"{workers} workers" + (f" x {devices} devices" if devices > 1 else "")
        what += f" x {passes} passes" if passes > 1 else ""
        fix = "leave out a short last batch, as DataLoader(drop_last=True) does"
        raise SettingError("batch", len(batch), f"must be a multiple of the {what}", fix)
    shards: Tensor = batch.detach().unflatten(0, (workers * devices, passes, -1))
    return shards
