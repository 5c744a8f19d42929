"""Batches and outputs that are one tensor, or dicts, lists and tuples of tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Tree = Any  # a tensor, or dicts, lists and tuples of such


def mapped(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Return the same tree of `function` of each tensor; `others` are trees of the same form."""
    if isinstance(tree, Tensor):
        return function(tree, *others)

    def of_leaf(leaf: object, *more: object) -> object:
        return function(leaf, *more) if isinstance(leaf, Tensor) else leaf

    return tree_map(of_leaf, tree, *others)


def row(tree: Tree, index: Any) -> Tree:
    """Return each tensor at an index."""
    return tree[index] if isinstance(tree, Tensor) else mapped(lambda leaf: leaf[index], tree)


def cloned(tree: Tree) -> Tree:
    """Return a copy, for what is called on a batch more than once: it may write into its inputs."""
    return mapped(Tensor.clone, tree)


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def is_of_tensors(tree: Tree) -> bool:
    """Return whether there is nothing but tensors in it."""
    return isinstance(tree, Tensor) or all(isinstance(leaf, Tensor) for leaf in tree_leaves(tree))


def copy_all(into: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors to others of their shapes and dtypes, those of one dtype in one call."""
    pairs = [*zip(into, given, strict=True)]
    with torch.no_grad():
        for dtype in dict.fromkeys(own.dtype for own in into):
            ours, theirs = zip(*(pair for pair in pairs if pair[0].dtype == dtype), strict=True)
            torch._foreach_copy_(ours, theirs)


def odd_form(tensor: Tensor) -> str:
    """Return what a tensor is if it is no dense one of numbers: nested, meta or its layout."""
    if tensor.is_nested:
        return "nested"
    return (
        "meta" if tensor.is_meta else "" if tensor.layout == torch.strided else str(tensor.layout)
    )


def stacked(trees: list[Tree]) -> Tree:
    """Return one tree of the tensors of several, laid along a new first dimension."""
    return mapped(lambda *own: torch.stack(own), *trees)
