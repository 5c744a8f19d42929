"""Turns what a data set gives into tensors, or dicts, lists and tuples of tensors."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ...gradients.trees import Tree, mapped
from ...settings import SettingError, shown


def refuse_streams(name: str, part: object) -> None:
    """Raise `SettingError` for what gives samples one after the other, or batches of them."""
    kind = type(part).__name__
    if isinstance(part, torch.utils.data.DataLoader):
        rule = f"has a part that is a {kind}, which makes batches of its own"
        raise SettingError("dataset", name, rule, "give its data set, loader.dataset")
    if isinstance(part, torch.utils.data.IterableDataset):
        rule = f"has a part that is a stream, {kind}, and samples are drawn by their number"
        raise SettingError("dataset", name, rule, "give a data set with __len__ and __getitem__")


def targets_of(y: Tree) -> Tree:
    """Return targets as losses take them: whole numbers as int64."""

    def of_leaf(leaf: Tensor) -> Tensor:
        whole = not (leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool)
        return leaf.long() if whole else leaf

    return mapped(of_leaf, y)


def as_tensors(sample: object) -> Tree:
    """Return a sample's arrays and numbers as tensors."""

    def of_leaf(leaf: object) -> Tensor:
        if type(leaf).__module__.startswith("PIL."):
            raise SettingError("dataset", None, "gives PIL images", "give it transforms.ToTensor()")
        return tensors_of(leaf)

    return (
        of_leaf(sample)
        if not isinstance(sample, dict | list | tuple)
        else tree_map(of_leaf, sample)
    )


def tensors_of(numbers: Any) -> Tensor:
    """Return numbers as a tensor. Raises `SettingError` for text, and for anything else."""
    try:
        return torch.as_tensor(numbers).detach()
    except (TypeError, ValueError, RuntimeError) as wrong:
        first = numbers[0] if isinstance(numbers, list | tuple) and numbers else numbers
        if isinstance(first, str | bytes):
            rule = f"gives text, such as {shown(first)!r}, where numbers are needed"
            fix = "make words numbers: classes from 0 on"
        else:
            rule, fix = f"gives {shown(first)} where numbers are needed", "give tensors or numbers"
        raise SettingError("dataset", None, rule, fix) from wrong


def on(tree: Tree, device: torch.device | str) -> Tree:
    """Return samples on a device."""
    return mapped(lambda leaf: leaf.to(device), tree)


def scaled(x: Tree) -> Tree:
    """Return inputs with uint8 brought to [0, 1]."""
    return mapped(lambda leaf: leaf.float().div_(255) if leaf.dtype == torch.uint8 else leaf, x)
