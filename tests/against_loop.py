"""Holds simulators to plain loops over deep copies, float64 to 1e-10."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd import Simulator
from tests.plain_loop import PlainLoop

W, B, STEPS = 4, 16, 3
CLOSE = 1e-10
SHARED = {"algorithm": "allreduce"}
OWN = {"algorithm": "dpsgd", "topology": "ring"}
EVERY = {"allreduce": SHARED, "dpsgd": OWN, "local": {"algorithm": "local", "local_steps": 2}}
every_algorithm = pytest.mark.parametrize("method", EVERY.values(), ids=EVERY)


def made(kind, *args, seed=0, dtype=torch.float64, **kwargs):
    torch.manual_seed(seed)
    return kind(*args, **kwargs).to(dtype)


def batches(steps=STEPS, size=B, inputs=6, classes=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(size, inputs, generator=generator, dtype=torch.float64)
        yield x, torch.randint(classes, (size,), generator=generator)


def both(make, criterion=F.cross_entropy, data=None, engine="auto", between=None, **settings):
    """Return a simulator and a loop that took the same steps from the same model."""
    settings = {"workers": W, "lr": 0.1, **settings}
    model, original = make(), make()
    simulator = Simulator(model, criterion, engine=engine, **settings)
    loop = PlainLoop(original, criterion, **settings)
    for number, (x, y) in enumerate(data or batches()):
        if between is not None:
            between(number, simulator)
        simulator.step(x, y)
        loop.step(x, y)
    return simulator, loop


def assert_same(simulator, loop):
    got, wanted = simulator.parameters(), loop.parameters()
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        own = got[name].detach().expand_as(value)
        assert own.dtype == value.dtype
        assert float((own - value).norm()) <= CLOSE * (1 + float(value.norm())), name
    for name, value in loop.buffers().items():
        assert torch.allclose(simulator.buffers[name], value, rtol=CLOSE, atol=CLOSE), name


def normed():
    return made(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


class Words(nn.Module):
    def __init__(self, sparse=False, dtype=torch.float64):
        super().__init__()
        self.words = nn.Embedding(20, 6, sparse=sparse)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.words(x).mean(1))


def texts(steps=STEPS):
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randint(10, (B, 5), generator=generator)  # words from 10 on never come
        yield x, torch.randint(3, (B,), generator=generator)
