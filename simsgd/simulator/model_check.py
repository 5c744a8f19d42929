"""Refuses a model whose weights a simulator would train otherwise than torch does."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..methods.own_state import repeats
from ..settings import require

Extent = tuple[int, int]  # the first byte of a tensor, and the one behind its last


def check_memory(params: Mapping[str, Tensor]) -> None:
    """Raise `SettingError` for parameters that have numbers in common, or one of them twice."""
    fix = "give each tensors of its own, as p.clone(), or use one Parameter in both places"
    for name, p in params.items():
        require(not repeats(p), "model", None, f"repeats the numbers of {name} in memory", fix)
    extents = {name: _extent(p) for name, p in params.items() if p.numel()}
    before: list[str] = []  # in the order of memory, those that reach beyond where the next begins
    for name in sorted(extents, key=lambda name: extents[name]):
        before = [other for other in before if extents[other][1] > extents[name][0]]
        for other in before:
            rule = f"has numbers that {other} and {name} share in memory"
            require(not _meet(params[other], params[name]), "model", None, rule, fix)
        before.append(name)


def check_hooks(params: Mapping[str, nn.Parameter], engine: str, own_models: bool) -> None:
    """Raise `SettingError` for parameters with hooks that the engine would not call."""
    called = engine == "loop" and not own_models
    for name, p in params.items():
        late = bool(p._post_accumulate_grad_hooks)
        hooked = late or (bool(p._backward_hooks) and not called)
        rule = f"has a hook on {name}, which would not be called"
        fix = "let the regime regularize or clip, or leave the hook out"
        if not (late or own_models):
            fix += "; engine loop calls it"
        require(not hooked, "model", None, rule, fix)


def check_one_forward(model: nn.Module, workers: int) -> None:
    """Raise `SettingError` for layers that change the weights, which all workers have in common."""
    fix = "leave max_norm out, or give each worker its own model, as algorithm local does"
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            kind = f"{type(module).__name__}(max_norm={module.max_norm:g})"
            rule = f"has {name or 'one'}, {kind}, which changes the weights of all workers"
            require(workers == 1, "model", None, rule, fix)


def _extent(p: Tensor) -> Extent:
    steps = sum(step * (size - 1) for step, size in zip(p.stride(), p.shape, strict=True))
    return p.data_ptr(), p.data_ptr() + (steps + 1) * p.element_size()


def _meet(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have an element in common; views of one may lie interleaved."""
    places = torch.arange(one.untyped_storage().nbytes() // one.element_size())
    mine, theirs = (
        places.as_strided(p.shape, p.stride(), p.storage_offset()).flatten() for p in (one, other)
    )
    return bool(torch.isin(mine, theirs).any())
