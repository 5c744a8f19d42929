"""Seeds the generators that a model may draw from: torch's, Python's and numpy's.

A loop seeds them with each worker's key, so that a run made twice is the same run; engines that
take several workers at once cannot, and decline a model that draws from them.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .contract import UnsupportedModel

_WORD = 1 << 32  # seeds of numpy


class Generators:
    """The generators of the CPU and of one device. Nothing here waits for the device.

    While a CUDA graph is captured the device's cannot be asked where it is, and is left out.
    """

    def __init__(self, device: torch.device) -> None:
        self.of_torch = [torch.default_generator]
        if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            place = torch.cuda.current_device() if device.index is None else device.index
            self.of_torch.append(torch.cuda.default_generators[place])

    def state(self) -> tuple[Any, ...]:
        """Return where all of them are."""
        return [g.get_state() for g in self.of_torch], random.getstate(), np.random.get_state()

    def set(self, state: tuple[Any, ...]) -> None:
        """Put all of them where they were."""
        for generator, own in zip(self.of_torch, state[0], strict=True):
            generator.set_state(own)
        random.setstate(state[1])
        np.random.set_state(state[2])

    def moved_from(self, before: tuple[Any, ...]) -> bool:
        """Return whether any of them was drawn from since its state was taken."""
        return not _same(before, self.state())

    def seed(self, key: int) -> None:
        """Begin with a key, an int64."""
        for generator in self.of_torch:
            generator.manual_seed(key)
        random.seed(key)
        np.random.seed(key % _WORD)


@contextmanager
def put_back(device: torch.device) -> Iterator[Generators]:
    """Give the generators, and put them back after."""
    generators = Generators(device)
    before = generators.state()
    try:
        yield generators
    finally:
        generators.set(before)


@contextmanager
def seeded(key: Tensor) -> Iterator[None]:
    """Seed the generators with a worker's key, an int64, and put them back after."""
    with put_back(key.device) as generators:
        generators.seed(int(key))
        yield


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """Raise `UnsupportedModel` if what is done within draws; the generators are put back."""
    generators = Generators(device)
    before, drawn = generators.state(), False
    try:
        yield
    finally:
        if drawn := generators.moved_from(before):
            generators.set(before)
    if drawn:
        raise UnsupportedModel(
            "the model draws random numbers of its own, which only a loop can key"
        )


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    pairs = zip(one[0], other[0], strict=True)  # states are in the CPU's memory on any device
    torches = all(bool((a.numpy() == b.numpy()).all()) for a, b in pairs)
    numpys = one[2][2:] == other[2][2:] and bool((one[2][1] == other[2][1]).all())
    return torches and one[1] == other[1] and numpys
