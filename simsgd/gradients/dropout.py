"""Dropout whose masks are a function of (seed, step, worker), in every engine the same.

Letters: b samples of one worker.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..keyed_random import uniform
from ..settings import SettingError
from .contract import UnsupportedModel

Function = Callable[..., Tensor]  # of torch, such as F.dropout
_ALPHA = -1.7580993408473766  # the negative saturation of SELU, see F.alpha_dropout


def drops(func: Callable[..., object]) -> bool:
    """Return whether a function of torch is a dropout."""
    return func in _KINDS


class KeyedDropout(TorchFunctionMode):
    """Within it, the i-th dropout of a forward pass draws from the i-th stream of a worker's key.

    Works inside `torch.func.vmap`, where the key is the mapped one.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Answer calls of the dropout functions and pass on all others."""
        if func not in _KINDS:
            return func(*args, **(kwargs or {}))
        return self._dropout(func, *args, **(kwargs or {}))

    def _dropout(
        self,
        func: Callable[..., object],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        whole_features, alpha = _KINDS[func]
        self._advance()
        shape = input.shape[:2] if whole_features else input.shape  # one draw for each [b, C]
        draws = self._draws(math.prod(shape))
        kept = (draws >= p).reshape(*shape, *[1] * (input.dim() - len(shape)))
        return _alpha_dropped(input, kept, p) if alpha else _dropped(input, kept, p)

    def _advance(self) -> None:
        """Go on to the next dropout."""
        self.calls += 1

    def _draws(self, n: int) -> Tensor:
        """Return the `n` numbers of the current dropout."""
        return uniform(self.key + self.calls, n)


class ReplayedDropout(KeyedDropout):
    """Within it, a dropout that `torch.utils.checkpoint` computes again drops the same again.

    To be held around the backward too. Checkpointing puts torch's generator back to where it was
    before it computes a block again; so its state tells which dropout is meant, and each dropout
    moves it on by one number. That is no part of what is dropped.
    """

    finished = False  # whether the forward is over

    def __init__(self, key: Tensor) -> None:
        super().__init__(key)
        self._places: dict[bytes, int] = {}  # state of the generator: number of the dropout

    def _advance(self) -> None:
        place = torch.default_generator.get_state().numpy().tobytes()
        if self.finished and place not in self._places:
            rule = "computes dropout again in the backward without the random state it had before"
            raise SettingError("model", None, rule, "let checkpoint have preserve_rng_state=True")
        self.calls = self._places.setdefault(place, len(self._places) + 1)
        torch.rand((), device="cpu")


class OneTimeDropout(ReplayedDropout):
    """The same where other threads use torch's generator: dropout in a backward is declined."""

    def _advance(self) -> None:
        if self.finished:
            raise UnsupportedModel("dropout in a block that is computed again in the backward")
        self.calls += 1


class SampleDropout(KeyedDropout):
    """Within it, a forward pass of one sample drops what `KeyedDropout` drops of it in its batch.

    That holds where the first dimension of what is dropped counts samples.
    """

    def __init__(self, key: Tensor, sample: Tensor) -> None:
        super().__init__(key)
        self.sample = sample  # its place in the batch, int64

    def _draws(self, n: int) -> Tensor:
        return uniform(self.key + self.calls, n, skip=self.sample * n)


def _dropped(input: Tensor, kept: Tensor, p: float) -> Tensor:
    return input * kept / (1 - p) if p < 1 else input * 0


def _alpha_dropped(input: Tensor, kept: Tensor, p: float) -> Tensor:
    if p == 1:
        return input * 0
    scale = (1 - p) ** -0.5 * (1 + p * _ALPHA**2) ** -0.5
    return torch.where(kept, input, _ALPHA).sub(p * _ALPHA).mul(scale)


_KINDS: dict[Callable[..., object], tuple[bool, bool]] = {  # (whole features, alpha)
    F.dropout: (False, False),
    torch.dropout: (False, False),
    F.dropout1d: (True, False),
    F.dropout2d: (True, False),
    F.dropout3d: (True, False),
    F.alpha_dropout: (False, True),
    F.feature_alpha_dropout: (True, True),
}
