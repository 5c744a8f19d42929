"""Finds a buffer of the model that a person changed between steps, as a mask.

Letters: L workers hosted here.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..gradients.contract import Tensors, carried
from ..gradients.same_bits import same_bits
from ..settings import SettingError


class _Known(NamedTuple):
    place: tuple[int, int]  # which tensor it is, and how often that was written
    value: Tensor  # as it was when the simulator was made
    seen: Tensor  # as it was when it was last found to be another


class ConstantBuffers:
    """The buffers of a model as they were; each worker has copies, which steps may change."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        known = {n: b for n, b in model.named_buffers() if n not in carried(model)}
        self._known = {n: _Known(_place(b), own := b.clone(), own) for n, b in known.items()}

    def check(self, rows: Tensors, evaluated: bool) -> None:
        """Raise `SettingError` for one with other numbers, which no step would see.

        `rows` {name: [L, ...]} are the workers' own. A model that was `evaluated` since the last
        step may have changed its buffers by itself, as a cache.
        """
        for name, buffer in self._model.named_buffers():
            known = self._known.get(name)
            if known is None:
                continue
            value, place = known.value, _place(buffer)
            if known.place == place and same_bits(buffer, known.seen):
                continue
            self._known[name] = known._replace(place=place, seen=buffer.clone())
            same = buffer.shape == value.shape and torch.equal(buffer, value)
            if not (same or evaluated) and bool((rows[name] == value).all()):
                rule = f"has other numbers in {name} by now, of which each worker has a copy"
                fix = f"change simulator.buffers[{name!r}], [{len(rows[name])}, ...], in place"
                raise SettingError("model", None, rule, fix)


def _place(buffer: Tensor) -> tuple[int, int]:
    return id(buffer), buffer._version
