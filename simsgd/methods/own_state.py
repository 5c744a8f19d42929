"""Checks the state that methods of a user's own begin with.

Letters: L workers hosted here, n elements of one segment.
"""

from torch import Tensor

from ..settings import SettingError


def check_rows(kind: str, method: object, state: object, like: Tensor) -> None:
    """Raise `SettingError` unless `state` is a dict of tensors of their own, each with rows.

    `like` [L, n] is what `init` was handed; a state has L rows, or one for all.
    """
    name, rows = type(method).__name__, len(like)
    if not isinstance(state, dict):
        rule = f"has an init that returns no dict of tensors but a {type(state).__name__}"
        raise SettingError(kind, name, rule, "return {} where nothing is kept")
    for key, value in state.items():
        if not isinstance(value, Tensor) or not value.dim() or len(value) not in (1, rows):
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            rule = f"has a state {key!r} that is no tensor with a row a worker but {shape}"
            raise SettingError(kind, name, rule, f"make it [{rows}, ...]")
        if share_memory(value, like) or repeats(value):
            rule = f"has a state {key!r} that is a view of what init was handed"
            if not share_memory(value, like):
                rule = f"has a state {key!r} whose entries share their memory, as of expand"
            fix = "return a tensor of its own, as torch.zeros_like(like) or x.clone()"
            raise SettingError(kind, name, rule, fix)


def check_kept(kind: str, method: object, state: dict[str, Tensor]) -> None:
    """Raise `SettingError` unless all that a method put into its state are tensors."""
    for key, value in state.items():
        if not isinstance(value, Tensor):
            what = f"{key!r}, no tensor but {type(value).__name__}"
            rule = f"puts {what}, into its state, which is saved"
            fix = "keep numbers as tensors with a row a worker, as like.new_zeros(len(like))"
            raise SettingError(kind, type(method).__name__, rule, fix)


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors lie in the same storage."""
    if a.is_meta or b.is_meta or not a.numel() or not b.numel():
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def repeats(value: Tensor) -> bool:
    """Return whether entries of a tensor are the same numbers in memory, as of `expand`."""
    return any(
        size > 1 and not step for size, step in zip(value.shape, value.stride(), strict=True)
    )
