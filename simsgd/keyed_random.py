"""Random numbers that are a function of (seed, step, worker, segment), not a state.

Nothing has to be saved to go on with them, every device and every engine draws the same, and
worker w's numbers do not depend on who else is simulated beside it.

The i-th number of a stream is SplitMix64's output function applied to `key + (i + 1) * GOLDEN`
(Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).

Letters: L workers hosted here, n numbers of a stream.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from . import compiled_loops

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WRAP = 1 << 64
_COMPILED = (torch.float32, torch.float64)  # dtypes that the compiled form makes
_EVERYONE = -1  # the worker id under which all workers draw the same


@dataclass(frozen=True)
class RandomKey:
    """The random numbers of the hosted workers at one place: a step, a segment, a purpose."""

    seed: int  # fixes every number, any integer
    workers: Tensor  # ids of the hosted workers, [L] int64
    place: tuple[int | str, ...] = field(default=())  # where we are, from coarse to fine

    def fold_in(self, *place: int | str) -> "RandomKey":
        """Return the numbers of a place inside this one."""
        return replace(self, place=(*self.place, *place))

    def shared(self) -> "RandomKey":
        """Return the same place where every worker draws the same numbers."""
        return replace(self, workers=torch.full_like(self.workers, _EVERYONE))

    def keys(self) -> Tensor:
        """Return the stream of each hosted worker, [L] int64."""
        return _mix_(self.workers.bitwise_xor(_signed(self._key)).add_(_signed(_GOLDEN)))

    @property
    def _key(self) -> int:
        key = _mixed(self.seed % _WRAP)
        for step in self.place:
            key = _mixed((key ^ _number(step)) + _GOLDEN)
        return key

    def uniform(self, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return numbers uniform in [0, 1), [L, n]."""
        keys = self.keys()
        if n and dtype in _COMPILED and compiled_loops.takes(keys, elements=n):
            from . import keyed_random_kernels

            return keyed_random_kernels.uniform(keys, n, dtype)
        return uniform(keys, n, dtype)


def uniform(
    keys: Tensor, n: int, dtype: torch.dtype = torch.float32, skip: Tensor | int = 0
) -> Tensor:
    """Return `n` numbers of each stream, uniform in [0, 1), without the first `skip`.

    `keys` is int64 of any shape, [...]; the result is [..., n]. Works inside `torch.func.vmap`.
    They have 53 random bits in float64 and 24 in every other dtype.
    """
    counter = torch.arange(1, n + 1, device=keys.device).mul_(_signed(_GOLDEN))
    first = keys + skip * _signed(_GOLDEN)
    return _uniform(first.unsqueeze(-1) + counter, dtype)  # [..., n]


def stacked(places: Sequence[RandomKey]) -> Tensor:
    """Return the streams of the same workers at S places, [L, S] int64."""
    keys = [_signed(own._key) for own in places]
    workers = places[0].workers
    return _mix_(
        workers.unsqueeze(1)
        .bitwise_xor(torch.tensor(keys, device=workers.device))
        .add_(_signed(_GOLDEN))
    )


def uniform_at(keys: Tensor, place: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the number at `place` [n], from 0, of each stream of `keys` [L, n], in [0, 1)."""
    return _uniform(keys + (place + 1).mul_(_signed(_GOLDEN)), dtype)


def _uniform(counters: Tensor, dtype: torch.dtype) -> Tensor:
    bits = _mix_(counters)
    width = 53 if dtype == torch.float64 else 24
    return _shift(bits, 64 - width).to(dtype).mul_(2.0**-width)


def derived(*place: int | str) -> int:
    """Return a seed in [0, 2**63) for a place, to start a generator of a library with."""
    key = 0
    for step in place:
        key = _mixed((key ^ _number(step)) + _GOLDEN)
    return key >> 1


def _mix_(z: Tensor) -> Tensor:
    z.bitwise_xor_(_shift(z, 30)).mul_(_signed(_FIRST))
    z.bitwise_xor_(_shift(z, 27)).mul_(_signed(_SECOND))
    return z.bitwise_xor_(_shift(z, 31))


def _shift(z: Tensor, by: int) -> Tensor:
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)  # int64 shifts carry the sign; drop it


def _mixed(z: int) -> int:
    z %= _WRAP
    z = (z ^ z >> 30) * _FIRST % _WRAP
    z = (z ^ z >> 27) * _SECOND % _WRAP
    return z ^ z >> 31


def _signed(z: int) -> int:
    return z - _WRAP if z >= _WRAP >> 1 else z


def _number(step: int | str) -> int:
    if isinstance(step, int):
        return step % _WRAP
    return int.from_bytes(hashlib.blake2b(step.encode(), digest_size=8).digest(), "little")
